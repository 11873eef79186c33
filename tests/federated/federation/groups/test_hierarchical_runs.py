"""A federation of groups has the same bits whoever trains them, and its groups average first."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from federations import (
    CLIENTS,
    Lab,
    Log,
    by_groups,
    computed,
    in_time,
    many_pieces,
    merged_by_hand,
    raising,
    timeless,
)
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation, RunResult
from fedpilot.federated.core.state import digest
from fedpilot.federated.engine.journal import Journal
from fedpilot.federated.engine.trainers.group_rounds import GroupRounds
from fedpilot.federated.federation.setup.global_model import GlobalModel
from fedpilot.federated.federation.verify import Replay
from fedpilot.mediator import InProcessSite
from pairings import paired
from records import Archive
from shaky_sites import Region, ShakySite

SITES = ("east", "north", "west")


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The run of one worker that nothing happened to."""
    with ExitStack() as undo:
        lab = Lab(tmp_path_factory.mktemp("grouped"), undo)
        return lab.run(**by_groups(resources__workers=1))


# -- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "pieces"), paired([2, 3, 8], ["as they are", "many"]))
def test_however_many_workers_give_the_same_bits(
    workers: int, pieces: str, lab: Lab, grouped: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pieces == "many":
        many_pieces(monkeypatch)
    result = lab.run(**by_groups(resources__workers=workers))
    assert result.digest == grouped.digest
    assert timeless(result.rows) == timeless(grouped.rows)


@pytest.mark.parametrize(
    "assignment", [pytest.param("capacity", marks=pytest.mark.soak), "round_robin"]
)
def test_sites_give_the_same_bits_as_one(assignment: str, lab: Lab) -> None:
    keys = by_groups(5, federation__assignment=assignment, resources__workers=1)
    alone = lab.run(**keys)
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    with Federation(lab.config(**keys), cluster=cluster, sites=SITES) as federation:
        apart = federation.run()
    assert apart.digest == alone.digest
    assert timeless(apart.rows) == timeless(alone.rows)


@pytest.mark.parametrize("execution", [pytest.param("folded", marks=pytest.mark.soak), "compiled"])
def test_whichever_way_a_chunk_is_computed_the_bits_do_not_depend_on_who_does(
    execution: str, lab: Lab
) -> None:
    keys = computed(execution, **by_groups(hierarchy__clients_per_round=2))
    one, two = (lab.run(**keys, resources__workers=workers) for workers in (1, 2))
    assert one.digest == two.digest
    assert one.rows[-1]["train_loss"] < one.rows[0]["train_loss"]


@pytest.mark.parametrize("model", ["WithBatchNorm", "WithScalar"])
def test_buffers_and_scalars_are_averaged_in_groups_too(
    model: str, lab: Lab, user_code: str
) -> None:
    keys = {
        "model__model_type": f"{user_code}:{model}",
        "training__learning_rate": 0.2,
        "data__data_distribution_kind": "iid",  # BatchNorm cannot train on a last batch of one
        "data__dirichlet_beta": None,
    }
    one, three = (lab.run(**by_groups(**keys, resources__workers=count)) for count in (1, 3))
    assert one.digest == three.digest
    star = lab.run(**keys, federation__clients_per_round=None, federation__rounds=2)
    assert lab.run(**by_groups(steps=1, **keys)).digest == star.digest != one.digest


@pytest.mark.parametrize("nth", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_the_group_of_a_worker_that_dies_is_trained_again(
    nth: int, lab: Lab, grouped: RunResult
) -> None:
    log = Log()
    federation = lab.federation(log, **by_groups())
    lab.cluster.faults.kill_at("train", nth)
    result = federation.run()
    assert result.digest == grouped.digest
    assert timeless(result.rows) == timeless(grouped.rows)
    assert len(log.of("worker_lost")) == 1


def test_a_run_that_was_interrupted_ends_in_the_same_bits(lab: Lab, grouped: RunResult) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **by_groups()).run(run_id="r")
    resumed = lab.federation(**by_groups(resources__workers=3)).resume("r")
    assert resumed.digest == grouped.digest
    assert timeless(resumed.rows) == timeless(grouped.rows)


@pytest.mark.usefixtures("always_saving")
def test_groups_in_the_journal_are_not_trained_again(
    lab: Lab, grouped: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_pieces(monkeypatch)
    save = Journal.save

    def once(self: Journal, key: Any, partial: Any, done: Any) -> None:
        save(self, key, partial, done)
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save", once)
        with pytest.raises(OSError, match="the disk is gone"):
            in_time(lambda: lab.federation(**by_groups(), resources__workers=1).run(run_id="r"))
    trained: list[int] = []
    original = GroupRounds.start

    def counting(self: Any, group: int, round_number: int, *rest: Any) -> Any:
        if round_number == 1:
            trained.append(group)
        return original(self, group, round_number, *rest)

    monkeypatch.setattr(GroupRounds, "start", counting)
    resumed = lab.federation(**by_groups(), resources__workers=1).resume("r")
    assert resumed.digest == grouped.digest
    assert 0 < len(trained) < 4


def test_it_is_verified_by_training_it_again(archive: Archive) -> None:
    archive.record("r", **by_groups())
    found = archive.verify("r", how=Replay.ALL)
    assert found.failure is None
    assert not found.differs


def test_two_runs_are_told_apart_without_training_single_clients(archive: Archive) -> None:
    archive.record("a", **by_groups())
    archive.record("b", **by_groups(training__learning_rate=0.2))
    archive.verify("a", "b")
    assert "train from their group's model" in archive.text.getvalue()


# -- sites that go --------------------------------------------------------------------------------


@pytest.fixture
def region(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Region:
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", ShakySite)
    monkeypatch.setattr(ShakySite, "moments", {})
    return Region(archive)


@pytest.mark.parametrize(
    "amid",
    [
        pytest.param(False, id="before its work", marks=pytest.mark.soak),
        pytest.param(True, id="amid its work"),
    ],
)
def test_groups_of_a_lost_site_are_trained_elsewhere_as_wholes(
    amid: bool, archive: Archive, region: Region
) -> None:
    keys = by_groups(6)
    reference = archive.run(**keys, resources__workers=1)
    result = in_time(region.federation({"west": {1}}, amid=amid, **keys).run)
    assert [event["site"] for event in region.log.of("site_lost")] == ["west"]
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


def test_a_round_without_some_groups_is_the_same_when_it_is_run_again(
    archive: Archive, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = by_groups(
        6,
        participation__quorum=0.5,
        participation__replacement=False,
        participation__wait_for_sites_s=0,
    )
    with region.federation({"west": {0}}, **keys) as federation:
        result = in_time(lambda: federation.run(run_id="r"))
    assert [row["clients"] for row in result.rows] == [8, 8], "of groups of two at two sites"
    record = json.loads((archive.runs / "r/journal/round-000001.counted.json").read_text())
    assert record["clients"] == 8
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", InProcessSite)
    found = archive.verify("r", how=Replay.ALL)
    assert found.failure is None
    assert not found.differs


# -- what it computes -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, CLIENTS])
def test_with_one_round_to_a_group_it_is_the_star_of_all_clients(count: int, lab: Lab) -> None:
    star = lab.run(federation__clients_per_round=None, federation__rounds=2)
    groups = lab.run(**by_groups(count, steps=1))
    assert groups.digest == star.digest
    assert timeless(groups.rows) == timeless(star.rows)


def test_with_more_it_is_not(lab: Lab) -> None:
    made = [by_groups(count, federation__rounds=1) for count in (1, 3, CLIENTS)]
    digests = {lab.run(**keys).digest for keys in made}
    assert len(digests) == 3


def test_a_round_of_two_groups_by_hand(lab: Lab) -> None:
    """Each client trains from the first model, then from that of its group."""
    keys = by_groups(2, federation__rounds=1)
    with lab.federation(**keys) as federation:
        initial = federation.state
        result = federation.run()
        found = federation.state
    with lab.federation(**keys) as federation:
        halves = [[federation.client_id(i) for i in part] for part in (range(6), range(6, 12))]
        between = []
        for half in halves:
            first = [federation[client].train() for client in half]
            mean = merged_by_hand(initial, first)
            between.append({name: mean[name].astype(initial[name].dtype) for name in initial})
        federation.stand_at(GlobalModel(1, initial, {}, digest(initial)))
        second = [
            federation[client].train(model)
            for half, model in zip(halves, between, strict=True)
            for client in half
        ]
    expected = merged_by_hand(initial, second)
    for name in initial:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)
    (row,) = result.rows
    assert row["clients"] == CLIENTS
    assert row["samples"] == sum(each.samples for each in second)


@pytest.mark.parametrize(
    ("keys", "clients"),
    [
        pytest.param({"hierarchy__clients_per_round": 2}, 8, id="two of each group"),
        pytest.param({"hierarchy__clients_per_round": 99}, 12, id="as many as there are"),
        pytest.param({"hierarchy__client_sampling_rate": 0.4}, 4, id="a share of each group"),
    ],
)
def test_some_of_each_group_train(keys: dict[str, Any], clients: int, lab: Lab) -> None:
    federation = lab.federation(**by_groups(**keys))
    result = federation.run()
    assert [row["clients"] for row in result.rows] == [clients] * 2
    assert federation.cohort_size == clients
    assert clients <= len(federation.loaded.cohort(1)) <= 2 * clients


def test_judging_at_the_sites_asks_everybody(lab: Lab) -> None:
    keys = by_groups(federation__rounds=1)
    sampled, everybody = (
        lab.run(**keys, evaluation__where="sites", evaluation__clients=clients)
        for clients in ("sampled", "all")
    )
    assert timeless(sampled.rows) == timeless(everybody.rows)


def test_clients_that_are_not_finite_are_named_once(lab: Lab, user_code: str) -> None:
    keys = {
        "model__model_type": f"{user_code}:Explosive",
        "model__options": {"limit": 3.0},
        **by_groups(steps=3),
    }
    log = Log()
    one = lab.run(log, **keys, resources__workers=1)
    refused = [(event["round"], event["client"]) for event in log.of("update_refused")]
    assert refused
    assert len(set(refused)) == len(refused)
    for row in one.rows:
        named = [client for number, client in refused if number == row["round"]]
        assert row["refused"] == len(named)
        assert row["clients"] == CLIENTS - len(named)
    assert lab.run(**keys, resources__workers=3).digest == one.digest
