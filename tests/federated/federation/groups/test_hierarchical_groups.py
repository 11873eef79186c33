"""Groups come from labels, columns and sites, or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import site_data
from federations import (
    Lab,
    by_groups,
    timeless,
)
from fedpilot.cli import main
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import ConfigError, Federation
from fedpilot.federated.core.sums.partial import Partial
from fedpilot.federated.errors import DataUnusable

# -- groups ---------------------------------------------------------------------------------------


def test_groups_by_label_hold_those_with_most_of_it(lab: Lab) -> None:
    federation = lab.federation(**by_groups(hierarchy__groups={"by": "label"}))
    groups, data = federation.loaded.inputs.data.groups, federation.loaded.inputs.data
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
        groups = federation.loaded.inputs.data.groups
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
    assert "# 5 groups by blocks, of 2 to 3 clients: 2 rounds in each group" in told
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
