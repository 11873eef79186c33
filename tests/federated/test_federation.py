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
    ExecutionRefused,
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
from fedpilot.federated.config import load_config
from fedpilot.federated.coordinator import Coordinator
from fedpilot.federated.core.sampling import cohort, evaluation_cohort
from fedpilot.federated.core.state import Array, State, digest
from fedpilot.federated.engine import journal as journal_module
from fedpilot.federated.engine.journal import Journal
from fedpilot.federated.engine.sequential import SequentialTrainer
from fedpilot.federated.engine.tensor_files import read_tensors
from fedpilot.federated.report.progress import JsonLines, PlainLines
from fedpilot.federated.site.node import FederatedNode
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


class Mixing(nn.Module):
    """Its samples see each other."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)

    def forward(self, x):
        return self.linear(x - x.mean(0))


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


def plain_sgd(client):
    """What `training` says, by hand."""
    optimizer = torch.optim.SGD(client.module.parameters(), lr=client.training.learning_rate)
    total, seen = 0.0, 0
    for x, y in client.batches():
        optimizer.zero_grad()
        loss = client.loss(client.module(x), y)
        loss.backward()
        optimizer.step()
        total, seen = total + float(loss.detach()) * len(y), seen + len(y)
    return total / seen


def careless(client):
    """Adds up gradients, whoever left them."""
    x, y = client.data()
    client.loss(client.module(x), y).backward()
    with torch.no_grad():
        for parameter in client.module.parameters():
            parameter -= 0.1 * parameter.grad


def raising(client):
    raise RuntimeError("I do not like this client")


def wordy(client):
    return "all went well"


def hoarding(client):
    client.memory["words"] = "these"


def lossless(client):
    return float("nan")


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
            "training": {"batch_size": 8, "execution": "sequential"},
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
    timing = ("seconds", "training_seconds", "clients_per_second", "time")
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
    lab.cluster.faults.kill_at("train", nth)
    lab.cluster.faults.kill_at("evaluate_test", 2)
    result = federation.run()
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)
    assert len(log.of("worker_lost")) == 2


def test_workers_that_die_all_the_time_change_nothing(lab: Lab, reference: RunResult) -> None:
    federation = lab.federation(resources__workers=3, resources__worker_restarts=1000)
    for nth in range(1, 60, 2):
        lab.cluster.faults.kill_at("train", nth)
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


class Trained(list[tuple[int, int]]):
    """Every training of a client in this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        original = SequentialTrainer._client

        def train(trainer: Any, index: int, key: int, number: int, *rest: Any) -> Any:
            self.append((number, index))
            return original(trainer, index, key, number, *rest)

        patch.setattr(SequentialTrainer, "_client", train)


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Every client is a piece of its own."""

    def alone(costs: Any, *_: Any) -> list[Any]:
        return list(np.argsort(-costs, kind="stable")[:, np.newaxis])

    patch.setattr("fedpilot.federated.site.rounds.pieces", alone)


def dying_once_saved(lab: Lab, patch: pytest.MonkeyPatch, since: int) -> None:
    """Every worker dies at its next call, once a part of a round has been saved."""
    original = Journal.save

    def save(self: Any, key: Any, partial: Any, done: Any) -> None:
        original(self, key, partial, done)
        if key.round_number >= since:
            faults = lab.cluster.faults
            for method in ("train", "hand_up"):
                for nth in range(100):
                    faults.kill_at(method, faults._calls[method] + nth)

    patch.setattr(Journal, "save", save)


def saved_in(run: Path) -> tuple[int, set[int]]:
    """(round, clients) of a run's journal."""
    header, tensors = read_tensors(run / "journal" / "local.safetensors")
    return header["key"]["round"], set(tensors["done"].tolist())


@pytest.fixture
def always_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)


@pytest.mark.usefixtures("always_saving")
def test_a_round_in_flight_is_not_trained_again(
    lab: Lab, reference: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker, one client in a piece: it dies for good amid round 2."""
    one_by_one(monkeypatch)
    keys = {"resources__workers": 1, "resources__worker_restarts": 0}
    with monkeypatch.context() as patch:
        federation = lab.federation(**keys)
        dying_once_saved(lab, patch, 2)
        with pytest.raises(WorkersExhausted):
            in_time(lambda: federation.run(run_id="r"))
        federation.close()
    number, done = saved_in(lab.runs / "r")
    assert number == 2
    assert 0 < len(done) < COHORT
    trained = Trained(monkeypatch)
    monkeypatch.setattr("fedpilot.federated.site.rounds.PROGRESS_S", 0.0)
    log = Log()
    result = lab.federation(log, **keys).resume("r")
    again = [client for number, client in trained if number == 2]
    assert len(again) == len(set(again) - done) == COHORT - len(done)
    if len(again) > 1:
        first = log.of("clients_done")[0]
        assert first == {"round": 2, "done": len(done) + 1, "of": COHORT}
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
            self._site.journal.save(self._key, self._partial, np.concatenate(self._covered))
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
    one_by_one(monkeypatch)
    keys = {
        "model__model_type": f"{user_code}:WithBatchNorm",
        "resources__workers": 1,
        "resources__worker_restarts": 0,
        "data__data_distribution_kind": "iid",
        "data__dirichlet_beta": None,
    }
    whole = lab.run(**keys)
    federation = lab.federation(**keys)
    lab.cluster.faults.kill_at("train", 4)
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
        lab.cluster.faults.kill_at("train", nth)
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


# -- how a chunk is computed ------------------------------------------------------------------

EXECUTIONS = ("sequential", "folded", "mapped")


def many_pieces(patch: pytest.MonkeyPatch) -> None:
    """However short, a round is cut as a long one is: several pieces for every worker."""
    patch.setattr("fedpilot.federated.core.chunking.SHORT_S", 0.0)
    patch.setattr("fedpilot.federated.core.chunking.LEAST_S", 0.0)


def computed(execution: str, **keys: Any) -> dict[str, Any]:
    return {
        "model__model_type": "mlp",
        "model__options": {"hidden": [9]},
        "training__execution": execution,
        "training__chunk_size": 3,
        "training__batch_size": 5,
        "training__number_of_epochs": 2,
        "training__momentum": 0.9,
        "federation__clients_per_round": 9,
        "federation__rounds": 3,
        **keys,
    }


@pytest.fixture(scope="module", params=EXECUTIONS)
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], RunResult]:
    """The keys of an execution, and the run of one worker that nothing happened to."""
    keys = computed(request.param)
    with ExitStack() as undo:
        lab = Lab(tmp_path_factory.mktemp("undisturbed"), undo)
        return keys, lab.run(**keys, resources__workers=1)


Undisturbed = tuple[dict[str, Any], RunResult]


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("pieces", ["as they are", "many"])
def test_every_execution_gives_the_same_bits_however_many_work(
    workers: int, pieces: str, lab: Lab, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, reference = undisturbed
    if pieces == "many":
        many_pieces(monkeypatch)
    result = lab.run(**keys, resources__workers=workers)
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


def test_the_executions_agree_but_for_rounding(lab: Lab) -> None:
    models = []
    for execution in EXECUTIONS:
        with lab.federation(**computed(execution)) as federation:
            federation.run()
            models.append(federation.state)
    for name, array in models[0].items():
        for other in models[1:]:
            np.testing.assert_allclose(other[name], array, rtol=0, atol=2e-5)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["train", "hand_up"])
@pytest.mark.parametrize("saving", [False, True], ids=["nothing saved", "all saved"])
def test_workers_that_die_at_any_call_change_nothing(
    workers: int,
    method: str,
    saving: bool,
    lab: Lab,
    undisturbed: Undisturbed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also between pieces, while sums are kept at the workers and while they are handed up."""
    keys, reference = undisturbed
    many_pieces(monkeypatch)
    if saving:
        monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)
    nth, lost = 1, True
    while lost and nth < 60:
        log = Log()
        federation = lab.federation(log, **keys, resources__workers=workers)
        lab.cluster.faults.kill_at(method, nth)
        result = in_time(federation.run)
        federation.close()
        assert result.digest == reference.digest, f"{method} {nth}"
        assert timeless(result.rows) == timeless(reference.rows)
        lost, nth = bool(log.of("worker_lost")), nth + 1
    assert nth > 4, "it was killed a few times"


@pytest.mark.parametrize("nth", [3, 5, 7])
def test_a_worker_that_never_comes_back_takes_only_its_sum_along(
    nth: int, lab: Lab, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has trained for this round, and dies again whenever it is started."""
    keys, reference = undisturbed
    one_by_one(monkeypatch)
    federation = lab.federation(**keys, resources__workers=2, resources__worker_restarts=1)
    lab.cluster.faults.kill_at("train", nth)
    for start in (3, 4, 5):
        lab.cluster.faults.kill_at("hello", start)
    result = in_time(federation.run)
    assert result.digest == reference.digest


def test_workers_that_die_at_random_calls_all_the_time_change_nothing(
    lab: Lab, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, reference = undisturbed
    many_pieces(monkeypatch)
    monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)
    dice = np.random.default_rng(5)
    for _ in range(5):
        federation = lab.federation(**keys, resources__workers=3, resources__worker_restarts=1000)
        for method in ("train", "hand_up"):
            for nth in dice.choice(np.arange(1, 60), size=20, replace=False):
                lab.cluster.faults.kill_at(method, int(nth))
        assert in_time(federation.run).digest == reference.digest
        federation.close()


@pytest.mark.usefixtures("always_saving")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_of_many_pieces_goes_on_from_the_journal(
    workers: int, lab: Lab, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends in the middle of a round; what was saved is not trained again."""
    keys, reference = undisturbed
    one_by_one(monkeypatch)
    with monkeypatch.context() as patch:
        few = {"resources__workers": workers, "resources__worker_restarts": 0}
        federation = lab.federation(**keys, **few)
        dying_once_saved(lab, patch, 1)
        with pytest.raises(WorkersExhausted):
            in_time(lambda: federation.run(run_id="r"))
        federation.close()
    saved, done = saved_in(lab.runs / "r")
    assert 0 < len(done) < 9
    trained: list[tuple[int, set[int]]] = []
    original = FederatedNode.train

    def train(self: Any, attempt: Any, clients: Any, *rest: Any) -> Any:
        trained.append((attempt.round_number, set(clients.tolist())))
        return original(self, attempt, clients, *rest)

    monkeypatch.setattr(FederatedNode, "train", train)
    result = lab.federation(**keys).resume("r")
    again = set().union(*(clients for number, clients in trained if number == saved))
    assert len(again) == 9 - len(done)
    assert not again & done
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


@pytest.mark.usefixtures("always_saving")
def test_a_sum_is_saved_while_its_round_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when nothing is left to do: whatever dies then, little is trained again."""
    one_by_one(monkeypatch)
    saved: list[int] = []
    original = Journal.save

    def save(self: Any, key: Any, partial: Any, done: Any) -> None:
        saved.append(len(done))
        original(self, key, partial, done)

    monkeypatch.setattr(Journal, "save", save)
    lab.run(federation__rounds=1, federation__clients_per_round=CLIENTS, resources__workers=1)
    assert saved
    assert saved[0] <= 5, "soon after the first piece"
    assert saved == sorted(set(saved)), "each time more"


def pretend(patch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Trials find these seconds per client, by kind."""

    def time_of(trainer: Any, chunk: Any, _model: Any) -> float:
        stacked = getattr(trainer, "_stacked", None)
        kind = {"FoldedModule": "folded", "MappedModule": "mapped"}.get(
            type(stacked).__name__, "sequential"
        )
        steps = int((-(-chunk.sizes // trainer._training.batch_size)).sum())
        return seconds.get(kind, 1.0) * steps + 1e-6

    patch.setattr("fedpilot.federated.engine.trainers._time", time_of)


def test_auto_is_found_out_once_said_and_written_down(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, sequential=0.01, folded=0.001)
    log = Log()
    auto = {"training__execution": "auto", "training__batch_size": 7}
    with lab.federation(log, **auto) as federation:
        before = federation.identity
        result = federation.run(run_id="r")
        federation.run()
    (chosen,) = log.of("execution_chosen")
    assert (chosen["execution"], chosen["chunk_size"]) == ("folded", COHORT)
    assert "10.0x as fast" in chosen["reason"]
    written = load_config(result.folder / "config.yaml").training
    assert (written.execution, written.chunk_size) == ("folded", COHORT)
    manifest = json.loads((result.folder / "manifest.json").read_text())
    named = {"training__execution": "folded", "training__chunk_size": COHORT}
    asked = lab.federation(**named, training__batch_size=7)
    assert manifest["identity"] == asked.identity != before
    assert asked.run().digest == result.digest


def test_a_resumed_run_keeps_what_auto_meant(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    auto = {"training__execution": "auto", "training__batch_size": 6}
    pretend(monkeypatch, sequential=0.01, folded=0.001)
    whole = lab.run(**auto)
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with lab.federation(stop, **auto) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    pretend(monkeypatch, sequential=0.001, folded=0.01)  # another machine would choose otherwise
    monkeypatch.setattr("fedpilot.federated.engine.trial_cache.recall", lambda _key: None)
    log = Log()
    result = lab.federation(log, **auto, resources__workers=3).resume("r")
    assert [fields["execution"] for fields in log.of("execution_chosen")] == ["folded"]
    assert result.digest == whole.digest
    assert timeless(result.rows) == timeless(whole.rows)


def test_a_run_that_died_while_it_wrote_down_what_auto_means_is_resumed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.yaml says it already, its manifest not yet."""
    pretend(monkeypatch, sequential=0.01, folded=0.001)
    auto = {"training__execution": "auto", "training__batch_size": 5}
    whole = lab.run(**auto)
    asked = lab.federation(**auto).identity
    stop = raising(KeyboardInterrupt(), "round_started", round=1)
    with lab.federation(stop, **auto) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    path = lab.runs / "r" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["identity"] != asked
    path.write_text(json.dumps(manifest | {"identity": asked, "status": "running"}))
    assert lab.federation(**auto).resume("r").digest == whole.digest


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param({"training__execution": "mapped"}, r"training\.execution", id="another way"),
        pytest.param(
            {"training__execution": "folded", "training__chunk_size": 2},
            r"training\.chunk_size",
            id="another chunk size",
        ),
    ],
)
def test_a_run_is_not_resumed_with_another_execution(
    keys: dict[str, Any], words: str, lab: Lab
) -> None:
    result = lab.run(training__execution="folded", training__chunk_size=4)
    with pytest.raises(RunRefused, match=words):
        lab.federation(**keys).resume(result.run_id)
    named = lab.federation(training__execution="folded", training__chunk_size=4)
    assert named.resume(result.run_id).digest == result.digest


def test_an_execution_that_does_not_suit_the_model_is_refused_before_anything_starts(
    lab: Lab, user_code: str
) -> None:
    keys = {"model__model_type": f"{user_code}:WithBatchNorm", "training__execution": "folded"}
    with pytest.raises(ConfigError, match=r"BatchNorm1d\) has no folded form") as caught:
        lab.federation(**keys)
    assert caught.value.problems[0].key == "training.execution"
    assert "`sequential`" in caught.value.problems[0].allowed


@pytest.mark.parametrize("execution", ["folded", "mapped"])
def test_an_execution_that_a_trial_finds_wrong_ends_the_start_with_words(
    execution: str, lab: Lab, user_code: str
) -> None:
    keys = {"model__model_type": f"{user_code}:Mixing", "training__execution": execution}
    with pytest.raises(ExecutionRefused, match=r"mates|influence each other") as caught:
        lab.run(**keys)
    assert caught.value.execution == execution
    assert "`sequential`" in str(caught.value), "it says what is allowed"
    assert lab.cluster.groups() == ()
    assert not list(lab.runs.iterdir()), "and leaves no run"


@pytest.mark.parametrize("model", ["WithBatchNorm", "WithScalar", "Fragile", "Explosive"])
def test_auto_finds_a_way_for_every_model(model: str, lab: Lab, user_code: str) -> None:
    keys = {
        "model__model_type": f"{user_code}:{model}",
        "training__execution": "auto",
        "data__data_distribution_kind": "iid",
        "data__dirichlet_beta": None,
    }
    log = Log()
    result = lab.run(log, **keys)
    assert result.rounds == ROUNDS
    (chosen,) = log.of("execution_chosen")
    if model != "WithScalar":
        assert chosen["execution"] == "sequential"
        assert "folded" in chosen["reason"]


def test_what_goes_wrong_with_a_client_is_its_own_and_not_the_trials(
    lab: Lab, user_code: str
) -> None:
    """A client whose training raises is found in its round, as without a trial."""
    keys = {
        "model__model_type": f"{user_code}:Fragile",
        "model__options": {"limit": -9.0},
        "training__execution": "auto",
    }
    with pytest.raises(ClientFailed, match="too much for me") as caught:
        lab.federation(**keys).run(run_id="r")
    assert "round 1" in str(caught.value)
    assert json.loads((lab.runs / "r" / "manifest.json").read_text())["status"] == "failed"


def test_a_node_trains_alone_as_it_does_in_a_chunk(lab: Lab) -> None:
    """Whichever way: a single VirtualNode is a chunk of one."""
    for execution in EXECUTIONS:
        with lab.federation(**computed(execution, federation__rounds=1)) as federation:
            chosen = [federation.client_id(int(i)) for i in cohort(CLIENTS, 9, SEED, 1)]
            start = dict(federation.state)
            results = [federation[client].train() for client in chosen]
            merged = merged_by_hand(start, results)
            federation.run()
            for name, array in federation.state.items():
                np.testing.assert_allclose(merged[name], array, rtol=3e-6, atol=3e-7)


# -- the user's own way of training -----------------------------------------------------------


def own(user_code: str, name: str, **keys: Any) -> dict[str, Any]:
    return {
        "training__client_update": f"{user_code}:{name}",
        "training__execution": "auto",
        **keys,
    }


def test_a_client_update_of_ones_own_is_what_trains(lab: Lab, user_code: str) -> None:
    """It does what fedpilot does by itself, and ends in the same bits."""
    log = Log()
    result = lab.run(log, **own(user_code, "plain_sgd"))
    reference = lab.run()
    assert result.digest == reference.digest
    (chosen,) = log.of("execution_chosen")
    assert chosen["execution"] == "sequential"
    assert "client_update" in chosen["reason"]
    for row in result.rows:
        assert row["train_loss"] == pytest.approx(reference.rows[row["round"] - 1]["train_loss"])


@pytest.mark.parametrize("workers", [2, 3])
def test_a_client_update_gives_the_same_bits_however_many_work(
    workers: int, lab: Lab, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = own(user_code, "careless")
    reference = lab.run(**keys, resources__workers=1)
    many_pieces(monkeypatch)
    federation = lab.federation(**keys, resources__workers=workers)
    lab.cluster.faults.kill_at("train", 3)
    assert federation.run().digest == reference.digest


def test_the_code_of_a_client_update_is_part_of_the_identity(lab: Lab, user_code: str) -> None:
    with_code = lab.federation(**own(user_code, "plain_sgd"))
    assert with_code.code_digest != lab.federation().code_digest
    assert with_code.identity != lab.federation(**own(user_code, "careless")).identity


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("raising", "RuntimeError: I do not like this client", id="it raises"),
        pytest.param("wordy", "TypeError|ValueError", id="it returns words"),
        pytest.param("hoarding", "client.memory holds arrays by name", id="it keeps words"),
    ],
)
def test_a_client_update_that_goes_wrong_names_the_client(
    name: str, words: str, lab: Lab, user_code: str
) -> None:
    federation = lab.federation(**own(user_code, name))
    with pytest.raises(ClientFailed, match=words) as caught:
        federation.run()
    assert caught.value.client_id in federation
    assert "round 1" in str(caught.value)


def test_a_client_update_whose_loss_is_no_number_is_refused(lab: Lab, user_code: str) -> None:
    with pytest.raises(NoUsableUpdate):
        lab.run(**own(user_code, "lossless"))


@pytest.mark.parametrize(
    "named", ["nowhere:client_update", "users_models_for_tests:nothing", "no colon"]
)
def test_a_client_update_that_is_not_there_is_refused_before_anything_starts(
    named: str, lab: Lab, user_code: str
) -> None:
    with pytest.raises(ConfigError, match=r"training\.client_update"):
        lab.federation(training__client_update=named)


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
        merged = node.aggregate([result])
        for name, array in result.state.items():  # to the rounding of its move, in float32
            moved = np.abs(array - federation.state[name]).max(initial=0.0)
            np.testing.assert_allclose(merged[name], array, rtol=1.2e-7, atol=1.2e-7 * moved)
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
