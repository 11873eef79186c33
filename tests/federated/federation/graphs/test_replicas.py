"""With replicas a run on a graph goes on without a lost site, and ends in the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from federations import CLIENTS, Lab, Log, in_time, raising, timeless
from fedpilot.federated import RunResult
from fedpilot.federated.core.rounds.participation import SiteRefused, TooFewSites
from fedpilot.federated.errors import ConfigError
from fedpilot.federated.federation.verify import Replay
from fedpilot.federated.site.states.client_states import ClientStates
from fedpilot.mediator import Payload
from fedpilot.mediator.core.storage.disk import Space
from graph_runs import (
    NAMES,
    bytes_of_replicas,
    digests_of,
    digests_over,
    over,
    run_over,
    sites_of,
)
from lying_sites import LyingSite
from pairings import paired
from records import Archive, written_at_once
from shaky_sites import Outages, ShakySite, returning

ROUNDS = 7
REPLICAS: dict[str, Any] = {
    "participation__replicate_every": 2,
    "participation__wait_for_sites_s": 0,
    "federation__rounds": ROUNDS,
}
WITHOUT = {"federation__rounds": ROUNDS}
NONE = {"participation__replicate_every": None}
SITES = "fedpilot.federated.federation.sites.sources.InProcessSite"
GRAPHS: dict[str, dict[str, Any]] = {
    "ring": {},
    "matching": {},
    "complete": {"outputs__checkpoint_every": 3},
    "k_connected": {"graph__degree": 4, "graph__mixing_steps": 3},
    "torus": {"strategy": "push_sum"},
    "tree": {"strategy": "gossip"},
}

WHEN = ("before its work", "amid its work")


@pytest.fixture
def outages(monkeypatch: pytest.MonkeyPatch) -> Outages:
    return Outages(monkeypatch)


def disturbed(
    lab: Lab,
    outages: Outages,
    log: Log,
    lost: dict[int, Sequence[str]],
    back: dict[int, Sequence[str]] | None = None,
    sites: Sequence[str] = NAMES,
    **keys: Any,
) -> RunResult:
    with over(lab, sites, log, **{**REPLICAS, **keys}) as federation:
        outages.happen(federation, lost, back)
        result: RunResult = in_time(federation.run)
    return result


@dataclass(frozen=True)
class Calm:
    """What a run ends in that nothing disturbed."""

    digest: str
    clients: dict[int, str]
    rows: list[dict[str, Any]]

    def check(self, found: RunResult) -> None:
        assert found.digest == self.digest
        assert digests_of(found.folder, ROUNDS) == self.clients
        assert timeless(found.rows) == self.rows


Calmly = Callable[..., Calm]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calmly]:
    """By keys; each is run once, on one site."""
    known: dict[str, Calm] = {}
    with ExitStack() as undo:
        lab = Lab(tmp_path_factory.mktemp("calm"), undo)

        def found(**keys: Any) -> Calm:
            if (name := json.dumps(keys, sort_keys=True)) not in known:
                run = run_over(lab, NAMES[:1], **{**WITHOUT, **keys})
                clients = digests_over(run.folder, ROUNDS)
                known[name] = Calm(run.digest, clients, timeless(run.rows))
            return known[name]

        yield found


# -- a run without trouble -------------------------------------------------------------------------


def test_replicas_change_no_bit_and_are_freed_at_the_end(lab: Lab, calm: Calmly) -> None:
    log = Log()
    run = run_over(lab, NAMES, log, **REPLICAS)
    calm().check(run)  # each client's state is at one site alone
    assert [event["round"] for event in log.of("replica_made")] == [2, 4, 6]
    assert not (run.folder / "journal" / "replicas.json").exists()
    assert len(list((run.folder / "checkpoints").iterdir())) == 2


def test_what_replicas_move_is_counted_as_the_event_says(lab: Lab) -> None:
    log = Log()
    run = run_over(lab, NAMES, log, name="torus", strategy="push_sum", **REPLICAS)
    said = {event["round"]: event["bytes"] for event in log.of("replica_made")}
    ways = ("to_site", "from_site")
    assert bytes_of_replicas(run.folder) == {(n, way): said[n] for n in said for way in ways}
    with over(lab, NAMES[:1]) as federation:
        model = sum(array.nbytes for array in federation.loaded.inputs.initial.values())
    assert set(said.values()) == {CLIENTS * (model + 8)}


def test_large_states_go_in_parts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Log(), Log()
    keys = {**REPLICAS, "federation__rounds": 3}
    monkeypatch.setattr(SITES, ShakySite)
    monkeypatch.setattr(ShakySite, "sites", {})
    run_over(lab, NAMES, whole, **keys)
    few = sum(order.kind == "give_replica" for order in ShakySite.sites["east"].orders)
    module = "fedpilot.federated.federation.coordinator.phases.state_copies"
    monkeypatch.setattr(f"{module}.PART_BYTES", 1)
    run_over(lab, NAMES, parts, **keys)
    orders = [order for order in ShakySite.sites["east"].orders if order.kind == "give_replica"]
    assert few == 1
    assert len(orders) == CLIENTS // len(NAMES)
    assert [e["bytes"] for e in whole.of("replica_made")] == [
        e["bytes"] for e in parts.of("replica_made")
    ]


def test_each_site_keeps_the_states_of_the_replicas_round_and_no_others_between(lab: Lab) -> None:
    """Of its own clients, and of those whose replica it holds."""
    stop = raising(KeyboardInterrupt(), "round_finished", round=6)
    keys = {**REPLICAS, "participation__replicate_every": 3, "federation__rounds": 9}
    with (
        written_at_once(),
        over(lab, NAMES, stop, **keys) as federation,
        pytest.raises(KeyboardInterrupt),
    ):
        federation.run(run_id="r")
    for file in (lab.runs / "r" / "journal").glob("*.clients.sqlite"):
        with closing(ClientStates(file)) as states:
            rows = states._places.execute("SELECT client, round FROM places").fetchall()
        kept: dict[int, set[int]] = {}
        for client, number in rows:
            kept.setdefault(number, set()).add(client)
        assert sorted(kept) == [3, 4, 5, 6]
        assert kept[3] > kept[4] == kept[5] == kept[6]


# -- a site is lost --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("ring", 4), ("complete", 6), ("torus", 6), ("tree", 6)),
        *(pytest.param("ring", n, marks=pytest.mark.soak) for n in (3, 5, 6, 7)),
        *(pytest.param(n, 6, marks=pytest.mark.soak) for n in ("matching", "k_connected")),
    ],
)
def test_a_run_that_loses_a_site_for_good_goes_back_and_ends_in_the_same_bits(
    name: str, number: int, lab: Lab, outages: Outages, calm: Calmly
) -> None:
    log, keys = Log(), {"name": name, **GRAPHS[name]}
    run = disturbed(lab, outages, log, {number: ["north"]}, **keys)
    calm(**keys).check(run)
    (back,) = log.of("went_back")
    to = (number - 1) // 2 * 2
    assert (back["round"], back["to"], back["clients"]) == (number, to, CLIENTS // 3)
    assert list(back["sites"]) == ["north"]
    begun = [event["round"] for event in log.of("round_started")]
    assert begun == [*range(1, number + 1), *range(to + 1, ROUNDS + 1)]


def test_the_journal_and_the_manifest_say_where_clients_are_and_why(
    lab: Lab, outages: Outages
) -> None:
    log = Log()
    run = disturbed(lab, outages, log, {6: ["north"]})
    holder = log.of("went_back")[0]["sites"]["north"]
    there = sites_of(run.folder)
    assert there.pop("north") == 0
    assert there == {site: 8 if site == holder else 4 for site in there}
    told = json.loads((run.folder / "manifest.json").read_text())["went_back"]
    assert told == [dict(log.of("went_back")[0])]
    assert "cable" in told[0]["reasons"]["north"]


@pytest.mark.parametrize(
    ("order", "when"),
    [
        *paired([31, 33, 37], WHEN),
        *(
            pytest.param(order, when, marks=pytest.mark.soak)
            for order in (32, 34, 35, 36)
            for when in WHEN
        ),
    ],
)
def test_a_site_may_be_lost_with_any_order_of_a_replica_and_its_round(
    order: int, when: str, lab: Lab, outages: Outages, calm: Calmly
) -> None:
    """The replica after round 4 fails, or is whole; then the site stays away."""
    outages.patch.setattr(ShakySite, "moments", {"north": {order}})
    outages.patch.setattr(ShakySite, "amid", when == WHEN[1])
    log = Log()
    run = disturbed(lab, outages, log, {})
    calm().check(run)
    missed = bool(log.of("replica_missed"))
    assert [event["to"] for event in log.of("went_back")] in ([[2]] if missed else [[2], [4]])


class LostAsItEvaluates(ShakySite):
    """Site north, with the fifth round's model."""

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        if (self.name, order.kind, order.header.get("round")) == ("north", "evaluate", 5):
            self.vanish()
        return super().deliver(order, key, purpose)


def test_a_site_that_is_lost_while_it_evaluates_is_gone_back_for_too(
    lab: Lab, outages: Outages, calm: Calmly
) -> None:
    outages.patch.setattr(SITES, LostAsItEvaluates)
    keys = {"evaluation__where": "sites", "evaluation__clients": "all"}
    log = Log()
    run = disturbed(lab, outages, log, {}, **keys)
    assert [(event["round"], event["to"]) for event in log.of("went_back")] == [(5, 4)]
    calm(**keys).check(run)


def test_a_site_that_comes_back_in_time_is_waited_for(
    lab: Lab, outages: Outages, calm: Calmly
) -> None:
    outages.patch.setattr(ShakySite, "moments", {"north": {26}})
    keys = {**REPLICAS, "participation__wait_for_sites_s": 60}
    with over(lab, NAMES, log := Log(), **keys) as federation:
        federation._events.observers.append(returning(federation, "north"))
        run = in_time(federation.run)
    assert log.of("site_lost")
    assert not log.of("went_back")
    calm().check(run)


def test_a_site_that_comes_back_later_trains_nobody_and_may_hold_replicas(
    lab: Lab, outages: Outages, calm: Calmly
) -> None:
    log = Log()
    run = disturbed(lab, outages, log, {4: ["north"]}, back={5: ["north"]})
    calm().check(run)
    assert sites_of(run.folder)["north"] == 0
    last = log.of("replica_made")[-1]
    assert "north" in last["holders"].values()
    assert "north" not in last["holders"]


def test_one_site_after_the_other_may_be_lost(lab: Lab, outages: Outages, calm: Calmly) -> None:
    """The holder too: once its replica is made anew, after the run has gone back."""
    log = Log()
    run = disturbed(lab, outages, log, {4: ["north"], 6: ["west"]})
    calm().check(run)
    first, second = log.of("went_back")
    assert first["sites"] == {"north": "west"}
    assert second["sites"] == {"west": "east"}
    assert sites_of(run.folder) == {"east": CLIENTS, "north": 0, "west": 0}
    said = [event for event in log.of("replica_made") if not event["bytes"]]
    assert [event["reasons"] for event in said] == [{"east": "there is no other site"}]


def test_the_holder_may_be_lost_in_the_round_to_which_the_run_went_back(
    lab: Lab, outages: Outages, calm: Calmly
) -> None:
    with over(lab, NAMES, log := Log(), **REPLICAS) as federation:
        outages.happen(federation, {6: ["north"]})

        def lose(event: Any) -> None:
            if event.name == "replica_made" and log.of("went_back"):
                west = ShakySite.sites["west"]
                if not west.gone:
                    west.vanish()

        federation._events.observers.append(lose)
        run = in_time(federation.run)
    assert [event["sites"] for event in log.of("went_back")] == [
        {"north": "west"},
        {"west": "east"},
    ]
    calm().check(run)


def test_a_site_that_is_lost_with_its_holder_ends_the_run_which_names_both(
    lab: Lab, outages: Outages
) -> None:
    with pytest.raises(
        TooFewSites, match=r"north, west.*the replica of site north after round 4 is at site west"
    ):
        disturbed(lab, outages, Log(), {6: ["north", "west"]})


def test_before_the_first_replica_a_lost_site_ends_the_run(lab: Lab, outages: Outages) -> None:
    with pytest.raises(TooFewSites, match=r"north.*no replica was made yet"):
        disturbed(lab, outages, Log(), {2: ["north"]})


def test_a_run_that_needs_all_its_sites_does_not_go_on_without_one(
    lab: Lab, outages: Outages
) -> None:
    with pytest.raises(TooFewSites, match="north is required"):
        disturbed(lab, outages, Log(), {6: ["north"]}, sites__required=["north"])


def test_a_liar_is_not_gone_on_without(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(answer: Any) -> Any:
        tensors = {name: np.full_like(array, np.nan) for name, array in answer.tensors.items()}
        return replace(answer, tensors=tensors)

    monkeypatch.setattr(SITES, LyingSite)
    monkeypatch.setattr(LyingSite, "about", "give_replica")
    monkeypatch.setattr(LyingSite, "lies", {"west": spoilt})
    with pytest.raises(SiteRefused, match=r"west.*is not finite"):
        in_time(lambda: run_over(lab, NAMES, **REPLICAS))


def test_without_room_there_is_no_replica_and_the_run_says_why(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearly_full = Space(total=10**9, free=50 * 10**6 + 3)
    monkeypatch.setattr("fedpilot.federated.site.rounds.replicas.disk_usage", lambda _: nearly_full)
    log = Log()
    run_over(lab, NAMES, log, **REPLICAS)
    (said,) = log.of("replica_made")
    assert said["holders"] == dict.fromkeys(NAMES)
    assert all("3 B" in reason for reason in said["reasons"].values())


# -- afterwards ------------------------------------------------------------------------------------


def test_a_run_that_went_back_is_verified(lab: Lab, outages: Outages) -> None:
    run = disturbed(lab, outages, Log(), {6: ["north"]})
    found = Archive(lab.runs.parent, ExitStack()).verify(run.folder.name, how=Replay.ALL)
    assert not found.differs
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (0, ROUNDS)


@pytest.mark.parametrize("after", [5, pytest.param(4, marks=pytest.mark.soak)])
def test_a_resumed_run_goes_back_to_the_replica_of_the_attempt_before(
    after: int, lab: Lab, outages: Outages, calm: Calmly
) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=after)
    with over(lab, NAMES, stop, **REPLICAS) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    log = Log()
    with over(lab, NAMES, log, **REPLICAS) as federation:
        outages.happen(federation, {6: ["north"]})
        resumed = in_time(lambda: federation.resume("r"))
    assert [event["to"] for event in log.of("went_back")] == [4]
    calm().check(resumed)


@pytest.mark.parametrize("number", [5, pytest.param(6, marks=pytest.mark.soak)])
def test_a_run_that_went_back_resumes_without_the_lost_site(
    number: int, lab: Lab, outages: Outages, calm: Calmly
) -> None:
    stop = raising(KeyboardInterrupt(), "round_started", nth=2, round=number)
    with over(lab, NAMES, stop, **REPLICAS) as federation:
        outages.happen(federation, {6: ["north"]})
        with pytest.raises(KeyboardInterrupt):
            in_time(lambda: federation.run(run_id="r"))
    with over(lab, ("east", "west"), **REPLICAS) as federation:
        resumed = in_time(lambda: federation.resume("r"))
    calm().check(resumed)


def test_a_run_that_is_interrupted_as_it_goes_back_has_changed_nothing(
    lab: Lab, outages: Outages, calm: Calmly
) -> None:
    stop = raising(KeyboardInterrupt(), "went_back")
    with over(lab, NAMES, stop, **REPLICAS) as federation:
        outages.happen(federation, {6: ["north"]})
        with pytest.raises(KeyboardInterrupt):
            in_time(lambda: federation.run(run_id="r"))
    with over(lab, NAMES, **REPLICAS) as federation:
        resumed = in_time(lambda: federation.resume("r"))
    calm().check(resumed)


def test_a_later_run_goes_on_where_the_clients_are(lab: Lab, outages: Outages) -> None:
    first = disturbed(lab, outages, Log(), {6: ["north"]})
    longer = {**WITHOUT, "federation__rounds": ROUNDS + 2}
    with over(lab, NAMES, **longer) as federation:
        later = in_time(lambda: federation.run(parent=first.run_id))
    assert later.digest == run_over(lab, NAMES[:1], **longer).digest


def test_one_site_is_refused_before_anything_starts(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"replicate_every.*one site"):
        run_over(lab, NAMES[:1], **REPLICAS)


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        pytest.param(
            {"federation__topology": "star", "federation__aggregation_strategy": "fedavg"},
            "participation.replicate_every",
            "keep nothing between rounds",
            id="a star has no models of clients",
        ),
        pytest.param(
            {
                "federation__topology": "star",
                "federation__aggregation_strategy": "fedavg",
                "training__client_update": "mine:update",
            },
            "participation.replicate_every",
            "`client_update` keeps stays at its site",
            id="what a client update keeps is not copied",
        ),
        pytest.param({"sites__count": 1}, "participation.replicate_every", "one site", id="a site"),
        pytest.param(
            {"participation__replicate_every": ROUNDS},
            "participation.replicate_every",
            "none is made before the last",
            id="no replica would be made",
        ),
        pytest.param(
            {"participation__quorum": 0.5},
            "participation.replicate_every",
            "sit out",
            id="a quorum says otherwise",
        ),
        pytest.param(
            {"participation__replacement": False},
            "participation.replicate_every",
            "wait for their site",
            id="clients that wait for their site",
        ),
        pytest.param(
            {"traffic__run_bytes": "1GB"},
            "traffic.run_bytes",
            "moves the bytes of rounds again",
            id="a limit on bytes",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    keys: dict[str, Any], key: str, said: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError) as refused:
        over(lab, NAMES, **{**REPLICAS, **keys})
    (problem,) = refused.value.problems
    assert problem.key == key
    assert said in f"{problem.found} {problem.allowed}"


def test_replicas_need_disk_where_models_are_spilled(lab: Lab) -> None:
    keys = {**REPLICAS, "resources__store_bytes": "1"}
    with over(lab, NAMES, **keys) as with_, over(lab, NAMES, **{**keys, **NONE}) as without:
        more, less = with_.loaded.spilling, without.loaded.spilling
    assert more is not None
    assert less is not None
    assert (more.models, more.saved) == (less.models, 2 * less.saved)
