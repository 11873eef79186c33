"""`runs verify` says where two runs part: at which round, in which clients and tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import COHORT, ROUNDS, SEED
from fedpilot.federated import FederatedError
from fedpilot.federated.core.proof.client_differences import ClientFacts, compare_clients
from fedpilot.federated.core.proof.run_comparison import Verdict
from fedpilot.federated.core.proof.state_differences import state_differences
from fedpilot.federated.federation.setup.global_model import GlobalModel
from fedpilot.federated.federation.verify import Replay
from fedpilot.federated.federation.verify.reading import read_clients
from records import Archive, edit_manifest, nudging, written_at_once


def test_two_runs_of_one_config_agree(archive: Archive, base: Path) -> None:
    archive.record("again", resources__workers=3)
    found = archive.verify("base", "again")
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.SAME
    assert not found.differs
    assert found.localised is None
    assert "base and again agree" in archive.text.getvalue()


def test_runs_of_different_length_agree_as_far_as_both_go(archive: Archive, base: Path) -> None:
    archive.record("longer", federation__rounds=ROUNDS + 2)
    found = archive.verify("base", "longer")
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.SAME_SO_FAR
    assert not found.differs
    assert "federation.rounds: 4 -> 6" in archive.text.getvalue()


def test_runs_that_are_judged_differently_differ(archive: Archive, base: Path) -> None:
    archive.record("judged", evaluation__where="sites")
    found = archive.verify("base", "judged")
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.OTHER_METRICS
    assert found.comparison.same_until == ROUNDS
    assert found.differs


def test_another_learning_rate_parts_at_the_first_round_in_every_client(
    archive: Archive, base: Path
) -> None:
    archive.record("slower", training__learning_rate=0.05)
    found = archive.verify("base", "slower", clients=2)
    assert found.comparison is not None
    assert (found.comparison.round_number, found.comparison.same_until) == (1, 0)
    assert found.comparison.keys == ("training.learning_rate: 0.1 -> 0.05",)
    localised = found.localised
    assert localised is not None
    assert localised.clients is not None
    assert localised.reproduced == {"base": True, "slower": True}
    assert len(localised.clients.differing) == localised.clients.compared == COHORT
    first, second, third, *_ = localised.clients.differing
    assert all(tensor.largest for tensor in (*first.tensors, *second.tensors))
    assert {tensor.name for tensor in third.tensors} == {"0.bias", "0.weight"}
    assert third.tensors[0].largest is None, "only so many are measured"
    assert "6 of 6 clients differ, base against slower; the first 2:" in archive.text.getvalue()
    assert {tensor.name for tensor in localised.tensors or ()} == {"0.bias", "0.weight"}


def test_another_seed_begins_with_another_model(archive: Archive, base: Path) -> None:
    archive.record("seed", run__random_seed=SEED + 1)
    found = archive.verify("base", "seed")
    assert found.comparison is not None
    assert (found.comparison.round_number, found.comparison.same_until) == (0, -1)
    assert found.localised is not None
    assert [tensor.name for tensor in found.localised.tensors or ()] == [
        "0.bias",
        "0.weight",
    ]
    assert archive.told == [], "no training is needed for that"


def test_another_model_is_told_by_its_shapes(archive: Archive) -> None:
    for name, width in (("narrow", 5), ("wide", 7)):
        archive.record(name, model__model_type="mlp", model__options={"hidden": [width]})
    found = archive.verify("narrow", "wide")
    assert found.localised is not None
    remarks = [tensor.remark for tensor in found.localised.tensors or ()]
    assert "float32 (5,) in one, float32 (7,) in the other" in remarks


def test_another_execution_parts_in_the_last_bits_of_clients(archive: Archive) -> None:
    keys = {"model__model_type": "mlp", "model__options": {"hidden": [32]}}
    archive.record("alone", **keys)
    archive.record("together", **keys, training__execution="folded")
    found = archive.verify("alone", "together")
    assert found.comparison is not None
    assert found.comparison.round_number == 1
    assert found.comparison.keys[0] == 'training.execution: "sequential" -> "folded"'
    assert found.localised is not None
    assert found.localised.reproduced == {"alone": True, "together": True}
    clients = found.localised.clients
    assert clients is not None
    assert clients.differing
    for client in clients.differing:
        assert client.tensors
        assert all(0 < (tensor.largest or 0) < 1e-6 for tensor in client.tensors)


def test_other_cohorts_say_who_is_only_in_one(archive: Archive, base: Path) -> None:
    archive.record("fewer", federation__clients_per_round=COHORT - 1)
    found = archive.verify("base", "fewer")
    assert found.localised is not None
    clients = found.localised.clients
    assert clients is not None
    assert clients.only_first
    assert not clients.differing
    assert "only in base: " in archive.text.getvalue()


def test_the_model_before_is_taken_from_a_checkpoint_or_trained_again(
    archive: Archive, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 4 parts, round 3 is kept; of the runs that part at round 2, round 1 is not."""
    for number, parts_at in (("late", 4), ("early", 2)):
        with monkeypatch.context() as patch, written_at_once():
            nudging(patch, parts_at)
            archive.record(number)
    found = archive.verify("base", "late")
    assert found.localised is not None
    assert found.localised.round_number == 4
    assert found.localised.reproduced == {"base": True, "late": False}
    assert [tensor.name for tensor in found.localised.tensors or ()] == ["0.bias"]
    assert any("which clients differ is not known" in note for note in found.localised.notes)
    found = archive.verify("early", "base")
    assert found.localised is not None
    assert found.localised.round_number == 2
    assert found.localised.reproduced == {"early": False, "base": True}
    assert found.localised.tensors is None


RECORDED: dict[str, Any] = {"outputs__client_digests": True}


@pytest.fixture
def nudged(archive: Archive, base: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A client of round 3, of which a run of the same identity has another last bit."""
    with archive.make(archive.config()) as federation:
        client = federation.loaded.cohort(3)[2]
    with monkeypatch.context() as patch:
        nudging(patch, 3, int(client.rpartition("_")[2]))
        archive.record("nudged", **RECORDED)
    return client


def test_recorded_clients_are_named_without_training(archive: Archive, nudged: str) -> None:
    archive.record("same", **RECORDED)
    found = archive.verify("same", "nudged", how=Replay.NONE)
    assert archive.told == []
    assert found.localised is not None
    assert found.localised.clients is not None
    (client,) = found.localised.clients.differing
    assert client.client == nudged
    assert [tensor.name for tensor in client.tensors] == ["0.bias"]
    assert "1 of 6 clients differ, same (as recorded) against nudged" in archive.text.getvalue()
    found = archive.verify("same", "nudged")
    assert found.localised is not None
    assert found.localised.reproduced == {"same": True, "nudged": False}


def test_clients_recorded_by_one_run_are_compared_with_training(
    archive: Archive, nudged: str
) -> None:
    found = archive.verify("base", "nudged")
    assert found.localised is not None
    assert found.localised.clients is not None
    (client,) = found.localised.clients.differing
    assert client.client == nudged
    assert found.localised.sides[0] == "nudged (as recorded)"
    assert f"{nudged}" in archive.text.getvalue()


def test_a_replay_of_one_run_names_the_recorded_clients_that_differ(
    archive: Archive, nudged: str
) -> None:
    found = archive.verify("nudged", how=Replay.ALL)
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert departure.round_number == 3
    assert departure.clients is not None
    assert [client.client for client in departure.clients.differing] == [nudged]


def test_recorded_clients_of_different_configs_need_no_training_on_that_side(
    archive: Archive, base: Path
) -> None:
    archive.record("slower", training__learning_rate=0.05)
    archive.record("same", **RECORDED)
    found = archive.verify("same", "slower")
    assert found.localised is not None
    assert found.localised.reproduced == {"same": None, "slower": True}
    assert found.localised.clients is not None
    assert len(found.localised.clients.differing) == COHORT


@pytest.mark.parametrize(
    "execution", [pytest.param("sequential", marks=pytest.mark.soak), "folded"]
)
def test_clients_trained_one_by_one_are_the_clients_that_a_round_recorded(
    execution: str, archive: Archive
) -> None:
    keys = {**RECORDED, "training__execution": execution, "model__model_type": "mlp"}
    archive.record("one", **keys)
    archive.record("other", **keys, federation__server_learning_rate=0.5)
    (archive.runs / "other" / "clients.jsonl").unlink()
    found = archive.verify("one", "other")
    assert found.localised is not None
    clients = found.localised.clients
    assert clients is not None
    assert clients.same
    assert clients.compared == COHORT
    assert "none of 6 clients on both sides differs" in archive.text.getvalue()


def test_a_record_that_is_not_whole_is_said(archive: Archive, nudged: str) -> None:
    path = archive.runs / "nudged" / "clients.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"round": 3' in line]
    path.write_text("".join(line + "\n" for line in lines[:2]))
    found = archive.verify("base", "nudged")
    assert found.localised is not None
    assert "nudged recorded 2 of the 6 clients of this round" in found.localised.notes


def test_a_spoilt_record_of_clients_is_said_and_not_used(archive: Archive, nudged: str) -> None:
    (archive.runs / "nudged" / "clients.jsonl").write_text("{}\n")
    found = archive.verify("base", "nudged")
    assert found.localised is not None
    assert found.localised.clients is None
    assert any("line 1, is no record of a client" in note for note in found.localised.notes)


def test_a_run_whose_code_or_data_are_gone_is_compared_as_far_as_records_go(
    archive: Archive, base: Path
) -> None:
    folder = archive.record("slower", training__learning_rate=0.05)
    edit_manifest(folder, data_digest="0" * 64)
    found = archive.verify("base", "slower")
    assert found.differs
    assert found.localised is not None
    assert found.localised.clients is None
    assert any("slower cannot be trained again here" in note for note in found.localised.notes)


def test_a_failure_of_training_again_is_kept_with_what_is_known(
    archive: Archive, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpilot.federated.federation.coordinator.coordinator import Coordinator

    def fail(self: Coordinator, model: GlobalModel) -> None:
        raise FederatedError("the machine is on fire")

    archive.record("slower", training__learning_rate=0.05)
    monkeypatch.setattr(Coordinator, "step", fail)
    found = archive.verify("base")
    assert isinstance(found.failure, FederatedError)
    assert not found.differs
    assert "the machine is on fire" in archive.text.getvalue()
    found = archive.verify("base", "slower")
    assert found.differs
    assert isinstance(found.failure, FederatedError)


def test_tensors_are_compared_bit_by_bit() -> None:
    first = {"a": np.zeros(3, "f4"), "b": np.float64(1.0), "c": np.arange(3), "d": np.ones(2)}
    second = {"a": -np.zeros(3, "f4"), "b": np.float64(1.5), "c": np.arange(3), "e": np.ones(2)}
    found = state_differences(first, second)  # type: ignore[arg-type]
    shown = [(d.name, d.elements, d.differing, d.largest, d.remark) for d in found]
    assert shown == [
        ("a", 3, 3, 0.0, ""),
        ("b", 1, 1, 0.5, ""),
        ("d", None, None, None, "only in the first"),
        ("e", None, None, None, "only in the second"),
    ]


def test_numbers_that_are_not_finite_are_counted_apart() -> None:
    first = {"a": np.array([1.0, np.nan, 2.0])}
    second = {"a": np.array([1.25, 0.0, 2.0])}
    (found,) = state_differences(first, second)
    assert (found.differing, found.largest, found.remark) == (2, 0.25, "1 not finite")
    assert state_differences(first, first) == ()


def test_clients_are_listed_in_the_order_of_their_numbers() -> None:
    facts = {f"client_{i}": ClientFacts(samples=i, fingerprints={"w": "0"}) for i in (10, 9, 1)}
    other = {name: ClientFacts(samples=3, fingerprints={"w": "0"}) for name in facts}
    found = compare_clients(facts, other)
    assert [each.client for each in found.differing] == ["client_1", "client_9", "client_10"]
    assert not found.same


def test_the_reader_of_clients_takes_a_later_line_for_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "clients.jsonl"
    lines = [
        {"round": 1, "client": "a", "tensors": {"w": "0"}, "samples": 2},
        {"round": 2, "client": "a", "tensors": {"w": "1"}, "samples": 2},
        {"round": 2, "client": "a", "tensors": {"w": "2"}, "samples": 2},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round": 2, "cl')
    assert read_clients(path, 2) == {"a": ClientFacts(samples=2, fingerprints={"w": "2"})}
