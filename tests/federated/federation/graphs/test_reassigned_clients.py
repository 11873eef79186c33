"""With `reassign_every` a run on a graph moves clients as links change, with the same bits."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from federations import Lab, Log, in_time, raising, timeless
from fedpilot.federated import Event, Federation, RunResult
from fedpilot.federated.core.population.shares import taken
from fedpilot.federated.core.rounds.participation import TooFewSites
from fedpilot.federated.core.state import digest
from fedpilot.federated.federation.coordinator.round_log import RoundLog
from fedpilot.federated.federation.verify import Replay
from fedpilot.federated.site.states.client_states import ClientStates
from fedpilot.mediator import Payload, members
from fedpilot.mediator.core.links import LinkSpeed
from graph_runs import NAMES, over, run_over
from records import Archive
from shaky_sites import SITE, Outages, ShakySite, returning

PHASES = "fedpilot.federated.federation.coordinator.phases"
ROUNDS, CLIENTS = 7, 60
GRAPH: dict[str, Any] = {
    "name": "small_world",
    "graph__degree": 4,
    "graph__probability": 0.3,
    "federation__number_of_clients": CLIENTS,
    "federation__rounds": ROUNDS,
}
MOVING = {**GRAPH, "participation__reassign_every": 2, "participation__wait_for_sites_s": 0}
FAST = dict.fromkeys(NAMES, 1e6)
SLOW = {**FAST, "north": 1e3}


@pytest.fixture(autouse=True)
def paces(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What each round measures as the sites' paces: nothing, unless a test says something."""
    found: dict[str, float] = {}
    monkeypatch.setattr(f"{PHASES}.training.paces_of", lambda answers: dict(found))
    return found


class Links:
    """Sets the speeds of sites' links once a round has finished, by its number."""

    def __init__(self, federation: Federation, speeds: dict[int, dict[str, float]]) -> None:
        self._federation = federation
        self._speeds = speeds

    def __call__(self, event: Event) -> None:
        speeds = self._speeds.get(event.fields.get("round", 0), {})
        if event.name == "round_finished":
            know(self._federation, speeds)


def know(federation: Federation, speeds: dict[str, float]) -> None:
    """Let the mediator know the speeds of sites' links."""
    federation.start()
    membership = federation.gang.running("it runs").membership
    links = {site: LinkSpeed(up=rate, down=rate) for site, rate in speeds.items()}
    membership.know_links(links)


def moving(
    lab: Lab, speeds: dict[int, dict[str, float]], *observers: Any, **keys: Any
) -> Federation:
    federation = over(lab, NAMES, *observers, **{**MOVING, **keys})
    federation._events.observers.append(Links(federation, speeds))
    return federation


def run_moving(
    lab: Lab, speeds: dict[int, dict[str, float]], *observers: Any, **keys: Any
) -> RunResult:
    with moving(lab, speeds, *observers, **keys) as federation:
        result: RunResult = in_time(federation.run)
    return result


def journaled(run: Path) -> Any:
    return json.loads((run / "journal" / "client_sites.json").read_text())


def shares_of(run: Path) -> dict[str, list[int]]:
    """The clients of each site, as the journal says."""
    return {site: members(taken(share)).tolist() for site, share in journaled(run)["sites"].items()}


def digests_of(run: Path) -> dict[int, str]:
    """By client, of its model after the last round, at the site that the journal says."""
    found: dict[int, str] = {}
    for site, clients in shares_of(run).items():
        with closing(ClientStates(run / "journal" / f"{site}.clients.sqlite")) as states:
            its = states.load(clients, ROUNDS + 1)
        found |= {client: digest(state) for client, state in its.items()}
    return found


def kept_at(run: Path, site: str) -> set[int]:
    """The clients whose states of any round a site has."""
    with closing(ClientStates(run / "journal" / f"{site}.clients.sqlite")) as states:
        return {row[0] for row in states._places.execute("SELECT client FROM places")}


@dataclass(frozen=True)
class Calm:
    """What a run ends in that moves no client."""

    digest: str
    clients: dict[int, str]
    rows: list[dict[str, Any]]

    def check(self, found: RunResult) -> None:
        assert found.digest == self.digest
        assert digests_of(found.folder) == self.clients
        assert timeless(found.rows) == self.rows


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calm]:
    with ExitStack() as undo:
        run = run_over(Lab(tmp_path_factory.mktemp("calm"), undo), NAMES[:1], **GRAPH)
        yield Calm(run.digest, digests_of(run.folder), timeless(run.rows))


@pytest.fixture
def outages(monkeypatch: pytest.MonkeyPatch) -> Outages:
    return Outages(monkeypatch)


# -- a run without trouble -------------------------------------------------------------------------


def test_clients_move_as_links_change_and_no_bit_does(lab: Lab, calm: Calm) -> None:
    log = Log()
    run = run_moving(lab, {1: SLOW, 5: FAST}, log)
    calm.check(run)
    (moved,) = log.of("reassigned")
    assert moved["round"] == 3
    away = [each["clients"] for each in moved["moves"] if each["from"] == "north"]
    assert sum(away) == CLIENTS // 3 // 10, "a tenth of its clients"
    assert moved["saved_s"] * 5 > moved["moving_s"]
    assert "instead of" in moved["reason"]
    there = shares_of(run.folder)
    assert len(there["north"]) == CLIENTS // 3 - sum(away)
    assert [event["round"] for event in log.of("assignment_kept")] == [5]


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"strategy": "push_sum"}, id="push_sum"),
        pytest.param({"strategy": "gossip"}, id="gossip", marks=pytest.mark.soak),
    ],
)
def test_whatever_clients_have_moves_with_them(keys: dict[str, Any], lab: Lab) -> None:
    log = Log()
    run = run_moving(lab, {1: SLOW}, log, **keys)
    assert log.of("reassigned")
    alone = run_over(lab, NAMES[:1], **{**GRAPH, **keys})
    assert run.digest == alone.digest
    assert digests_of(run.folder) == digests_of(alone.folder)


def test_clients_leave_nothing_behind(lab: Lab) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=3)
    with moving(lab, {1: SLOW}, stop) as federation, pytest.raises(KeyboardInterrupt):
        in_time(lambda: federation.run(run_id="r"))
    for site, clients in shares_of(lab.runs / "r").items():
        assert kept_at(lab.runs / "r", site) == set(clients)


def test_what_moves_is_counted_as_the_event_says(lab: Lab) -> None:
    log, found = Log(), dict[tuple[int, str], int]()
    run = run_moving(lab, {1: SLOW}, log)
    (moved,) = log.of("reassigned")
    with (run.folder / "traffic.csv").open() as file:
        for row in csv.DictReader(file):
            if row["purpose"] == "move" and int(row["bytes"]):
                key = int(row["round"]), row["direction"]
                found[key] = found.get(key, 0) + int(row["bytes"])
    assert found == {(2, way): moved["bytes"] for way in ("to_site", "from_site")}


def test_while_no_link_is_known_clients_stay_and_the_run_says_so_once(lab: Lab) -> None:
    log = Log()
    run = run_moving(lab, {}, log)
    assert not log.of("reassigned")
    (kept,) = log.of("assignment_kept")
    assert kept["round"] == 3
    assert "the link is known of no site" in kept["reason"]
    assert journaled(run.folder)["moves"] == []


def test_the_trail_of_a_client_has_the_move_before_and_after_a_resume(lab: Lab) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=4)
    with moving(lab, {1: SLOW}, stop) as federation:
        with pytest.raises(KeyboardInterrupt):
            in_time(lambda: federation.run(run_id="r"))
        before = federation.gang.running("it runs").membership.assignment
    move = before.moves[0]
    client = int(members(move.clients)[0])
    said = f"was at site {move.origin} until round 3, as that makes a round take"
    assert said in before.explain(client)
    with moving(lab, {}) as federation:
        in_time(lambda: federation.resume("r"))
        after = federation.gang.running("it runs").membership.assignment
        assert after.moves[: len(before.moves)] == before.moves
        assert after.given == before.given
        assert said in after.explain(client)


# -- paces that sites' own rounds have shown -------------------------------------------------------

EQUAL = dict.fromkeys(NAMES, 1e-2)
SLOWER = {**EQUAL, "north": 4e-2}
"""So training takes much longer than what crosses fast links."""


def test_clients_leave_a_site_whose_own_rounds_are_slow_and_no_bit_changes(
    lab: Lab, calm: Calm, paces: dict[str, float]
) -> None:
    log = Log()
    paces |= SLOWER
    run = run_moving(lab, {3: FAST}, log)
    calm.check(run)
    first, *_ = log.of("reassigned")
    assert first["round"] == 5
    assert "north" in {each["from"] for each in first["moves"]}
    assert "north" not in {each["to"] for each in first["moves"]}
    assert len(shares_of(run.folder)["north"]) < CLIENTS // 3
    for row in run.rows:
        assert {site: each["seconds_per_sample"] for site, each in row["sites"].items()} == paces


def test_a_single_slow_round_changes_no_decision(lab: Lab, paces: dict[str, float]) -> None:
    def moves(slow_round: int | None) -> list[Any]:
        def observer(event: Event) -> None:
            if event.name == "round_started":
                paces.update(SLOWER if event.fields["round"] == slow_round else EQUAL)

        log = Log()
        run_moving(lab, {3: FAST}, log, observer)
        return [event["moves"] for event in log.of("reassigned")]

    assert moves(4) == moves(None)


def test_a_resumed_run_knows_the_paces_from_its_rows(lab: Lab, paces: dict[str, float]) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=4)
    paces |= SLOWER
    with moving(lab, {}, stop) as federation, pytest.raises(KeyboardInterrupt):
        in_time(lambda: federation.run(run_id="r"))
    known: list[dict[str, float]] = []
    with moving(lab, {}) as federation:

        def observer(event: Event) -> None:
            if event.name == "round_started":
                membership = federation.gang.running("it runs").membership
                found = {each.site: each.seconds_per_sample for each in membership.explain(0).paces}
                known.append(found)

        federation._events.observers.append(observer)
        in_time(lambda: federation.resume("r"))
    assert len(known[0]) == 2, "those of the client's site and the next best one"
    assert known[0].items() <= SLOWER.items()


def test_explaining_a_client_shows_the_paces_that_were_measured(
    lab: Lab, paces: dict[str, float]
) -> None:
    paces |= SLOWER
    with moving(lab, {3: FAST}, participation__reassign_every=None) as federation:
        in_time(federation.run)
        membership = federation.gang.running("it runs").membership
        here = membership.assignment.site_of(0)
        measured = {each.site: each.seconds_per_sample for each in membership.explain(0).paces}
    assert len(measured) == 2
    assert here in measured
    assert measured.items() <= paces.items()


def test_a_run_that_moved_clients_is_verified_and_continued(lab: Lab) -> None:
    run = run_moving(lab, {1: SLOW})
    found = Archive(lab.runs.parent, ExitStack()).verify(run.run_id, how=Replay.ALL)
    assert not found.differs
    longer = {**GRAPH, "federation__rounds": ROUNDS + 2}
    with over(lab, NAMES, **longer) as federation:
        later = in_time(lambda: federation.run(parent=run.run_id))
    assert shares_of(later.folder) == shares_of(run.folder)
    assert later.digest == run_over(lab, NAMES[:1], **longer).digest


# -- the coordinator ends amid a move --------------------------------------------------------------

PHASE = f"{PHASES}.reassignment"


def resumed(lab: Lab, speeds: dict[str, float] | None = None, **keys: Any) -> tuple[RunResult, Log]:
    """The run is resumed, over links of these speeds."""
    log = Log()
    with moving(lab, {}, log, **keys) as federation:
        know(federation, speeds or {})
        run: RunResult = in_time(lambda: federation.resume("r"))
    return run, log


def interrupted(lab: Lab, *observers: Any, **keys: Any) -> dict[str, list[int]]:
    """A run that is interrupted in the move after its second round; whose clients are where."""
    slow = {1: SLOW}
    with pytest.MonkeyPatch.context() as patch, moving(lab, slow, *observers, **keys) as federation:
        patch.setattr(RoundLog, "end", lambda *_: None)  # as if the process were killed
        with pytest.raises(KeyboardInterrupt):
            in_time(lambda: federation.run(run_id="r"))
    return shares_of(lab.runs / "r")


def stopping(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_crash_after_the_copies_and_before_the_switch(
    lab: Lab, calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(f"{PHASE}.record_sites", stopping)
        before = interrupted(lab)
    assert [*map(len, before.values())] == [CLIENTS // 3] * 3
    assert any(kept_at(lab.runs / "r", site) > set(its) for site, its in before.items()), "copied"
    run, log = resumed(lab)
    assert not log.of("reassigned"), "no link is known to the next attempt"
    assert shares_of(run.folder) == before
    calm.check(run)


@pytest.mark.parametrize(
    "every",
    [5, pytest.param(1, marks=pytest.mark.soak)],
    ids="a checkpoint every {} rounds".format,
)
def test_a_crash_after_the_switch(every: int, lab: Lab, calm: Calm) -> None:
    keys = {"outputs__checkpoint_every": every}
    before = interrupted(lab, raising(KeyboardInterrupt(), "reassigned"), **keys)
    assert len(before["north"]) < CLIENTS // 3
    run, log = resumed(lab, SLOW, **keys)
    decided = [*log.of("reassigned"), *log.of("assignment_kept")]
    assert 3 not in [event["round"] for event in decided], "not twice after one round"
    assert decided
    assert next(event["round"] for event in log.of("round_started")) == 3
    assert shares_of(run.folder) == before
    calm.check(run)
    for site, clients in before.items():
        assert kept_at(run.folder, site) == set(clients), "dropped at the end"


# -- a site ends amid a move -----------------------------------------------------------------------


class LostAsItCopies(ShakySite):
    """Site west, with its first order of a kind."""

    kind = ""

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        seen = any(each.kind == self.kind for each in self.orders)
        if (self.name, order.kind) == ("west", self.kind) and purpose == "move" and not seen:
            self.orders.append(order)
            self.vanish()
        return super().deliver(order, key, purpose)


@pytest.mark.parametrize(
    "kind",
    [
        "take_replica",
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("replica_room", "give_replica")),
    ],
)
def test_a_site_that_is_lost_amid_a_move_ends_the_move_and_not_the_run(
    kind: str, lab: Lab, calm: Calm, outages: Outages
) -> None:
    outages.patch.setattr(SITE, LostAsItCopies)
    outages.patch.setattr(LostAsItCopies, "kind", kind)
    log = Log()
    keys = {"participation__wait_for_sites_s": 60, "participation__reassign_every": 2}
    with moving(lab, {1: SLOW}, log, **keys) as federation:
        federation._events.observers.append(returning(federation, "west"))
        run = in_time(federation.run)
    (missed,) = log.of("reassignment_missed")
    assert missed["round"] == 3
    assert "west was lost" in missed["reason"]
    calm.check(run)


def test_a_site_that_stays_away_after_a_move_is_gone_on_without_by_a_new_replica(
    lab: Lab, calm: Calm, outages: Outages
) -> None:
    log, keys = Log(), {"participation__replicate_every": 1}
    with moving(lab, {1: SLOW}, log, **keys) as federation:
        outages.happen(federation, {4: ["west"]})
        run = in_time(federation.run)
    calm.check(run)
    (moved,), (back,) = log.of("reassigned"), log.of("went_back")
    assert (moved["round"], back["round"], back["to"]) == (3, 4, 3)


def test_the_replica_before_a_move_is_of_no_use_and_one_of_the_same_round_is_made(
    lab: Lab, calm: Calm, outages: Outages
) -> None:
    log, keys = Log(), {"participation__replicate_every": 3, "participation__reassign_every": 4}
    with moving(lab, {1: SLOW}, log, **keys) as federation:
        outages.happen(federation, {5: ["west"]})
        run = in_time(federation.run)
    calm.check(run)
    assert [event["round"] for event in log.of("replica_made")][:2] == [3, 4]
    assert [(each["to"]) for each in log.of("went_back")] == [4]


class LostAsItGivesAReplica(ShakySite):
    """Site west, once it has to give the replica of the round after which clients moved."""

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        about = self.name, order.kind, order.header.get("round")
        if about == ("west", "give_replica", 4) and purpose == "replica":
            self.vanish()
        return super().deliver(order, key, purpose)


def test_a_site_that_is_lost_before_that_replica_is_whole_ends_the_run(
    lab: Lab, outages: Outages
) -> None:
    """No site has what all its clients had in an earlier round, so the run cannot go back."""
    outages.patch.setattr(SITE, LostAsItGivesAReplica)
    keys = {"participation__replicate_every": 3, "participation__reassign_every": 4}
    with pytest.raises(TooFewSites, match="no replica was made yet"):
        run_moving(lab, {1: SLOW}, **keys)


def test_a_site_that_has_returned_gets_clients_if_that_pays(
    lab: Lab, calm: Calm, outages: Outages
) -> None:
    """The holder of its replica has twice as many clients to train as it had."""
    log, keys = Log(), {"participation__replicate_every": 1}
    fast = dict.fromkeys(NAMES, 1e15)
    with moving(lab, {5: fast}, log, **keys) as federation:
        outages.happen(federation, {4: ["north"]}, back={5: ["north"]})
        run = in_time(lambda: paced(federation).run())
    calm.check(run)
    (back,), (moved,) = log.of("went_back"), log.of("reassigned")
    assert moved["round"] == 7
    ways = [(each["from"], each["to"]) for each in moved["moves"]]
    assert (back["sites"]["north"], "north") in ways


def paced(federation: Federation) -> Federation:
    """One whose plan knows that a sample takes a vnode a millisecond."""
    federation.start()
    federation.gang.running("it runs").membership._pace = 1e-3
    return federation
