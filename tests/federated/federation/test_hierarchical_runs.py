"""A federation of groups has the same bits whoever trains them, and its groups average first."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import site_data
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
from fedpilot.cli import main
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import ConfigError, Federation, RunResult
from fedpilot.federated.core.state import digest
from fedpilot.federated.core.sums.partial import Partial
from fedpilot.federated.engine.journal import Journal
from fedpilot.federated.engine.trainers.group_rounds import GroupRounds
from fedpilot.federated.errors import DataUnusable
from fedpilot.federated.federation.setup.global_model import GlobalModel
from fedpilot.federated.federation.verify import Replay
from fedpilot.mediator import InProcessSite
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


@pytest.mark.parametrize("pieces", ["as they are", "many"])
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_however_many_workers_give_the_same_bits(
    workers: int, pieces: str, lab: Lab, grouped: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pieces == "many":
        many_pieces(monkeypatch)
    result = lab.run(**by_groups(resources__workers=workers))
    assert result.digest == grouped.digest
    assert timeless(result.rows) == timeless(grouped.rows)


@pytest.mark.parametrize("assignment", ["capacity", "round_robin"])
def test_sites_give_the_same_bits_as_one(assignment: str, lab: Lab) -> None:
    keys = by_groups(5, federation__assignment=assignment, resources__workers=1)
    alone = lab.run(**keys)
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    with Federation(lab.config(**keys), cluster=cluster, sites=SITES) as federation:
        apart = federation.run()
    assert apart.digest == alone.digest
    assert timeless(apart.rows) == timeless(alone.rows)


@pytest.mark.parametrize("execution", ["folded", "compiled"])
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


@pytest.mark.parametrize("nth", [1, 3])
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


@pytest.mark.parametrize("amid", [False, True], ids=["before its work", "amid its work"])
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
    assert clients <= len(federation.cohort(1)) <= 2 * clients


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


# -- groups ---------------------------------------------------------------------------------------


def test_groups_by_label_hold_those_with_most_of_it(lab: Lab) -> None:
    federation = lab.federation(**by_groups(hierarchy__groups={"by": "label"}))
    groups, data = federation.groups, federation._loaded.materials.data
    assert groups is not None
    assert groups.names == ("label 0", "label 1", "label 2")
    for group in range(3):
        for client in groups.of(group).tolist():
            counts = np.bincount(data.y[data.partition.indices(client)], minlength=3)
            assert counts[group] == counts.max()


def hospitals(folder: Path) -> dict[str, Any]:
    """A file of samples whose clients are patients of hospitals."""
    rng = np.random.default_rng(1)
    patients = np.repeat([f"p{i}" for i in range(8)], 10)
    np.savez(
        folder / "all.npz",
        x=rng.normal(size=(80, 4)),
        y=rng.integers(0, 3, 80),
        client_ids=patients,
        hospital=np.repeat(["north", "east", "east", "west"], 20),
    )
    return {
        "dataset_type": "npz",
        "options": {"path": str(folder / "all.npz"), "columns": ["hospital"]},
        "data_distribution_kind": "natural",
    }


def with_data(lab: Lab, data: dict[str, Any], **keys: Any) -> Federation:
    config = lab.config(**by_groups(**keys), federation__number_of_clients=None)
    config["data"] = data
    return Federation(config, cluster=FakeCluster([fake_machine("a", CPU=4)]))


def test_groups_by_a_column_of_the_data(lab: Lab, tmp_path: Path) -> None:
    rule = {"by": "column", "column": "hospital"}
    with with_data(lab, hospitals(tmp_path), hierarchy__groups=rule) as federation:
        groups = federation.groups
        assert groups is not None
        assert groups.names == ("east", "north", "west")
        assert [groups.of(number).tolist() for number in range(3)] == [[2, 3, 4, 5], [0, 1], [6, 7]]
        assert federation.run().rows[-1]["clients"] == 8


@pytest.mark.parametrize(
    ("rule", "key", "found"),
    [
        pytest.param(
            {"by": "column", "column": "ward"}, "hierarchy.groups.column", "ward", id="no column"
        ),
        pytest.param(
            {"by": "blocks", "count": 9}, "hierarchy.groups.count", "9 groups of 8", id="too many"
        ),
    ],
)
def test_groups_that_the_data_do_not_make_are_refused(
    rule: dict[str, Any], key: str, found: str, lab: Lab, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        with_data(lab, hospitals(tmp_path), hierarchy__groups=rule)
    (problem,) = refused.value.problems
    assert problem.key == key
    assert found in problem.found


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        pytest.param({"federation__topology": "star"}, "federation.topology", id="a star"),
        pytest.param(
            {"federation__clients_per_round": 3}, "federation.clients_per_round", id="a cohort"
        ),
        pytest.param(
            {"federation__client_sampling_rate": 0.5},
            "federation.client_sampling_rate",
            id="a share of the population",
        ),
        pytest.param(
            {"federation__aggregation_strategy": "median"},
            "federation.aggregation_strategy",
            id="an algorithm that needs every update",
        ),
        pytest.param(
            {"training__client_update": "a:b"}, "training.client_update", id="clients of memory"
        ),
        pytest.param(
            {"participation__over_sampling": 0.5}, "participation.over_sampling", id="more of all"
        ),
        pytest.param(
            {"outputs__client_digests": True}, "outputs.client_digests", id="digests of clients"
        ),
        pytest.param(
            {"hierarchy__groups": {"by": "blocks"}}, "hierarchy.groups.count", id="no count"
        ),
        pytest.param(
            {"hierarchy__groups": {"by": "label", "count": 3}},
            "hierarchy.groups.count",
            id="a count of labels",
        ),
        pytest.param(
            {"hierarchy__groups": {"by": "column"}}, "hierarchy.groups.column", id="no column"
        ),
        pytest.param(
            {"hierarchy__groups": {"by": "blocks", "count": 13}},
            "hierarchy.groups.count",
            id="more blocks than clients",
        ),
        pytest.param(
            {"hierarchy__clients_per_round": 2, "hierarchy__client_sampling_rate": 0.5},
            "hierarchy.client_sampling_rate",
            id="two ways of sampling",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    keys: dict[str, Any], key: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError) as refused:
        lab.federation(**{**by_groups(), **keys})
    assert [problem.key for problem in refused.value.problems] == [key]


def test_check_says_what_groups_there_are(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(lab.config(**by_groups(5))))
    told = CliRunner().invoke(main, ["check", str(path)]).output
    assert "# 5 groups by blocks, of 2 to 3 clients: 2 rounds of each" in told
    facts = json.loads(CliRunner().invoke(main, ["check", str(path), "--json"]).output)
    assert facts["groups"] == {
        "by": "blocks", "count": 5, "clients": [2, 3], "rounds_per_group": 2
    }  # fmt: skip


# -- data at sites --------------------------------------------------------------------------------

EAST = {"anna": 20, "ben": 12, "cleo": 9, "dan": 7}
WEST = {"dora": 15, "emil": 11, "fay": 8}


def with_wards(folder: Path, clients: dict[str, int], **told: Any) -> dict[str, Any]:
    """A site's data with a column that its admin declares."""
    section = site_data.column(folder, clients, **told)
    with np.load(folder / "all.npz") as arrays:
        held = dict(arrays)
    wards = [str(sum(map(ord, name)) % 2) for name in held["patient"].tolist()]
    np.savez(folder / "all.npz", **held, ward=np.array(wards))
    return {**section, "options": {"columns": ["ward"]}}


def at_sites(folder: Path, *sections: dict[str, Any], **keys: Any) -> Federation:
    files = [
        site_data.site_file(folder / f"{number}.yaml", "scans", section)
        for number, section in enumerate(sections)
    ]
    config = site_data.config(files, folder / "runs", **{**by_groups(), **keys})
    names = ["east", "west"][: len(files)]
    return Federation(config, cluster=FakeCluster([fake_machine("a", CPU=8)]), sites=names)


LABEL = {"hierarchy__groups": {"by": "label"}}
WARD = {"hierarchy__groups": {"by": "column", "column": "ward"}}


@pytest.mark.parametrize("keys", [LABEL, WARD], ids=["label", "column"])
def test_groups_lie_within_the_sites_that_have_the_data(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    def federation(workers: int) -> Federation:
        east = with_wards(tmp_path / "east", EAST)
        west = with_wards(tmp_path / "west", WEST)
        return at_sites(tmp_path, east, west, **keys, resources__workers=workers)

    with federation(1) as one, federation(2) as two:
        first, second = one.run(), two.run()
    assert [row["clients"] for row in first.rows] == [7] * 2
    assert first.digest == second.digest
    assert timeless(first.rows) == timeless(second.rows)


def test_groups_of_clients_that_may_move_are_the_same_at_every_site(tmp_path: Path) -> None:
    told = {"disclose": {"ids": "exact"}, "residency": "movable"}
    sections = [with_wards(tmp_path / name, EAST, **told) for name in ("one", "two")]
    with at_sites(tmp_path, *sections, **WARD) as together:
        apart = together.run()
    alone = with_wards(tmp_path / "alone", EAST, disclose={"ids": "exact"})
    with at_sites(tmp_path, alone, **WARD) as federation:
        assert federation.run().digest == apart.digest


def test_a_column_that_a_site_does_not_declare_is_refused_by_its_name(tmp_path: Path) -> None:
    east = site_data.column(tmp_path / "east", EAST)
    with (
        at_sites(tmp_path, east, **WARD) as federation,
        pytest.raises(DataUnusable, match=r"site east: .*`ward`, which the data set was not"),
    ):
        federation.start()


def test_blocks_of_clients_at_sites_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hierarchy\.groups\.by"):
        at_sites(tmp_path, site_data.column(tmp_path / "east", EAST))


def test_a_sum_of_groups_tells_of_no_single_one(tmp_path: Path) -> None:
    """A site's answer is one sum, as large for any number of groups."""
    partials: list[Partial] = []
    with pytest.MonkeyPatch.context() as patch:
        original = Partial.from_wire

        def watched(header: Any, tensors: Any) -> Partial:
            partials.append(original(header, tensors))
            return partials[-1]

        patch.setattr(Partial, "from_wire", watched)
        with at_sites(tmp_path, with_wards(tmp_path / "east", EAST), **WARD) as federation:
            federation.run()
    assert {partial.clients for partial in partials} == {4}
    assert all(partial.updates is None for partial in partials)
