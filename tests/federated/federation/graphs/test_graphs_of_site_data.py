"""Graphs over data that lies at sites: clients stay with their data, and bits depend on no site."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import site_data
from federations import ROUNDS, Log, in_time, on_a_graph, raising
from fedpilot.cli import main
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Event, Federation, RunResult
from fedpilot.federated.core.planning.document import document_of
from fedpilot.federated.core.planning.plan import planned
from fedpilot.federated.core.rounds.participation import TooFewSites
from fedpilot.federated.errors import ConfigError
from fedpilot.federated.federation.report.plan_table import plan_table
from fedpilot.federated.federation.setup.planning import inputs_of_plan
from fedpilot.federated.federation.verify import Replay
from fedpilot.federated.site.states.client_states import ClientStates
from fedpilot.mediator.core.assignment import ClientMove, MoveVerdict, Reassignment
from fedpilot.mediator.errors import PolicyRefused
from fedpilot.mediator.federation.membership import SiteMembership
from graph_runs import digests_over
from records import Archive
from shaky_sites import ShakySite

AT = {
    "site_1": {"anna": 20, "ben": 12, "cleo": 9, "dora": 15},
    "site_2": {"emil": 11, "faye": 8, "gus": 10, "hans": 14},
    "site_3": {"ina": 6, "jan": 13, "kim": 7, "lea": 16},
}
"""In the order of their names, so that one process counts them alike."""
EVERYBODY = {client: samples for clients in AT.values() for client, samples in clients.items()}
OPEN = {"ids": "exact", "counts": "exact"}
SITES = "fedpilot.federated.federation.sites.sources.InProcessSite"
GRAPHS: dict[str, dict[str, Any]] = {
    "ring": {},
    "matching": {},
    "torus": {"strategy": "push_sum"},
    "k_connected": {"graph__degree": 4, "graph__mixing_steps": 3},
}


class Hospitals:
    """Three sites on one fake cluster, each with four clients."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self.folder = folder
        self._undo = undo

    def config(self, disclose: dict[str, str] = OPEN, **keys: Any) -> dict[str, Any]:
        files = [
            site_data.site_file(
                self.folder / f"{site}.yaml",
                "scans",
                site_data.column(self.folder / site, clients, disclose=disclose),
            )
            for site, clients in AT.items()
        ]
        return site_data.config(files, self.folder / "runs", **on_a_graph(**keys))

    def federation(self, *observers: Callable[[Event], None], **keys: Any) -> Federation:
        return self.made(self.config(**keys), observers)

    def made(
        self, config: dict[str, Any], observers: Sequence[Callable[[Event], None]] = ()
    ) -> Federation:
        cluster = FakeCluster([fake_machine("a", CPU=16)])
        made = Federation(config, observers=observers, cluster=cluster)
        self._undo.callback(made.close)
        return made

    def in_one_process(self, **keys: Any) -> RunResult:
        """The same clients, as a simulation has them."""
        parts = [site_data.rows(client, samples) for client, samples in EVERYBODY.items()]
        np.savez(
            self.folder / "whole.npz",
            x=np.concatenate([x for x, _ in parts]),
            y=np.concatenate([y for _, y in parts]),
            client_ids=np.repeat(list(EVERYBODY), list(EVERYBODY.values())),
        )
        config = self.config(**keys)
        config["sites"] = {}
        config["data"] = {
            "dataset_type": "npz",
            "options": {"path": str(self.folder / "whole.npz")},
            "data_distribution_kind": "natural",
            "test_fraction": 0.0,
        }
        return in_time(self.made(config).run)  # type: ignore[no-any-return]


@pytest.fixture
def hospitals(tmp_path: Path) -> Any:
    with ExitStack() as undo:
        yield Hospitals(tmp_path, undo)


@pytest.mark.parametrize(
    "name",
    [
        *("ring", "torus"),
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("matching", "k_connected")),
    ],
)
def test_the_bits_are_those_of_the_same_data_in_one_process(
    name: str, hospitals: Hospitals
) -> None:
    keys = {"name": name, **GRAPHS[name]}
    alone = hospitals.in_one_process(**keys)
    apart = in_time(hospitals.federation(**keys).run)
    assert apart.digest == alone.digest
    assert digests_over(apart.folder) == digests_over(alone.folder)
    assert [row["node_accuracy"] for row in apart.rows] == [
        row["node_accuracy"] for row in alone.rows
    ]


def at_sites(run: Path, after: int = ROUNDS) -> dict[str, list[int]]:
    """Whose models each site has."""
    found = {}
    for file in (run / "journal").glob("*.clients.sqlite"):
        with closing(ClientStates(file)) as states:
            found[file.name.partition(".")[0]] = sorted(states.load(range(12), after + 1))
    return found


@pytest.mark.parametrize(
    "assignment",
    [
        "locality",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("capacity", "round_robin")),
    ],
)
def test_no_strategy_moves_a_client_whose_data_may_not_move(
    assignment: str, hospitals: Hospitals
) -> None:
    """On this graph another division would cut fewer edges."""
    edges = [(a, b) for a in range(12) for b in range(a + 3, 12, 3)] + [(0, 1), (1, 2)]
    (hospitals.folder / "three.edges").write_text("\n".join(f"{a} {b}" for a, b in edges))
    keys = {
        "name": "custom",
        "graph__file": str(hospitals.folder / "three.edges"),
        "federation__assignment": assignment,
    }
    federation = hospitals.federation(**keys)
    run = in_time(federation.run)
    assert at_sites(run.folder) == {
        site: list(range(4 * place, 4 * place + 4)) for place, site in enumerate(AT)
    }
    assert federation.nodes.why_there(5) == (
        "site_2, since its data is at site site_2 and may not move"
    )


def test_a_plan_counts_the_clients_that_stay(hospitals: Hospitals) -> None:
    federation = hospitals.federation()
    plan = planned(inputs_of_plan(federation.loaded, "r"), [], dict.fromkeys(AT, 1))
    assert [(site.clients, site.pinned) for site in plan.sites] == [(4, 4)] * 3
    assert plan.cut is not None
    assert plan.cut.models == 6
    assert document_of(plan)["sites"][0]["pinned"] == 4
    shown = io.StringIO()
    Console(file=shown, width=200).print(plan_table(plan, Path("x.yaml"), 0.0))
    assert "all clients stay at the sites of their data" in shown.getvalue()
    assert federation.loaded.shares_among(tuple(AT)) == {
        site: (range(4 * place, 4 * place + 4),) for place, site in enumerate(AT)
    }


def of_movable(hospitals: Hospitals, **keys: Any) -> dict[str, Any]:
    """A config over data that each site has of all clients."""
    told = {"disclose": OPEN, "residency": "movable"}
    files = [
        site_data.site_file(
            hospitals.folder / f"{site}.yaml",
            "scans",
            site_data.column(hospitals.folder / "all", EVERYBODY, **told),
        )
        for site in AT
    ]
    return site_data.config(files, hospitals.folder / "runs", **on_a_graph(**keys))


def test_movable_clients_go_where_the_graph_is_cut_least(hospitals: Hospitals) -> None:
    federation = hospitals.made(of_movable(hospitals))
    run = in_time(federation.run)
    assert run.digest == hospitals.in_one_process().digest
    assert "'locality'" in federation.nodes.why_there(5)
    assert [len(clients) for clients in at_sites(run.folder).values()] == [4, 4, 4]


def test_movable_clients_find_their_data_at_another_site_in_mid_run(
    hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def to_site_1(membership: SiteMembership, *, round_number: int, **_: Any) -> Reassignment:
        client = membership.assignment.movable["site_2"][0][:1]
        move = ClientMove(
            round_number=round_number, origin="site_2", to="site_1", clients=(client,), reason="why"
        )
        return Reassignment(verdict=MoveVerdict.MOVE, reason="why", moves=(move,))

    monkeypatch.setattr(SiteMembership, "reassignment", to_site_1)
    config = of_movable(hospitals, participation__reassign_every=2)
    run = in_time(hospitals.made(config).run)
    assert run.digest == hospitals.in_one_process().digest
    there = {site: len(clients) for site, clients in at_sites(run.folder).items()}
    assert there == {"site_1": 5, "site_2": 3, "site_3": 4}


def test_clients_that_all_stay_at_their_data_cannot_move(hospitals: Hospitals) -> None:
    config = hospitals.config(participation__reassign_every=2)
    with pytest.raises(ConfigError, match=r"reassign_every.*stay at the sites of their data"):
        in_time(hospitals.made(config).run)


# -- what sites allow ------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", ["none", "rounded", "noised"])
def test_a_site_that_keeps_counts_back_refuses_by_name_before_the_start(
    counts: str, hospitals: Hospitals
) -> None:
    log = Log()
    config = hospitals.config({"ids": "exact", "counts": counts})
    federation = hospitals.made(config, (log,))
    with pytest.raises(PolicyRefused) as raised:
        federation.run()
    assert raised.value.site in AT
    assert raised.value.rule == "datasets.scans.disclose.counts of site.yaml"
    assert "goes to the sites of its neighbors" in raised.value.found
    assert not log.of("worker_ready")


def test_similar_clients_are_looked_for_in_labels_that_sites_disclose(
    hospitals: Hospitals,
) -> None:
    keys = {"graph__adapt": "similar", "graph__adapt_every": 2}
    with pytest.raises(ConfigError) as raised:
        hospitals.federation(**keys)
    (problem,) = raised.value.problems
    assert problem.key == "graph.adapt"
    assert "do not leave site site_1, site_2, site_3" in problem.found
    alone = hospitals.in_one_process(**keys)
    told = {**OPEN, "client_labels": "exact"}
    log = Log()
    apart = in_time(hospitals.made(hospitals.config(told, **keys), (log,)).run)
    assert log.of("graph_adapted")
    assert apart.digest == alone.digest
    assert apart.digest != hospitals.in_one_process().digest


def test_check_names_the_sites_whose_noise_decides_the_graph(hospitals: Hospitals) -> None:
    told = {**OPEN, "client_labels": "noised"}
    path = hospitals.folder / "run.json"
    path.write_text(json.dumps(hospitals.config(told, graph__adapt="similar")))
    said = CliRunner().invoke(main, ["check", str(path)])
    assert said.exit_code == 0, said.output
    assert "labels with noise of site site_1, site_2, site_3" in said.output
    path.write_text(json.dumps(hospitals.config(told)))
    assert "with noise" not in CliRunner().invoke(main, ["check", str(path)]).output


ADAPTING = """
SEEN = []


def adapted(graph, measures, round):
    SEEN.append({client: sorted(known) for client, known in measures.items()})
    return graph
"""


def test_an_own_function_gets_what_sites_tell_of_clients(
    hospitals: Hospitals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site_graphs.py").write_text(ADAPTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = {"graph__adapt": "site_graphs:adapted", "graph__adapt_every": 2}
    in_time(hospitals.federation(evaluation__nodes="all", **keys).run)
    told = {**OPEN, "client_labels": "rounded"}
    in_time(hospitals.made(hospitals.config(told, **keys)).run)
    seen = importlib.import_module("site_graphs").SEEN
    assert [set(map(tuple, each.values())) for each in seen] == [
        {("accuracy", "samples")},
        {("accuracy", "labels", "samples")},
    ]
    assert set(seen[0]) == set(EVERYBODY)


# -- a lost site -----------------------------------------------------------------------------------


@pytest.fixture
def shaky(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The second site is lost with an order of the second round."""
    monkeypatch.setattr(SITES, ShakySite)
    monkeypatch.setattr(ShakySite, "moments", {"site_2": {9}})
    monkeypatch.setattr(ShakySite, "amid", False)
    monkeypatch.setattr(ShakySite, "sites", {})
    return monkeypatch


def test_the_clients_of_a_lost_site_sit_out(
    hospitals: Hospitals, shaky: pytest.MonkeyPatch
) -> None:
    run = in_time(hospitals.federation(participation__quorum=0.5).run)
    assert [row["clients"] for row in run.rows] == [12, 8, 8, 8]
    shaky.setattr(ShakySite, "moments", {})
    with ExitStack() as undo:
        found = Archive(hospitals.folder, undo).verify(run.folder.name, how=Replay.ALL)
    assert not found.differs
    assert found.replayed is not None


def test_without_a_quorum_the_run_waits_and_names_the_site(
    hospitals: Hospitals, shaky: pytest.MonkeyPatch
) -> None:
    federation = hospitals.federation(participation__wait_for_sites_s=0)
    with pytest.raises(TooFewSites, match=r"round 2.*site_2"):
        in_time(federation.run)


def test_a_graph_that_falls_apart_without_a_site_names_the_site_and_the_parts(
    hospitals: Hospitals, shaky: pytest.MonkeyPatch
) -> None:
    keys = {"participation__quorum": 0.5, "participation__wait_for_sites_s": 0}
    federation = hospitals.federation(name="tree", **keys)
    with pytest.raises(TooFewSites, match=r"site_2.*parts that never meet: anna"):
        in_time(federation.run)


def test_a_resumed_run_ends_in_the_same_bits(hospitals: Hospitals) -> None:
    whole = in_time(hospitals.federation().run)
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with hospitals.federation(stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    resumed = in_time(lambda: hospitals.federation().resume("r"))
    assert resumed.digest == whole.digest
    assert digests_over(resumed.folder) == digests_over(whole.folder)
