"""A run of so many sites takes another one in the place of one that it lacks, or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fedpilot.federated.config import parse_config
from fedpilot.federated.federation.remote.mediator_sites import MediatorSites
from fedpilot.federated.federation.sites.sources import StartedRun
from fedpilot.federated.prepare.user_code.user_code import code_here
from fedpilot.mediator import FederationMediator, GangRequest, Notify, Payload
from fedpilot.mediator.coordinator.connection import MediatorConnection
from fedpilot.mediator.core.assignment import ClientMove
from fedpilot.mediator.core.health import SiteState
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.federation.futures import done
from fedpilot.mediator.wire.messages import SiteName, SiteStanding
from real_ray import eventually

SOON_S = 60.0
CONFIG: dict[str, Any] = {
    "federation": {"number_of_clients": 12, "clients_per_round": 6, "rounds": 2},
    "model": {"model_type": "mlp"},
    "data": {"dataset_type": "digits"},
    "sites": {"count": 3, "min_sites": 2},
}
REQUEST = GangRequest(name="g", resources={"CPU": 1.0}, workers=1)


class Link:
    """To a site that does all that it is asked for."""

    def ask(self, verb: str, payload: Payload, **_: Any) -> Future[Payload]:
        if verb == "prepare":
            return done(lambda: Payload(kind="promised", header={"vnodes": 1}))
        return done(lambda: Payload(kind="done"))

    def listen(self, notify: Notify) -> None: ...


class Connection:
    """To a mediator, as far as a source of sites needs one."""

    def __init__(self, **states: SiteState) -> None:
        self.sites: dict[SiteName, SiteStanding] = {}
        self.changed: Callable[[SiteStanding], None] = lambda _: None
        self.on_link_use: Any = None
        self.required: Collection[str] = ()
        """The sites that were waited for."""
        for name, state in states.items():
            self.set(name, state)

    def set(self, name: str, state: SiteState) -> None:
        standing = SiteStanding(name=SiteName(name), state=state, reason=f"it is {state}")
        self.sites = {**self.sites, standing.name: standing}
        self.changed(standing)

    def wait_for_sites(
        self, least: int, required: Collection[str], *_: Any, **__: Any
    ) -> tuple[SiteStanding, ...]:
        self.required = required
        return tuple(each for each in self.sites.values() if each.state is SiteState.READY)

    def on_site_change(self, callback: Callable[[SiteStanding], None]) -> None:
        self.changed = callback

    def link(self, name: str) -> Link:
        return Link()

    def drain_flows(self) -> list[Any]:
        return []


class Run:
    """A coordinator's view of the sites, from its start to its end."""

    def __init__(
        self, connection: Connection, members: Path, undo: ExitStack, *, again: bool, **sites: Any
    ) -> None:
        """`sites` has keys of the config's `sites`, and `replacement`, and other sections."""
        replaces, federation = sites.pop("replacement", True), sites.pop("federation", {})
        participation = sites.pop("participation", {})
        config = parse_config(
            {
                **CONFIG,
                "federation": federation or CONFIG["federation"],
                "participation": participation,
                "sites": {**CONFIG["sites"], **sites},
            }
        )
        source = MediatorSites(
            config, cast(MediatorConnection, connection), again=again, members=members
        )
        found = source.open(REQUEST, 0, ("elsewhere",), undo)
        self.mediator = FederationMediator(found, replacement=replaces)
        undo.callback(self.mediator.close)
        self.mediator.reserve(REQUEST, min_sites=source.least)
        self.mediator.membership.assign(12)
        specs = {site: Payload(kind="spec") for site in self.mediator.membership.sites}
        self.mediator.start("w", specs, lambda _: None)
        self.passed: Mapping[str, str] = {}
        run = StartedRun(
            mediator=self.mediator,
            spec_of=lambda site: Payload(kind="spec"),
            round_number=lambda: 1,
            passed=lambda site, why: setattr(self, "passed", {**self.passed, site: why}),
            link_used=lambda use: None,
        )
        source.follow(run, undo)

    def has(self, *sites: str) -> None:
        """Wait until these are its sites."""
        eventually(
            lambda: set(self.mediator.membership.sites) == set(sites), SOON_S, f"it has {sites}"
        )


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def three() -> Connection:
    return Connection(oslo=SiteState.READY, paris=SiteState.READY, tokyo=SiteState.READY)


def test_a_site_that_joins_takes_the_place_of_one_that_is_lost(
    tmp_path: Path, undo: ExitStack
) -> None:
    connection = three()
    run = Run(connection, tmp_path / "members.json", undo, again=False)
    run.has("oslo", "paris", "tokyo")
    connection.set("tokyo", SiteState.LOST)
    run.has("oslo", "paris")
    connection.set("bergen", SiteState.READY)
    run.has("bergen", "oslo", "paris")
    assert run.passed == {}


def test_a_promise_has_the_link_that_the_mediator_knows(tmp_path: Path, undo: ExitStack) -> None:
    connection, link = three(), LinkSpeed(up=3.0, up_measured_at=9.0)
    connection.sites[SiteName("oslo")] = replace(connection.sites[SiteName("oslo")], link=link)
    run = Run(connection, tmp_path / "members.json", undo, again=False)
    promises = run.mediator.membership.promises
    assert promises["oslo"].link == link
    assert promises["paris"].link == LinkSpeed()


def test_a_run_knows_links_as_the_mediator_says_them_last(tmp_path: Path, undo: ExitStack) -> None:
    connection, slow = three(), LinkSpeed(up=3.0, up_measured_at=9.0)
    run = Run(connection, tmp_path / "members.json", undo, again=False)
    standing = replace(connection.sites[SiteName("oslo")], link=slow)
    connection.sites[SiteName("oslo")] = standing
    connection.changed(standing)
    assert run.mediator.membership.promises["oslo"].link == slow
    assert run.mediator.membership.promises["paris"].link == LinkSpeed()


def test_a_run_goes_on_after_a_restart_with_the_sites_that_it_had(
    tmp_path: Path, undo: ExitStack
) -> None:
    connection, members = three(), tmp_path / "members.json"
    with ExitStack() as first:
        run = Run(connection, members, first, again=False)
        connection.set("anchorage", SiteState.READY)
        connection.set("tokyo", SiteState.LOST)
        connection.set("bergen", SiteState.READY)

        def replaced() -> bool:
            return (
                len(run.mediator.membership.sites) == 3
                and "tokyo" not in run.mediator.membership.sites
            )

        eventually(replaced, SOON_S, "another site is in the place of tokyo")
        had = set(run.mediator.membership.sites)
        eventually(lambda: had == set(run_members(members)), SOON_S, "that is written down")
    connection.set("tokyo", SiteState.READY)
    Run(connection, members, undo, again=True).has(*had)


def test_after_a_restart_a_run_that_lacks_a_site_takes_another_as_well(
    tmp_path: Path, undo: ExitStack
) -> None:
    connection, members = three(), tmp_path / "members.json"
    with ExitStack() as first:
        Run(connection, members, first, again=False).has("oslo", "paris", "tokyo")
    connection.set("tokyo", SiteState.LOST)
    run = Run(connection, members, undo, again=True)
    run.has("oslo", "paris")
    connection.set("bergen", SiteState.READY)
    run.has("bergen", "oslo", "paris")


def test_a_site_that_clients_may_not_move_to_is_told_why_it_is_not_taken(
    tmp_path: Path, undo: ExitStack
) -> None:
    connection = three()
    run = Run(connection, tmp_path / "members.json", undo, again=False, replacement=False)
    connection.set("bergen", SiteState.READY)
    connection.set("tokyo", SiteState.LOST)
    eventually(lambda: "bergen" in run.passed, SOON_S, "it is said")
    assert run.passed == {"bergen": "its clients stay with the sites that they were given to"}
    assert set(run.mediator.membership.sites) == {"oslo", "paris"}


RING = {
    "federation": {
        "number_of_clients": 12, "rounds": 2, "topology": "ring", "aggregation_strategy": "dpsgd"
    },
    "replacement": False,
    "count": None,
}  # fmt: skip


def test_a_graph_has_the_sites_that_it_began_with_and_no_others(
    tmp_path: Path, undo: ExitStack
) -> None:
    connection, members = three(), tmp_path / "members.json"
    with ExitStack() as first:
        run = Run(connection, members, first, again=False, **RING)
        connection.set("bergen", SiteState.READY)
        connection.set("tokyo", SiteState.LOST)
        eventually(lambda: "bergen" in run.passed, SOON_S, "it is said")
        assert run.passed == {"bergen": "what its clients keep is at the sites that it began with"}
        assert set(run.mediator.membership.sites) == {"oslo", "paris"}
    connection.set("tokyo", SiteState.READY)
    run = Run(connection, members, undo, again=True, **RING)
    assert set(connection.required) == {"oslo", "paris", "tokyo"}
    run.has("oslo", "paris", "tokyo")


def test_a_run_whose_clients_have_moved_to_a_holder_needs_their_first_site_no_more(
    tmp_path: Path, undo: ExitStack
) -> None:
    connection, members = three(), tmp_path / "members.json"
    keys = {**RING, "participation": {"replicate_every": 1}}
    with ExitStack() as first:
        run = Run(connection, members, first, again=False, **keys)
        connection.set("tokyo", SiteState.LOST)
        run.has("oslo", "paris")
        assert set(run_members(members)) == {"oslo", "paris", "tokyo"}, "its clients wait for it"
        clients = run.mediator.membership.assignment.movable["tokyo"]
        reason = "which was lost"
        move = ClientMove(round_number=1, origin="tokyo", to="oslo", clients=clients, reason=reason)
        run.mediator.membership.move([move])
        eventually(lambda: set(run_members(members)) == {"oslo", "paris"}, SOON_S, "it is not kept")
    Run(connection, members, undo, again=True, **keys).has("oslo", "paris")
    assert set(connection.required) == {"oslo", "paris"}


def run_members(path: Path) -> list[str]:
    found: list[str] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        pytest.param({"topology": "mine:graph"}, False, id="a graph is made by the coordinator"),
        pytest.param({"client_id_pattern": "c{index}"}, True, id="a model is trained at sites"),
    ],
)
def test_sites_get_the_code_that_they_run(keys: dict[str, str], sent: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("graph = Model = None")
    on_a_graph = {**keys, "aggregation_strategy": "dpsgd"} if not sent else keys
    config = parse_config(
        {
            **CONFIG,
            "federation": {"number_of_clients": 12, **on_a_graph},
            "model": {"model_type": "mine:Model" if sent else "mlp"},
        }
    )
    code = code_here(config, [str(tmp_path)])
    assert code.files == ("mine.py",)
    source = MediatorSites(config, cast(MediatorConnection, three()), code=code)
    assert ("code" in source.told(Payload(kind="spec")).header) is sent
