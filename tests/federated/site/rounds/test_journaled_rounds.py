"""A round that ended in the middle goes on from its journal: nothing is trained twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import (
    CLIENTS,
    COHORT,
    EXECUTIONS,
    Lab,
    Log,
    Undisturbed,
    in_time,
    one_by_one,
    raising,
    timeless,
)
from fedpilot.federated import RunResult, WorkersExhausted
from fedpilot.federated.engine.journal import Journal
from fedpilot.federated.engine.tensor_files import read_tensors
from fedpilot.federated.engine.trainers.sequential import SequentialTrainer
from fedpilot.federated.site.rounds.star_round import SiteRound
from fedpilot.federated.site.workers.node import FederatedNode
from pairings import paired


class Trained(list[tuple[int, int]]):
    """Every training of a client in this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        original = SequentialTrainer._client

        def train(trainer: Any, index: int, key: int, number: int, *rest: Any) -> Any:
            self.append((number, index))
            return original(trainer, index, key, number, *rest)

        patch.setattr(SequentialTrainer, "_client", train)


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
    monkeypatch.setattr("fedpilot.federated.site.rounds.surroundings.PROGRESS_S", 0.0)
    log = Log()
    result = lab.federation(log, **keys).resume("r")
    again = [client for number, client in trained if number == 2]
    assert len(again) == len(set(again) - done) == COHORT - len(done)
    if len(again) > 1:
        first = log.of("clients_done")[0]
        counts = {"round": 2, "done": len(done) + 1, "of": COHORT}
        assert {name: first[name] for name in counts} == counts
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
        if self.key.round_number == 2:
            self._site.journal.save(self.key, self._partial, np.concatenate(self._covered))
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


@pytest.mark.usefixtures("always_saving")
@pytest.mark.parametrize(
    ("undisturbed", "workers"), paired(EXECUTIONS, ["1", "2"]), indirect=["undisturbed"]
)
def test_a_round_of_many_pieces_goes_on_from_the_journal(
    workers: str, lab: Lab, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends in the middle of a round; what was saved is not trained again."""
    keys, reference = undisturbed
    one_by_one(monkeypatch)
    few = {"resources__workers": int(workers), "resources__worker_restarts": 0}
    for run in ("r0", "r1", "r2", "r3", "r4"):  # one may be over before a part is saved
        lab.cluster.faults._planned.clear()
        with monkeypatch.context() as patch, lab.federation(**keys, **few) as federation:
            dying_once_saved(lab, patch, 1)
            try:
                in_time(partial(federation.run, run_id=run))
            except WorkersExhausted:
                break
    else:
        pytest.fail("no run was interrupted in the middle of a round")
    saved, done = saved_in(lab.runs / run)
    assert 0 < len(done) < 9
    trained: list[tuple[int, set[int]]] = []
    original = FederatedNode.train

    def train(self: Any, attempt: Any, clients: Any, *rest: Any) -> Any:
        trained.append((attempt.round_number, set(clients.tolist())))
        return original(self, attempt, clients, *rest)

    monkeypatch.setattr(FederatedNode, "train", train)
    result = lab.federation(**keys).resume(run)
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
