"""Runs on data that lies at sites: who the clients are, what they give, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import site_data
from federations import Log, raising
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Event, Federation
from fedpilot.federated.core.population.federated_data.errors import NotHere
from fedpilot.federated.errors import ConfigError, DataUnusable, RunRefused
from fedpilot.mediator.errors import PolicyRefused

EAST = {"anna": 20, "ben": 12, "cleo": 9}
WEST = {"dora": 15, "emil": 11}
OPEN = {"ids": "exact", "counts": "exact"}
Make = Callable[..., Federation]


class Hospitals:
    """Sites on one fake cluster, each with data of its own."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self.folder = folder
        self._undo = undo
        self.log = Log()
        self.observers: list[Callable[[Event], None]] = [self.log]

    def federation(self, *sections: dict[str, Any], **keys: Any) -> Federation:
        files = [
            site_data.site_file(self.folder / f"{number}.yaml", "scans", section)
            for number, section in enumerate(sections)
        ]
        names = ["east", "west", "north"][: len(files)]
        made = Federation(
            site_data.config(files, self.folder / "runs", **keys),
            observers=self.observers,
            cluster=FakeCluster([fake_machine("a", CPU=8)]),
            sites=names,
        )
        self._undo.callback(made.close)
        return made

    def two(self, disclose: dict[str, str] | None = None, **keys: Any) -> Federation:
        told = {"disclose": disclose or {}}
        east = site_data.column(self.folder / "east", EAST, **told)
        west = site_data.files(self.folder / "west", WEST, **told)
        return self.federation(east, west, **keys)


@pytest.fixture
def hospitals(tmp_path: Path) -> Any:
    with ExitStack() as undo:
        yield Hospitals(tmp_path, undo)


@pytest.mark.parametrize(
    ("disclose", "names"),
    [
        pytest.param({}, [f"east/client_{i}" for i in range(3)]
                     + [f"west/client_{i}" for i in range(2)], id="numbered by their sites"),
        pytest.param(OPEN, ["anna", "ben", "cleo", "dora", "emil"], id="their own ids"),
    ],
)  # fmt: skip
def test_the_population_is_what_sites_declare(
    disclose: dict[str, str], names: list[str], hospitals: Hospitals
) -> None:
    federation = hospitals.two(disclose)
    assert list(federation) == names
    assert [federation[name].index for name in names] == list(range(5))
    assert federation.start().nodes.why_there(3) == (
        "west, since its data is at site west and may not move"
    )


def test_a_run_trains_on_what_lies_at_the_sites(hospitals: Hospitals) -> None:
    result = hospitals.two(federation__clients_per_round=5).run()
    assert [row["clients"] for row in result.rows] == [5] * 3
    assert [row["samples"] for row in result.rows] == [67] * 3
    assert result.rows[-1]["accuracy"] > 0.4


def test_the_same_union_gives_the_same_bits_wherever_it_lies(
    hospitals: Hospitals, tmp_path: Path
) -> None:
    apart = hospitals.two(OPEN).run()
    whole = site_data.column(tmp_path / "whole", {**EAST, **WEST}, disclose=OPEN)
    assert hospitals.federation(whole).run().digest == apart.digest


def test_a_client_is_the_same_whoever_else_takes_part(hospitals: Hospitals, tmp_path: Path) -> None:
    """Its site comes first in one federation and last in the other."""
    together = hospitals.two({"counts": "exact"})["west/client_1"].train()
    here = site_data.files(tmp_path / "west", WEST, disclose={"counts": "exact"})
    told = {"disclose": {"counts": "exact"}}
    others = {"zoe": 7, "zack": 9, "zita": 4, "zeno": 5}
    north = site_data.column(tmp_path / "north", others, **told)
    empty = site_data.column(tmp_path / "first", {"someone": 3}, **told)
    apart = hospitals.federation(empty, here, north)["west/client_1"].train()
    assert together.samples == apart.samples == WEST["emil"]
    assert all((together.state[n] == apart.state[n]).all() for n in together.state)


def test_movable_clients_that_all_sites_hold_are_there_once(
    hospitals: Hospitals, tmp_path: Path
) -> None:
    told = {"disclose": {"ids": "exact"}, "residency": "movable"}
    sections = [site_data.column(tmp_path / name, EAST, **told) for name in ("one", "two")]
    federation = hospitals.federation(*sections, federation__clients_per_round=2)
    assert list(federation) == list(EAST)
    result = federation.run()
    assert federation.nodes.why_there(0).startswith("east, since strategy 'capacity'")
    alone = site_data.column(tmp_path / "alone", EAST, disclose={"ids": "exact"})
    apart = hospitals.federation(alone, federation__clients_per_round=2).run()
    assert apart.digest == result.digest


def test_a_run_is_resumed_only_with_the_clients_that_it_had(
    hospitals: Hospitals, tmp_path: Path
) -> None:
    hospitals.two(OPEN, federation__clients_per_round=3).run(run_id="r")
    fewer = site_data.column(tmp_path / "fewer", EAST, disclose=OPEN)
    with pytest.raises(RunRefused, match="its data"):
        hospitals.federation(fewer, federation__clients_per_round=3).resume("r")


def relabelled(path: Path) -> None:
    """The same clients, with as many samples, and another label for one of these."""
    with np.load(path) as arrays:
        held = dict(arrays)
    held["y"][0] = (held["y"][0] + 1) % site_data.CLASSES
    np.savez(path, **held)


@pytest.mark.parametrize("file", ["east/all.npz", "west/emil.npz"])
def test_a_run_is_resumed_only_with_the_content_that_it_had(
    file: str, hospitals: Hospitals, tmp_path: Path
) -> None:
    """What sites disclose is the same; each of them remembers by itself."""
    sections = (
        site_data.column(tmp_path / "east", EAST, disclose=OPEN),
        site_data.files(tmp_path / "west", WEST, disclose=OPEN),
    )
    whole = hospitals.federation(*sections).run()
    hospitals.observers = [raising(KeyboardInterrupt(), "round_finished", round=1)]
    with pytest.raises(KeyboardInterrupt):
        hospitals.federation(*sections).run(run_id="r")
    hospitals.observers = []
    original = (tmp_path / file).read_bytes()
    relabelled(tmp_path / file)
    site = file.partition("/")[0]
    with pytest.raises(DataUnusable, match=f"at site {site}: its content is not what it was when"):
        hospitals.federation(*sections).resume("r")
    (tmp_path / file).write_bytes(original)
    assert hospitals.federation(*sections).resume("r").digest == whole.digest


def test_whoever_coordinates_has_no_samples(hospitals: Hospitals) -> None:
    federation = hospitals.two()
    data = federation.loaded.inputs.data
    assert not data.x.any()
    with pytest.raises(NotHere, match="east/client_2"):
        data.partition.indices(2)
    assert federation.nodes.show(2)["samples"] is None
    assert federation.describe().samples_min is None


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        pytest.param({"evaluation__where": "coordinator", "evaluation__clients": "sampled"},
                     "the coordinator has no samples", id="judged by the coordinator"),
        pytest.param({"data__dataset_type": "digits"}, "`dataset_type` with `from: sites`",
                     id="a loader of the run's own"),
        pytest.param({"data__dirichlet_beta": 1.0}, "`dirichlet_beta` with `from: sites`",
                     id="a partition"),
        pytest.param({"data__dataset": None}, "without `dataset`", id="no data set"),
        pytest.param({"data__dataset": "x-rays"}, "no site declares data set x-rays",
                     id="one that nobody has"),
        pytest.param({"data__from": None}, "without `from: sites`", id="no from"),
        pytest.param({"federation__number_of_clients": 5}, "5 clients with `data.from: sites`",
                     id="a population"),
        pytest.param({"federation__clients_per_round": 9}, "out of a population of 5",
                     id="more clients than sites have"),
        pytest.param({"sites__site_files": []}, "no site is known that declares data",
                     id="no declarations"),
        pytest.param({"outputs__client_digests": True}, "do not leave site east, west",
                     id="digests of clients that are not named"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_before_anything_starts(
    keys: dict[str, Any], found: str, hospitals: Hospitals
) -> None:
    with pytest.raises(ConfigError, match=found):
        hospitals.two(**keys)


def test_sites_of_different_kinds_are_refused_by_name(hospitals: Hospitals, tmp_path: Path) -> None:
    east = site_data.column(tmp_path / "e", EAST)
    other = site_data.column(tmp_path / "w", WEST)
    other["schema"]["num_classes"] = 4
    with pytest.raises(ConfigError, match=r"east: float32 .* 3 classes; west: .* 4 classes"):
        hospitals.federation(east, other)


def test_one_name_for_two_clients_is_refused(hospitals: Hospitals, tmp_path: Path) -> None:
    sections = [
        site_data.column(tmp_path / name, {"anna": 5}, disclose={"ids": "exact"}) for name in "ab"
    ]
    with pytest.raises(ConfigError, match="'anna' at site east and at site west"):
        hospitals.federation(*sections)


def test_a_site_checks_that_its_data_is_as_declared(hospitals: Hospitals, tmp_path: Path) -> None:
    federation = hospitals.two()
    site_data.files(tmp_path / "west", {"late": 5})
    with pytest.raises(DataUnusable, match="at site west: its clients are not those") as raised:
        federation.start()
    assert str(tmp_path) not in str(raised.value)


def test_data_of_another_shape_is_not_loaded(hospitals: Hospitals, tmp_path: Path) -> None:
    federation = hospitals.two()
    np.savez(tmp_path / "west" / "emil.npz", x=np.zeros((4, 2), dtype="f4"), y=np.zeros(4, int))
    with pytest.raises(DataUnusable, match="at site west") as raised:
        federation.start()
    assert "emil" not in str(raised.value)


def test_a_single_client_is_not_trained_where_its_samples_are_not_counted(
    hospitals: Hospitals,
) -> None:
    federation = hospitals.two({"ids": "exact"})
    with pytest.raises(PolicyRefused, match=r"site east .* datasets.scans.disclose.counts"):
        federation["anna"].train()


def test_sites_without_the_data_set_take_no_part(hospitals: Hospitals, tmp_path: Path) -> None:
    east = site_data.column(tmp_path / "east", EAST)
    files = [
        site_data.site_file(tmp_path / "0.yaml", "scans", east),
        site_data.site_file(tmp_path / "1.yaml", "x-rays", east),
    ]
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    config = site_data.config(files, tmp_path / "runs", federation__clients_per_round=3)
    with Federation(config, cluster=cluster) as federation:
        federation.run()
        assert federation.gang.mediator is not None
        assert federation.gang.mediator.membership.sites == ("site_1",)
