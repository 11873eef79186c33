"""A federation gives the same bits whoever works, dies, interrupts or resumes."""

from __future__ import annotations

import asyncio
import csv
import importlib
import io
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpilot.fabric import FabricError
from fedpilot.fabric.testing import FakeCluster, ManualClock, fake_machine
from fedpilot.federated import (
    ClientFailed,
    ConfigError,
    Event,
    FederatedError,
    Federation,
    NodeState,
    NoUsableUpdate,
    RunRefused,
    RunResult,
    TrainResult,
    UnknownClient,
    WorkersExhausted,
    register_model,
)
from fedpilot.federated.coordinator import Coordinator
from fedpilot.federated.core.sampling import cohort, evaluation_cohort
from fedpilot.federated.core.state import Array, State, digest
from fedpilot.federated.engine import journal as journal_module
from fedpilot.federated.engine.local_training import LocalTrainer
from fedpilot.federated.engine.tensor_files import read_tensors
from fedpilot.federated.report.progress import JsonLines, PlainLines
from fedpilot.federated.site.rounds import SiteRound
from fedpilot.mediator import Payload, ReservationRefused

pytestmark = pytest.mark.timeout(60)

SOON_S = 8.0
CLIENTS, COHORT, ROUNDS, SEED = 12, 6, 4, 3

USER_CODE = '''
import threading

import torch
from torch import nn

trained = []


class WithBatchNorm(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes)
        )

    def forward(self, x):
        return self.layers(x)


class WithScalar(nn.Module):
    """Has a trained parameter without dimensions."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.linear(x) * self.temperature


class Frozen(nn.Module):
    """Has nothing to train."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes).requires_grad_(False)

    def forward(self, x):
        return self.linear(x)


class Fragile(nn.Module):
    """Raises on samples of which a feature is above a limit."""

    def __init__(self, input_shape, num_classes, limit=1e9):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)
        self.limit = limit

    def forward(self, x):
        if self.training and float(x.detach().max()) > self.limit:
            raise ValueError("this sample is too much for me")
        return self.linear(x)


class Explosive(nn.Module):
    """Gives a loss that is not a number for samples of which a feature is above a limit."""

    def __init__(self, input_shape, num_classes, limit=1e9):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)
        self.limit = limit

    def forward(self, x):
        outputs = self.linear(x)
        if self.training and float(x.detach().max()) > self.limit:
            return outputs * float("nan")
        return outputs


GATE = threading.Event()
ARRIVED = threading.Semaphore(0)


class Slow(nn.Module):
    """Trains when the gate is open."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)

    def forward(self, x):
        if self.training:
            ARRIVED.release()
            assert GATE.wait(20)
        return self.linear(x)
'''


@pytest.fixture(scope="module")
def user_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("code")
    (folder / "users_models_for_tests.py").write_text(USER_CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "users_models_for_tests"


ALONE = {"resources__workers": 1}


def open_gate(user_code: str) -> Any:
    code = importlib.import_module(user_code)
    code.GATE.set()
    return code


def shut_gate(user_code: str) -> Any:
    code = importlib.import_module(user_code)
    code.GATE.clear()
    while code.ARRIVED.acquire(blocking=False):
        pass
    return code


Config = dict[str, Any]


class Lab:
    """Federations on fake clusters whose run folders lie in one place."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self.runs = folder / "runs"
        self._undo = undo
        self.cluster = FakeCluster([fake_machine("a", CPU=8)])

    def config(self, **keys: Any) -> Config:
        """The small config; `federation__rounds=2` changes a key."""
        config: Config = {
            "run": {"name": "test", "random_seed": SEED},
            "federation": {
                "number_of_clients": CLIENTS, "clients_per_round": COHORT, "rounds": ROUNDS
            },
            "model": {"model_type": "logistic_regression"},
            "data": {
                "dataset_type": "synthetic",
                "options": {"samples": 300, "features": 6, "classes": 3},
                "data_distribution_kind": "dirichlet",
                "dirichlet_beta": 1.0,
            },
            "training": {"batch_size": 8},
            "evaluation": {},
            "resources": {"workers": 2},
            "outputs": {"folder": str(self.runs), "curves": False},
        }  # fmt: skip
        for key, value in keys.items():
            section, _, name = key.partition("__")
            if value is None:
                config[section].pop(name, None)
            else:
                config[section][name] = value
        return config

    def federation(
        self, *observers: Callable[[Event], None], cluster: FakeCluster | None = None, **keys: Any
    ) -> Federation:
        self.cluster = cluster or FakeCluster([fake_machine("a", CPU=8)])
        made = Federation(self.config(**keys), observers=observers, cluster=self.cluster)
        self._undo.callback(made.close)
        return made

    def run(self, *observers: Callable[[Event], None], **keys: Any) -> RunResult:
        with self.federation(*observers, **keys) as federation:
            return federation.run()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as undo:
        yield Lab(tmp_path, undo)


def timeless(rows: Any) -> list[dict[str, Any]]:
    """The metrics that must not depend on when and where."""
    timing = ("seconds", "clients_per_second", "time")
    return [{k: v for k, v in row.items() if k not in timing} for row in rows]


class Log(list[Event]):
    """Observes everything."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, name: str) -> list[Mapping[str, Any]]:
        return [event.fields for event in self if event.name == name]


def raising(error: BaseException, at: str, nth: int = 1, **fields: Any) -> Callable[[Event], None]:
    """An observer that raises at the nth event of that name and those fields."""
    seen = 0

    def observer(event: Event) -> None:
        nonlocal seen
        if event.name == at and fields.items() <= event.fields.items():
            seen += 1
            if seen == nth:
                raise error

    return observer


def in_time(work: Callable[[], Any]) -> Any:
    """Do it in a thread of its own; TimeoutError if it hangs, and the thread is left behind."""
    result: list[Any] = []

    def target() -> None:
        try:
            result.append((True, work()))
        except BaseException as error:
            result.append((False, error))

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(SOON_S)
    if not result:
        raise TimeoutError("it hangs")
    fine, found = result[0]
    if fine:
        return found
    raise found


# -- the same bits ----------------------------------------------------------------------------


@pytest.fixture
def reference(lab: Lab) -> RunResult:
    return lab.run(resources__workers=1)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_however_many_workers_give_the_same_bits(
    workers: int, lab: Lab, reference: RunResult
) -> None:
    result = lab.run(resources__workers=workers)
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


@pytest.mark.parametrize("nth", [1, 2, 4, 5, 7])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_that_dies_in_a_round_changes_nothing(
    nth: int, workers: int, lab: Lab, reference: RunResult
) -> None:
    log = Log()
    federation = lab.federation(log, resources__workers=workers)
    lab.cluster.faults.kill_at("train_chunk", nth)
    lab.cluster.faults.kill_at("evaluate_test", 2)
    result = federation.run()
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)
    assert len(log.of("worker_lost")) == 2


def test_workers_that_die_all_the_time_change_nothing(lab: Lab, reference: RunResult) -> None:
    federation = lab.federation(resources__workers=3, resources__worker_restarts=1000)
    for nth in range(1, 60, 2):
        lab.cluster.faults.kill_at("train_chunk", nth)
    assert federation.run().digest == reference.digest


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        pytest.param({"run__random_seed": 4}, False, id="another seed"),
        pytest.param({"training__learning_rate": 0.01}, False, id="another learning rate"),
        pytest.param({"federation__clients_per_round": 5}, False, id="other cohorts"),
        pytest.param({"outputs__checkpoint_every": 3}, True, id="fewer checkpoints"),
        pytest.param({"evaluation__every": 2}, True, id="fewer evaluations"),
        pytest.param({"run__name": "other"}, True, id="another name"),
    ],
)
def test_what_decides_the_bits(
    keys: dict[str, Any], same: bool, lab: Lab, reference: RunResult
) -> None:
    assert (lab.run(**keys).digest == reference.digest) == same


def test_two_runs_of_one_federation_are_the_same(lab: Lab) -> None:
    with lab.federation() as federation:
        first, second = federation.run(), federation.run()
    assert first.digest == second.digest
    assert first.run_id != second.run_id


@pytest.mark.parametrize("model", ["logistic_regression", "mlp", "WithBatchNorm", "WithScalar"])
def test_every_kind_of_model_learns_and_resumes(model: str, lab: Lab, user_code: str) -> None:
    name = f"{user_code}:{model}" if model.startswith("With") else model
    keys = {
        "model__model_type": name,
        "training__learning_rate": 0.2,
        "data__data_distribution_kind": "iid",  # BatchNorm cannot train on a last batch of one
        "data__dirichlet_beta": None,
    }
    whole = lab.run(**keys, resources__workers=1)
    assert whole.rows[-1]["train_loss"] < whole.rows[0]["train_loss"]
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    federation = lab.federation(stop, **keys)
    with pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    resumed = lab.federation(**keys).resume("r")
    assert resumed.digest == whole.digest
    assert timeless(resumed.rows) == timeless(whole.rows)


# -- interruption -----------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["round_started", "round_finished"])
@pytest.mark.parametrize("number", [1, 2, ROUNDS])
@pytest.mark.parametrize("every", [1, 3])
def test_an_interrupted_run_resumes_to_the_same_bits(
    at: str, number: int, every: int, lab: Lab, reference: RunResult
) -> None:
    stop = raising(KeyboardInterrupt(), at, round=number)
    federation = lab.federation(stop, outputs__checkpoint_every=every)
    with pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    federation.close()
    manifest = json.loads((lab.runs / "r" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    result = lab.federation(resources__workers=3).resume("r")
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)
    manifest = json.loads((lab.runs / "r" / "manifest.json").read_text())
    assert (manifest["status"], manifest["digest"]) == ("finished", reference.digest)
    assert len(manifest["resumed"]) == 1


def test_a_run_may_be_interrupted_and_resumed_many_times(lab: Lab, reference: RunResult) -> None:
    for number in range(1, ROUNDS):
        stop = raising(KeyboardInterrupt(), "round_finished", round=number)
        with lab.federation(stop) as federation, pytest.raises(KeyboardInterrupt):
            federation.resume("r") if number > 1 else federation.run(run_id="r")
    result = lab.federation().resume("r")
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


def test_a_finished_run_that_is_resumed_stays_as_it_is(lab: Lab, reference: RunResult) -> None:
    result = lab.federation().resume(reference.run_id)
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


def test_the_model_that_an_interrupted_federation_holds_is_that_of_its_rounds(lab: Lab) -> None:
    stop = raising(KeyboardInterrupt(), "round_started", round=3)
    with lab.federation(stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    assert federation.round == 2
    assert digest(federation.state) == federation_rows(lab, "r")[-1]["model"]


def federation_rows(lab: Lab, run_id: str) -> list[dict[str, Any]]:
    lines = (lab.runs / run_id / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param({"training__learning_rate": 0.5}, "training.learning_rate", id="the config"),
        pytest.param({"run__random_seed": 9}, "run.random_seed", id="the seed"),
    ],
)
def test_a_run_is_not_resumed_by_a_config_that_gives_other_bits(
    keys: dict[str, Any], words: str, lab: Lab, reference: RunResult
) -> None:
    with pytest.raises(RunRefused, match=words):
        lab.federation(**keys).resume(reference.run_id)
    assert lab.federation().resume(reference.run_id).digest == reference.digest


def test_a_run_that_is_running_is_not_resumed(lab: Lab) -> None:
    refused: list[BaseException] = []

    def meddle(event: Event) -> None:
        if event.name == "round_finished" and event.fields["round"] == 2:
            other = Federation(lab.config(), cluster=FakeCluster([fake_machine("b", CPU=2)]))
            try:
                other.resume("r")
            except RunRefused as error:
                refused.append(error)

    lab.federation(meddle).run(run_id="r")
    assert "another process" in str(refused[0])


def test_a_checkpoint_that_cannot_be_read_is_refused_by_name(
    lab: Lab, reference: RunResult
) -> None:
    for path in (reference.folder / "checkpoints").iterdir():
        path.write_bytes(b"nonsense")
    with pytest.raises(RunRefused, match="checkpoints"):
        lab.federation().resume(reference.run_id)


# -- the journal ------------------------------------------------------------------------------


class Trained(list[tuple[int, str]]):
    """Every training of a client in this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        original = LocalTrainer.train

        def train(trainer: Any, client_id: str, x: Any, y: Any, number: int) -> Any:
            self.append((number, client_id))
            return original(trainer, client_id, x, y, number)

        patch.setattr(LocalTrainer, "train", train)


@pytest.fixture
def always_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)


@pytest.mark.usefixtures("always_saving")
def test_a_round_in_flight_is_not_trained_again(
    lab: Lab, reference: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker, one client in a chunk: it dies for good after three clients of round 2."""
    monkeypatch.setattr("fedpilot.federated.site.rounds.how_many", lambda clients, *_: clients)
    keys = {"resources__workers": 1, "resources__worker_restarts": 0}
    federation = lab.federation(**keys)
    lab.cluster.faults.kill_at("train_chunk", COHORT + 4)
    with pytest.raises(WorkersExhausted):
        in_time(lambda: federation.run(run_id="r"))
    federation.close()
    trained = Trained(monkeypatch)
    log = Log()
    result = lab.federation(log, **keys).resume("r")
    assert len([client for number, client in trained if number == 2]) == COHORT - 3
    assert log.of("clients_done")[0] == {"round": 2, "done": 4, "of": COHORT}
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


@pytest.mark.usefixtures("always_saving")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_round_that_was_wholly_in_the_journal_is_not_trained_at_all(
    workers: int, lab: Lab, reference: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last chunk was saved and the process died before its sum was used."""
    original = SiteRound._finish

    def saving_first(self: Any) -> None:
        if self._key.round_number == 2:
            self._journal.note(self._key, self._partial, self._covered(), 1.0)
            self.answer.set_exception(KeyboardInterrupt())
            return
        original(self)

    monkeypatch.setattr(SiteRound, "_finish", saving_first)
    with lab.federation(resources__workers=2) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    monkeypatch.setattr(SiteRound, "_finish", original)
    trained = Trained(monkeypatch)
    result = lab.federation(resources__workers=workers).resume("r")
    assert 2 not in {number for number, _ in trained}
    assert result.digest == reference.digest


@pytest.mark.usefixtures("always_saving")
def test_batch_norm_counters_survive_the_journal(
    lab: Lab, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.site.rounds.how_many", lambda clients, *_: clients)
    keys = {
        "model__model_type": f"{user_code}:WithBatchNorm",
        "resources__workers": 1,
        "resources__worker_restarts": 0,
        "data__data_distribution_kind": "iid",
        "data__dirichlet_beta": None,
    }
    whole = lab.run(**keys)
    federation = lab.federation(**keys)
    lab.cluster.faults.kill_at("train_chunk", 4)
    with pytest.raises(WorkersExhausted):
        in_time(lambda: federation.run(run_id="r"))
    federation.close()
    assert lab.federation(**keys).resume("r").digest == whole.digest


@pytest.mark.usefixtures("always_saving")
def test_a_journal_that_cannot_be_read_is_trained_again(lab: Lab, reference: RunResult) -> None:
    stop = raising(KeyboardInterrupt(), "round_started", round=2)
    with lab.federation(stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    (lab.runs / "r" / "journal" / "local.safetensors").write_bytes(b"")
    assert lab.federation().resume("r").digest == reference.digest


# -- going on in the same federation ----------------------------------------------------------


@pytest.mark.parametrize("at", ["round_started", "round_finished"])
def test_an_interrupted_run_resumes_in_the_same_federation(
    at: str, lab: Lab, reference: RunResult
) -> None:
    federation = lab.federation(raising(KeyboardInterrupt(), at, round=2))
    with pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    assert in_time(lambda: federation.resume("r")).digest == reference.digest


def test_a_run_that_was_interrupted_amid_a_round_resumes_in_the_same_federation(
    lab: Lab, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: Ctrl-C while clients train, then `resume` at once."""
    keys = {"model__model_type": f"{user_code}:Slow", "resources__workers": 1}
    code = open_gate(user_code)
    whole = lab.run(**keys)
    shut_gate(user_code)
    federation = lab.federation(**keys)
    calls = itertools.count()

    def asking(self: Any, *args: Any) -> Any:
        asked = [self._ask(site, *args) for site in self._mediator.sites]
        if next(calls) == 0:
            assert code.ARRIVED.acquire(timeout=SOON_S)  # the first client is at work
            raise KeyboardInterrupt
        code.GATE.set()
        return [answer.result() for answer in asked]

    monkeypatch.setattr(Coordinator, "_ask_all", asking)
    with pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    result = in_time(lambda: federation.resume("r"))
    assert result.digest == whole.digest
    assert timeless(result.rows) == timeless(whole.rows)


def test_after_a_client_failed_the_same_federation_works_on(lab: Lab, user_code: str) -> None:
    federation = lab.federation(
        **{"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": 3.0}}
    )
    with pytest.raises(ClientFailed) as caught:
        in_time(federation.run)
    fine = next(each for each in federation if trains(federation, each))
    assert in_time(lambda: federation[fine].train()).samples > 0
    assert in_time(lambda: federation[caught.value.client_id].evaluate()).samples > 0


def trains(federation: Federation, client_id: str) -> bool:
    data = federation._materials.data
    return bool(data.x[data.partition.indices(data.partition.index_of(client_id))].max() <= 3.0)


# -- what goes wrong --------------------------------------------------------------------------


def test_a_client_whose_training_raises_ends_the_run_and_is_named(lab: Lab, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": 3.0}}
    federation = lab.federation(**keys)
    with pytest.raises(ClientFailed, match="this sample is too much for me") as caught:
        federation.run(run_id="r")
    assert caught.value.client_id in federation
    assert not trains(federation, caught.value.client_id)
    assert federation[caught.value.client_id].state is NodeState.FAILED
    manifest = json.loads((lab.runs / "r" / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert caught.value.client_id in manifest["failure"]


def test_an_update_that_is_not_finite_is_refused_and_the_run_goes_on(
    lab: Lab, user_code: str
) -> None:
    log = Log()
    keys = {"model__model_type": f"{user_code}:Explosive", "model__options": {"limit": 3.5}}
    federation = lab.federation(log, **keys)
    result = federation.run()
    refused = log.of("update_refused")
    assert refused
    assert all(each["client"] in federation for each in refused)
    assert sum(row["refused"] for row in result.rows) == len(refused)
    for row in result.rows:
        assert row["refused"] + row["clients"] == COHORT
        assert np.isfinite(row["train_loss"])
    again = lab.run(**keys, resources__workers=4)
    assert again.digest == result.digest


def test_a_round_in_which_every_update_is_refused_ends_the_run(lab: Lab, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Explosive", "model__options": {"limit": -9.0}}
    with pytest.raises(NoUsableUpdate, match="learning_rate") as caught:
        lab.run(**keys)
    assert caught.value.round_number == 1
    assert len(caught.value.refused) == COHORT


@pytest.mark.parametrize("workers", [1, 3])
def test_a_sum_out_of_range_repeats_the_round_more_coarsely(workers: int, lab: Lab) -> None:
    log = Log()
    result = lab.run(
        log, training__learning_rate=1e9, federation__rounds=2, resources__workers=workers
    )
    assert log.of("grid_coarsened")
    other = lab.run(training__learning_rate=1e9, federation__rounds=2, resources__workers=2)
    assert result.digest == other.digest


def test_a_training_that_diverged_beyond_any_grid_says_so(lab: Lab) -> None:
    with pytest.raises(FederatedError, match="learning_rate"):
        lab.run(training__learning_rate=1e32)


def test_work_that_kills_every_worker_ends_the_run_and_it_can_be_resumed(
    lab: Lab, reference: RunResult
) -> None:
    federation = lab.federation(resources__workers=1, resources__worker_restarts=2)
    for nth in range(6, 30):
        lab.cluster.faults.kill_at("train_chunk", nth)
    with pytest.raises(WorkersExhausted, match="training"):
        in_time(lambda: federation.run(run_id="r"))
    assert lab.federation().resume("r").digest == reference.digest


def test_workers_that_cannot_start_are_an_error_and_nothing_is_left(lab: Lab) -> None:
    federation = lab.federation(resources__worker_restarts=1)
    for nth in range(1, 20):
        lab.cluster.faults.kill_at("hello", nth)
    with pytest.raises(WorkersExhausted):
        in_time(federation.start)
    assert lab.cluster.groups() == ()


def test_a_gang_that_cannot_be_had_is_refused_and_nothing_is_left(lab: Lab) -> None:
    federation = lab.federation(resources__workers=9)
    with pytest.raises(ReservationRefused, match="8 CPU"):
        federation.run()
    assert lab.cluster.groups() == ()


def test_a_model_without_anything_to_train_is_refused_before_anything_starts(
    lab: Lab, user_code: str
) -> None:
    with pytest.raises(ConfigError, match=r"model\.model_type"):
        lab.federation(model__model_type=f"{user_code}:Frozen")


def test_an_observer_that_raises_does_not_lose_the_run(lab: Lab, reference: RunResult) -> None:
    federation = lab.federation(raising(ValueError("a bug in a callback"), "round_finished", 2))
    with pytest.raises(ValueError, match="a bug in a callback"):
        federation.run(run_id="r")
    assert lab.federation().resume("r").digest == reference.digest


def test_a_federation_that_is_closed_amid_a_run_keeps_what_was_done(lab: Lab) -> None:
    def closing(event: Event) -> None:
        if event.name == "round_finished" and event.fields["round"] == 2:
            federation.close()

    federation = lab.federation(closing)
    with pytest.raises(FederatedError):
        in_time(lambda: federation.run(run_id="r"))
    assert (lab.runs / "r" / "config.yaml").exists()
    assert len(federation_rows(lab, "r")) == 2


# -- stopping and the best --------------------------------------------------------------------


def test_early_stopping_ends_the_run_and_says_why(lab: Lab) -> None:
    result = lab.run(
        federation__rounds=30,
        evaluation__early_stopping={"patience": 2, "min_delta": 0.5},
    )
    assert result.rounds == 3
    assert "did not improve" in result.reason


def test_a_target_ends_the_run(lab: Lab) -> None:
    result = lab.run(federation__rounds=30, evaluation__early_stopping={"target": 0.0})
    assert result.rounds == 1
    assert "target" in result.reason


def test_early_stopping_that_was_interrupted_stops_in_the_same_round(lab: Lab) -> None:
    keys = {
        "federation__rounds": 30,
        "evaluation__early_stopping": {"patience": 3, "min_delta": 0.3},
        "evaluation__metric": "loss",
    }
    whole = lab.run(**keys)
    stop = raising(KeyboardInterrupt(), "round_finished", round=whole.rounds - 1)
    with lab.federation(stop, **keys) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    result = lab.federation(**keys).resume("r")
    assert (result.rounds, result.digest, result.reason) == (
        whole.rounds, whole.digest, whole.reason
    )  # fmt: skip
    assert (result.best_round, result.best) == (whole.best_round, whole.best)


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_best_model_is_that_of_the_best_round(metric: str, lab: Lab) -> None:
    result = lab.run(evaluation__metric=metric, training__learning_rate=3.0, federation__rounds=6)
    values = [row[metric] for row in result.rows]
    best = max(values) if metric == "accuracy" else min(values)
    assert result.best == best
    assert result.best_round == 1 + values.index(best)
    header, tensors = read_tensors(result.folder / "best.safetensors")
    assert header["round"] == result.best_round
    assert digest(tensors) == result.rows[result.best_round - 1]["model"]
    header, tensors = read_tensors(result.folder / "model.safetensors")
    assert (header["round"], digest(tensors)) == (6, result.digest)


# -- evaluation -------------------------------------------------------------------------------


def judged(federation: Federation, clients: list[str]) -> tuple[int, int, float]:
    """Samples, right answers and mean loss of the global model on these clients."""
    data = federation._materials.data
    rows = np.concatenate(
        [data.partition.indices(data.partition.index_of(client)) for client in clients]
    )
    with torch.no_grad():
        outputs = federation.module().eval()(torch.from_numpy(data.x[rows]))
        labels = torch.from_numpy(data.y[rows])
        loss = float(torch.nn.functional.cross_entropy(outputs, labels))
    return len(rows), int((outputs.argmax(1) == labels).sum()), loss


@pytest.mark.parametrize(
    "evaluation",
    [
        pytest.param({"where": "sites"}, id="by the round's cohort"),
        pytest.param({"where": "sites", "clients": "all"}, id="by everybody"),
        pytest.param(
            {"where": "sites", "clients": "fraction", "fraction": 0.25}, id="by a quarter"
        ),
    ],
)
def test_models_are_judged_at_the_sites(evaluation: dict[str, Any], lab: Lab) -> None:
    keys = {f"evaluation__{key}": value for key, value in evaluation.items()}
    with lab.federation(**keys, data__test_fraction=0.0) as federation:
        result = federation.run()
        everybody = list(federation)
        if evaluation.get("clients") == "all":
            judges = everybody
        elif "clients" not in evaluation:
            chosen = cohort(CLIENTS, COHORT, SEED, ROUNDS)
            judges = [federation.client_id(int(index)) for index in chosen]
        else:
            chosen = evaluation_cohort(CLIENTS, 3, SEED, ROUNDS)
            judges = [federation.client_id(int(index)) for index in chosen]
        samples, correct, loss = judged(federation, judges)
    assert result.accuracy == correct / samples
    assert result.rows[-1]["loss"] == pytest.approx(loss, rel=1e-5)
    other = lab.run(**keys, data__test_fraction=0.0, resources__workers=4)
    assert timeless(other.rows) == timeless(result.rows)


def test_models_are_judged_on_the_test_set_of_the_coordinator(lab: Lab) -> None:
    with lab.federation(evaluation__batch_size=7) as federation:
        result = federation.run()
        data = federation._materials.data
        with torch.no_grad():
            outputs = federation.module().eval()(torch.from_numpy(np.array(data.test_x)))
    right = int((outputs.argmax(1).numpy() == data.test_y).sum())
    assert result.accuracy == right / len(data.test_y)


def test_the_last_round_is_evaluated_whatever_the_interval(lab: Lab) -> None:
    result = lab.run(evaluation__every=3, federation__rounds=5)
    assert [row["round"] for row in result.rows if "accuracy" in row] == [3, 5]


# -- what a run leaves ------------------------------------------------------------------------


def test_a_run_leaves_what_it_says_and_no_temporary_files(lab: Lab) -> None:
    result = lab.run(outputs__curves=True)
    names = {path.name for path in result.folder.iterdir()}
    assert {
        "config.yaml", "manifest.json", "metrics.jsonl", "metrics.csv", "traffic.csv",
        "model.safetensors", "best.safetensors", "checkpoints", "journal", "curves.png",
    } <= names  # fmt: skip
    assert not [path for path in result.folder.rglob("*") if path.name.endswith(".tmp")]
    assert len(list((result.folder / "checkpoints").iterdir())) == 2


def test_the_config_in_the_folder_gives_the_same_run(lab: Lab, reference: RunResult) -> None:
    path = reference.folder / "config.yaml"
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    with Federation(path, overrides=["resources.workers=3"], cluster=cluster) as federation:
        assert federation.run().digest == reference.digest


def test_a_model_goes_to_the_site_once_and_a_sum_comes_back(lab: Lab) -> None:
    with lab.federation() as federation:
        result = federation.run()
        numbers = federation.parameters
    with (result.folder / "traffic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    sent = {
        (int(row["round"]), row["direction"], row["purpose"]): int(row["bytes"]) for row in rows
    }
    for number in range(1, ROUNDS + 1):
        # Round 1 trains the first model; the others train what was evaluated before.
        assert sent[number, "to_site", "training"] == (4 * numbers if number == 1 else 0)
        assert sent[number, "to_site", "evaluation"] == 4 * numbers  # float32
        assert sent[number, "from_site", "training"] == 8 * numbers  # int64


def test_events_come_in_order_and_can_be_printed(lab: Lab) -> None:
    log, plain, lines = Log(), io.StringIO(), io.StringIO()
    result = lab.run(log, PlainLines(plain), JsonLines(lines))
    names = [event.name for event in log]
    assert names[0] == "run_started"
    assert names[-1] == "run_finished"
    assert [f["round"] for f in log.of("round_finished")] == list(range(1, ROUNDS + 1))
    for number in range(1, ROUNDS + 1):
        done = [f["done"] for f in log.of("clients_done") if f["round"] == number]
        assert done == sorted(done)
        assert all(0 < n < COHORT for n in done)
    assert log.of("run_finished")[0]["digest"] == result.digest
    last = json.loads(lines.getvalue().splitlines()[-1])
    assert (last["event"], last["status"], last["digest"]) == (
        "run_finished", "finished", result.digest
    )  # fmt: skip
    assert last["folder"] == str(result.folder)
    assert f"round {ROUNDS}/{ROUNDS}" in plain.getvalue()


# -- starting and ending ----------------------------------------------------------------------


def test_nothing_is_started_until_somebody_needs_it(lab: Lab) -> None:
    with lab.federation() as federation:
        node = federation["client_7"]
        assert len(federation) == CLIENTS
        assert list(federation) == [f"client_{i}" for i in range(CLIENTS)]
        assert federation.describe().number_of_clients == CLIENTS
        assert (federation.round, federation.cohort_size) == (0, COHORT)
        assert node.state is NodeState.VIRTUAL
        assert "client_7: virtual" in node.explain()
        assert "not assigned" in node.explain()
        assert repr(node) == "<VirtualNode client_7 virtual>"
        node.release()
        assert lab.cluster.groups() == ()
        assert node.materialize() is node
        assert len(lab.cluster.groups()) == 1
        assert node.state is NodeState.MATERIALIZED
    assert lab.cluster.groups() == ()
    federation.close()


def test_a_federation_starts_once_whoever_asks(lab: Lab) -> None:
    log = Log()
    federation = lab.federation(log)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda i: federation[f"client_{i}"].train(), range(8)))
    assert [result.client_id for result in results] == [f"client_{i}" for i in range(8)]
    assert len(log.of("gang_reserved")) == 1


def test_a_federation_of_a_million_clients_starts_at_once(lab: Lab) -> None:
    started = time.perf_counter()
    with lab.federation(
        federation__number_of_clients=1_000_000,
        federation__rounds=2,
        data__data_distribution_kind="bootstrap",
        data__samples_per_client=[5, 20],
        evaluation__where="sites",
    ) as federation:
        result = federation.run()
        node = federation["client_999999"]
        assert 5 <= node.train().samples <= 20
    assert result.rounds == 2
    assert result.rows[0]["clients"] == COHORT
    assert time.perf_counter() - started < 10  # O(population) in Python would take much longer


def test_a_model_that_was_registered_anew_is_the_new_one(lab: Lab) -> None:
    def define(width: int) -> None:
        @register_model("mine_for_the_test_of_registration")
        def mine(input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
            return torch.nn.Sequential(
                torch.nn.Linear(input_shape[0], width), torch.nn.Linear(width, num_classes)
            )

    sizes = []
    for width in (2, 5):
        define(width)
        with lab.federation(model__model_type="mine_for_the_test_of_registration") as federation:
            sizes.append(federation.parameters)
            federation["client_0"].train()
    assert sizes == [6 * 2 + 2 + 2 * 3 + 3, 6 * 5 + 5 + 5 * 3 + 3]


# -- single clients ---------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", ["client_12", "client_-1", "client_01", "nobody", ""])
def test_a_client_that_does_not_exist_is_a_key_error(unknown: str, lab: Lab) -> None:
    federation = lab.federation()
    with pytest.raises(KeyError) as caught:
        _ = federation[unknown]
    assert isinstance(caught.value, UnknownClient)
    assert unknown not in federation
    assert "client_3" in federation
    assert 3 not in federation


def test_two_nodes_of_one_id_are_equal(lab: Lab) -> None:
    first, second = lab.federation(), lab.federation()
    assert first["client_1"] == first["client_1"]
    assert len({first["client_1"], first["client_1"]}) == 1
    assert first["client_1"] != first["client_2"]
    assert first["client_1"] != second["client_1"]
    assert first["client_1"] != "client_1"


def test_training_a_client_twice_gives_the_same_bits_and_moves_nothing(lab: Lab) -> None:
    with lab.federation() as federation:
        before = digest(federation.state)
        node = federation["client_3"]
        first = node.train()
        federation["client_4"].train()
        second = node.train()
        assert digest(first.state) == digest(second.state) != before
        assert (first.samples, first.loss) == (second.samples, second.loss)
        assert digest(federation.state) == before
        assert federation.round == 0


def test_a_client_can_start_from_any_model(lab: Lab) -> None:
    with lab.federation() as federation:
        zeros = {name: np.zeros_like(array) for name, array in federation.state.items()}
        node = federation["client_3"]
        assert digest(node.train(zeros).state) != digest(node.train().state)
        assert digest(node.train(zeros).state) == digest(node.train(zeros).state)
        judged_zeros = node.evaluate(zeros)
        assert judged_zeros.loss == pytest.approx(np.log(3), rel=1e-6)
        assert judged_zeros.client_id == "client_3"


def test_many_clients_train_at_a_time(lab: Lab) -> None:
    with lab.federation(resources__workers=3) as federation:
        alone = [federation[f"client_{i}"].train() for i in range(8)]

        async def everybody() -> list[TrainResult]:
            nodes = [federation[f"client_{i}"] for i in range(8)]
            return await asyncio.wait_for(
                asyncio.gather(*(node.train_async() for node in nodes)), SOON_S
            )

        together = asyncio.run(everybody())
        assert [digest(r.state) for r in together] == [digest(r.state) for r in alone]
        assert [r.loss for r in together] == [r.loss for r in alone]

        async def judging() -> list[float]:
            nodes = [federation[f"client_{i}"] for i in range(8)]
            found = await asyncio.gather(*(node.evaluate_async() for node in nodes))
            return [each.accuracy for each in found]

        assert asyncio.run(judging()) == [
            federation[f"client_{i}"].evaluate().accuracy for i in range(8)
        ]


def test_results_do_not_change_when_the_worker_goes_on(lab: Lab) -> None:
    with lab.federation(resources__workers=1) as federation:
        first = federation["client_1"].train()
        before = digest(first.state)
        federation["client_2"].train()
        federation.run()
        assert digest(first.state) == before


def merged_by_hand(start: State, results: list[TrainResult]) -> dict[str, Array]:
    total = sum(result.samples for result in results)
    return {
        name: sum(r.state[name].astype("f8") * r.samples for r in results) / total for name in start
    }


def test_a_round_is_what_its_clients_train_merged(lab: Lab) -> None:
    with lab.federation(federation__rounds=1) as federation:
        chosen = [federation.client_id(int(i)) for i in cohort(CLIENTS, COHORT, SEED, 1)]
        start = dict(federation.state)
        results = [federation[client].train() for client in chosen]
        merged = federation[chosen[0]].aggregate(results)
        by_hand = merged_by_hand(start, results)
        federation.run()
        for name, array in federation.state.items():
            assert merged[name].dtype == array.dtype
            np.testing.assert_allclose(merged[name], array, rtol=3e-7, atol=3e-8)
            np.testing.assert_allclose(by_hand[name], array, rtol=3e-7, atol=3e-8)


def test_merging_does_not_depend_on_the_order_nor_on_who_merges(lab: Lab) -> None:
    with lab.federation(model__model_type="mlp") as federation:
        results = [federation[f"client_{i}"].train() for i in range(6)]
        first = federation["client_0"].aggregate(results)
        assert digest(federation["client_5"].aggregate(results)) == digest(first)
        for shift in range(1, 6):
            order = results[shift:] + results[:shift]
            assert digest(federation["client_0"].aggregate(order)) == digest(first)


def test_merging_one_model_gives_that_model_and_none_is_refused(lab: Lab) -> None:
    with lab.federation() as federation:
        node = federation["client_1"]
        result = node.train()
        assert digest(node.aggregate([result])) == digest(result.state)
        with pytest.raises(ValueError, match="nothing to aggregate"):
            node.aggregate([])


def test_merging_a_model_that_is_not_finite_is_refused(lab: Lab) -> None:
    with lab.federation() as federation:
        node = federation["client_1"]
        good = node.train()
        nan = {name: np.full_like(array, np.nan) for name, array in good.state.items()}
        bad = TrainResult(client_id="client_2", state=nan, samples=3, loss=0.0)
        with pytest.raises(ClientFailed, match="finite"):
            node.aggregate([good, bad])


def test_a_node_says_where_it_is_and_what_happened_to_it(lab: Lab) -> None:
    with lab.federation() as federation:
        node = federation["client_5"]
        node.train()
        text = node.explain()
        assert "client_5: materialized at worker" in text
        assert f"holds {node.evaluate().samples} samples" in text
        assert "site: local" in text
        for event in ("request", "bind"):
            assert event in text
        node.release()
        assert node.state is NodeState.RELEASED
        assert "release() was called" in node.explain()
        node.release()
        assert node.state is NodeState.RELEASED
        node.train()
        assert node.state is NodeState.MATERIALIZED


def test_the_clients_of_a_round_are_released_and_hosted_ones_stay(lab: Lab) -> None:
    with lab.federation(federation__rounds=1) as federation:
        chosen = [federation.client_id(int(i)) for i in cohort(CLIENTS, COHORT, SEED, 1)]
        hosted = federation[chosen[0]].materialize()
        federation.run()
        assert hosted.state is NodeState.MATERIALIZED
        for client in chosen[1:]:
            assert federation[client].state is NodeState.RELEASED
            assert "round 1" in federation[client].explain()
        for client in set(federation) - set(chosen):
            assert federation[client].state is NodeState.VIRTUAL


def test_a_client_that_fails_alone_is_failed_and_can_be_asked_again(
    lab: Lab, user_code: str
) -> None:
    with lab.federation(
        **{"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": 3.0}}
    ) as federation:
        bad = next(each for each in federation if not trains(federation, each))
        node = federation[bad]
        with pytest.raises(ClientFailed, match=bad):
            node.train()
        assert node.state is NodeState.FAILED
        assert "too much for me" in node.explain()
        assert node.evaluate().samples > 0
        assert node.state is NodeState.MATERIALIZED


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        threading.Event().wait(0.01)


def host_of(node: Any, federation: Federation) -> str:
    number = federation.show(node.index)["worker"].removeprefix("worker ")
    workers = [
        worker.name
        for group in federation._cluster.groups()
        for worker in group.workers  # type: ignore[union-attr]
    ]
    return next(name for name in reversed(workers) if name.split("/")[-2] == number)


def test_a_node_whose_worker_died_trains_again_to_the_same_bits(lab: Lab) -> None:
    log = Log()
    with lab.federation(log) as federation:
        node, other = federation["client_1"], federation["client_2"]
        first = node.train()
        other.materialize()
        lab.cluster.kill_worker(host_of(node, federation))
        second = in_time(node.train)
        assert digest(second.state) == digest(first.state)
        assert log.of("worker_lost")
        assert node.state is other.state is NodeState.MATERIALIZED
        assert "lose" in node.explain()


def test_nodes_of_a_worker_that_died_are_pending(lab: Lab) -> None:
    with lab.federation(resources__workers=1) as federation:
        node, other = federation["client_1"].materialize(), federation["client_2"].materialize()
        lab.cluster.kill_worker(host_of(node, federation))
        in_time(other.train)
        assert node.state is NodeState.PENDING
        assert "was lost" in node.explain()
        node.release()
        assert node.state is NodeState.RELEASED


def test_when_a_worker_is_gone_for_good_new_nodes_go_to_the_others(lab: Lab) -> None:
    with lab.federation(resources__workers=2, resources__worker_restarts=0) as federation:
        node = federation["client_1"].materialize()
        lab.cluster.kill_worker(host_of(node, federation))
        with pytest.raises(WorkersExhausted):
            in_time(node.train)
        for client in ("client_2", "client_3", "client_1"):
            assert in_time(federation[client].train).samples > 0


def test_a_node_that_is_idle_for_long_gives_its_place_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.site.pool.TICK_S", 0.01)
    with lab.federation(resources__node_idle_timeout=0.05) as federation:
        node = federation["client_1"]
        first = node.train()
        until(lambda: node.state is NodeState.RELEASED)
        assert "idle" in node.explain()
        assert digest(node.train().state) == digest(first.state)


def test_a_node_that_waits_for_its_turn_is_not_idle(lab: Lab, user_code: str) -> None:
    """Long training of others is no reason to take a node's place, still less to break the pool."""
    code = shut_gate(user_code)
    clock = ManualClock()
    with lab.federation(**{"model__model_type": f"{user_code}:Slow", **ALONE}) as federation:
        federation.start()
        workload = federation._mediator._sites["local"]._workload  # type: ignore[union-attr]
        workload._clock = clock
        nodes = [federation[f"client_{i}"].materialize() for i in range(5)]
        asked = [ask(node, "node.train") for node in nodes]
        clock.advance(10 * federation.config.resources.node_idle_timeout)
        workload._evict_idle()
        code.GATE.set()
        for answer in asked:
            in_time(answer.result)
        assert [node.state for node in nodes] == [NodeState.MATERIALIZED] * 5


def ask(node: Any, kind: str) -> Any:
    """The future of what a node was asked; the order is delivered by the time this returns."""
    federation = node._federation
    key, state = federation.model_or(None)
    header = {"client": node.index, "model": key, "round": 1}
    return federation.ask_node(node.index, Payload(kind=kind, header=header, tensors=state))


def test_a_node_may_be_released_while_its_training_waits(lab: Lab, user_code: str) -> None:
    code = shut_gate(user_code)
    with lab.federation(**{"model__model_type": f"{user_code}:Slow", **ALONE}) as federation:
        nodes = [federation[f"client_{i}"].materialize() for i in range(5)]
        asked = [ask(node, "node.train") for node in nodes]
        released = ask(nodes[4], "node.release")
        code.GATE.set()
        for answer in [*asked[:4], released]:
            in_time(answer.result)
        assert in_time(nodes[4].train).samples > 0, "the federation is none the worse for it"


def test_a_node_may_be_released_while_it_trains_and_fails(lab: Lab, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": -9.0}}
    with lab.federation(**keys, **ALONE) as federation:
        nodes = [federation[f"client_{i}"].materialize() for i in range(5)]
        asked = [ask(node, "node.train") for node in nodes]
        released = [ask(node, "node.release") for node in nodes]
        for answer in asked:
            with pytest.raises(ClientFailed):
                in_time(answer.result)
        for answer in released:
            in_time(answer.result)
        assert in_time(nodes[4].evaluate).samples > 0


def test_nodes_may_be_materialized_while_a_round_trains_them(lab: Lab, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Slow", "federation__rounds": 1, **ALONE}
    open_gate(user_code)
    whole = lab.run(**keys)
    code = shut_gate(user_code)
    with lab.federation(**keys) as federation, ThreadPoolExecutor(1) as threads:
        running = threads.submit(federation.run)
        assert code.ARRIVED.acquire(timeout=SOON_S)
        chosen = cohort(CLIENTS, COHORT, SEED, 1)
        nodes = [federation[federation.client_id(int(i))] for i in chosen]
        asked = [ask(node, "node.materialize") for node in nodes]
        code.GATE.set()
        assert running.result(SOON_S).digest == whole.digest
        for answer in asked:
            in_time(answer.result)
        assert [node.state for node in nodes] == [NodeState.MATERIALIZED] * COHORT


def test_more_nodes_than_a_worker_hosts_evict_the_longest_unused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.site.node.NODES_HOSTED", 3)
    with lab.federation(resources__workers=1) as federation:
        nodes = [federation[f"client_{i}"].materialize() for i in range(5)]
        assert [node.state for node in nodes] == [NodeState.RELEASED] * 2 + [
            NodeState.MATERIALIZED
        ] * 3
        assert "more recent" in nodes[0].explain()
        assert nodes[0].train().samples > 0


def test_what_a_closed_federation_is_asked_ends(lab: Lab, user_code: str) -> None:
    code = shut_gate(user_code)
    federation = lab.federation(**{"model__model_type": f"{user_code}:Slow", **ALONE})
    node = federation["client_1"].materialize()
    answer = ask(node, "node.train")
    in_time(federation.close)
    code.GATE.set()
    with pytest.raises((FederatedError, FabricError)):
        answer.result(SOON_S)
    assert lab.cluster.groups() == ()
    assert node.state is NodeState.VIRTUAL
