"""A federation gives the same bits whoever works or dies, and whichever way a chunk is computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
import pytest

from federations import (
    EXECUTIONS,
    Lab,
    Log,
    Undisturbed,
    computed,
    in_time,
    many_pieces,
    one_by_one,
    raising,
    timeless,
)
from fedpilot.federated import RunResult, models
from fedpilot.federated.core.state import digest
from fedpilot.federated.engine import journal as journal_module
from pairings import paired


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_however_many_workers_give_the_same_bits(
    workers: int, lab: Lab, reference: RunResult
) -> None:
    result = lab.run(resources__workers=workers)
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


@pytest.mark.parametrize(("nth", "workers"), paired([1, 2, 4, 5, 7], ["1", "3"]))
def test_a_worker_that_dies_in_a_round_changes_nothing(
    nth: int, workers: str, lab: Lab, reference: RunResult
) -> None:
    log = Log()
    federation = lab.federation(log, resources__workers=int(workers))
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


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(
    ("model", "execution"),
    [
        ("mlp", "compiled"),
        pytest.param("Leaky", "folded", marks=pytest.mark.soak),
        ("Unused", "folded"),
        ("Bag", "mapped"),
        ("Recurrent", "sequential"),
        pytest.param("Convolutional", "folded", marks=pytest.mark.soak),
    ],
)
def test_auto_gives_the_same_bits_whoever_works_and_dies(
    model: str, execution: str, lab: Lab, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that is slow beside many others, too, and on a machine of another size."""
    name = model if model == "mlp" else f"{user_code}:{model}"
    keys = {
        "model__model_type": name,
        "training__execution": "auto",
        "training__batch_size": 5,
        "federation__rounds": 2,
    }
    log = Log()
    whole = lab.run(log, **keys, resources__workers=1)
    assert [fields["execution"] for fields in log.of("execution_chosen")] == [execution]
    clock = time.thread_time
    monkeypatch.setattr(time, "thread_time", lambda: 1e3 * clock())
    monkeypatch.setattr("os.cpu_count", lambda: 512)
    monkeypatch.setattr("os.sysconf", lambda _name: 1)
    federation = lab.federation(**keys, resources__workers=3)
    lab.cluster.faults.kill_at("train", 2)
    again = federation.run()
    assert again.digest == whole.digest
    assert timeless(again.rows) == timeless(whole.rows)


@pytest.mark.parametrize(
    "workers", [3, *(pytest.param(count, marks=pytest.mark.soak) for count in (2, 4))]
)
@pytest.mark.parametrize(
    ("undisturbed", "pieces"),
    paired(EXECUTIONS, ["as they are", "many"]),
    indirect=["undisturbed"],
)
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


EARLY_AND_LATE = (1, 2, 3, 21)
DYING = {
    "train, nothing saved": ("train", False),
    "hand_up, nothing saved": ("hand_up", False),
    "train, all saved": ("train", True),
    "hand_up, all saved": ("hand_up", True),
}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("undisturbed", "dying"), paired(EXECUTIONS, list(DYING)), indirect=["undisturbed"]
)
@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(EARLY_AND_LATE, id="early and late calls"),
        pytest.param(range(1, 60), id="every call", marks=pytest.mark.soak),
    ],
)
def test_workers_that_die_at_any_call_change_nothing(
    calls: Sequence[int],
    workers: int,
    dying: str,
    lab: Lab,
    undisturbed: Undisturbed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also between pieces, while sums are kept at the workers and while they are handed up."""
    keys, reference = undisturbed
    method, saving = DYING[dying]
    many_pieces(monkeypatch)
    if saving:
        monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)
    killed = 0
    for nth in calls:
        log = Log()
        federation = lab.federation(log, **keys, resources__workers=workers)
        lab.cluster.faults.kill_at(method, nth)
        result = in_time(federation.run)
        federation.close()
        assert result.digest == reference.digest, f"{method} {nth}"
        assert timeless(result.rows) == timeless(reference.rows)
        if not log.of("worker_lost"):
            break
        killed += 1
    assert killed >= 3


@pytest.mark.parametrize(
    ("undisturbed", "nth"), paired(EXECUTIONS, ["3", "5", "7"]), indirect=["undisturbed"]
)
def test_a_worker_that_never_comes_back_takes_only_its_sum_along(
    nth: str, lab: Lab, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has trained for this round, and dies again whenever it is started."""
    keys, reference = undisturbed
    one_by_one(monkeypatch)
    federation = lab.federation(**keys, resources__workers=2, resources__worker_restarts=1)
    lab.cluster.faults.kill_at("train", int(nth))
    for start in (3, 4, 5):
        lab.cluster.faults.kill_at("hello", start)
    result = in_time(federation.run)
    assert result.digest == reference.digest


@pytest.mark.parametrize(
    ("undisturbed", "seed"),
    [
        pytest.param("compiled", 5),
        *(
            pytest.param(execution, seed, marks=pytest.mark.soak)
            for execution in EXECUTIONS
            for seed in range(4)
        ),
    ],
    indirect=["undisturbed"],
)
def test_workers_that_die_at_random_calls_all_the_time_change_nothing(
    seed: int, lab: Lab, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, reference = undisturbed
    many_pieces(monkeypatch)
    monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)
    dice = np.random.default_rng(seed)
    federation = lab.federation(**keys, resources__workers=3, resources__worker_restarts=1000)
    for method in ("train", "hand_up"):
        for nth in dice.choice(np.arange(1, 60), size=20, replace=False):
            lab.cluster.faults.kill_at(method, int(nth))
    assert in_time(federation.run).digest == reference.digest


def test_federations_in_two_threads_each_begin_with_the_model_of_their_own_seed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch draws the initial weights of all threads from one generator."""
    seeds = (1, 2, 3, 4)

    def begins_with(seed: int) -> str:
        with lab.federation(run__random_seed=seed) as federation:
            return digest(federation.loaded.inputs.initial)

    one_by_one = [begins_with(seed) for seed in seeds]
    build, all_at_once = models.build, Barrier(len(seeds))

    def slowly(*args: Any) -> Any:
        with suppress(BrokenBarrierError):
            all_at_once.wait(timeout=0.5)
        return build(*args)

    monkeypatch.setattr(models, "build", slowly)
    with ThreadPoolExecutor(len(seeds)) as threads:
        assert list(threads.map(begins_with, seeds)) == one_by_one
