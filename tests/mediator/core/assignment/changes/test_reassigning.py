"""Which clients move to other sites in mid-run, if any."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator.core.assignment import (
    Assignment,
    ClientMove,
    Exchange,
    MoveVerdict,
    Reassignment,
    ReassignmentProblem,
    RoundWork,
    SiteCapacity,
    assign,
    members,
    moved,
    places_of,
    reassigned,
    reassignment,
    round_cost,
    share_of,
    size,
)
from fedpilot.mediator.core.assignment.changes.reassigning import SHARE
from fedpilot.mediator.core.assignment.costs import Prices
from fedpilot.mediator.core.assignment.room import BALANCE, LEAST
from fedpilot.mediator.core.links import LinkSpeed

STATE = 1000
WORK = RoundWork(model_bytes=STATE, sum_bytes=2 * STATE)


def site(name: str, rate: float | None = 1e4, vnodes: int = 1) -> SiteCapacity:
    return SiteCapacity(name, vnodes, 1e-3, LinkSpeed(up=rate, down=rate))


def problem_of(
    assignment: Assignment, sites: list[SiteCapacity], exchange: Exchange, **more: object
) -> ReassignmentProblem:
    return replace(
        ReassignmentProblem(
            assignment=assignment,
            sites=sites,
            exchange=exchange,
            work=WORK,
            state_bytes=STATE,
            round_number=11,
            rounds_left=100,
            window=6,
        ),
        **more,  # type: ignore[arg-type]
    )


def ring(clients: int) -> Exchange:
    one = np.arange(clients)
    return Exchange.between(one, (one + 1) % clients)


def seconds(problem: ReassignmentProblem, assignment: Assignment) -> float:
    places = places_of(assignment.shares, problem.sites, assignment.population)
    return round_cost(places, problem.sites, problem.work, problem.exchange).seconds


# -- examples --------------------------------------------------------------------------------------

CLIENTS = 60


def random_graph(clients: int = CLIENTS, seed: int = 1) -> Exchange:
    one, other = np.random.default_rng(seed).integers(0, clients, (2, 3 * clients))
    return Exchange.between(one, other)


GRAPH = random_graph()
FAST = [site("a"), site("b"), site("c")]
SLOW = [site("a"), site("b"), site("c", 1e3)]
"""The link of `c` has become slow."""
START = assign("locality", CLIENTS, FAST, exchange=GRAPH, work=WORK)


def test_clients_leave_a_site_whose_link_becomes_slow() -> None:
    found = reassignment(problem_of(START, SLOW, GRAPH))
    assert found.verdict is MoveVerdict.MOVE
    assert {move.origin for move in found.moves} == {"c"}
    room = 21 - size(START.shares["b"])
    assert size(START.shares["a"]) == 21, "no room"
    assert {move.to: size(move.clients) for move in found.moves} == {"b": room}
    assert "instead of" in found.reason
    assert "100 rounds left" in found.reason


def test_the_decision_has_its_figures() -> None:
    problem = problem_of(START, SLOW, GRAPH)
    found = reassignment(problem)
    after = moved(START, found.moves)
    assert found.saved_s == pytest.approx(seconds(problem, START) - seconds(problem, after))
    clients = sum(size(move.clients) for move in found.moves)
    assert found.moving_s == pytest.approx(clients * (STATE / 1e3 + STATE / 1e4))


def test_the_trail_of_a_client_says_when_it_moved_and_why() -> None:
    found = reassignment(problem_of(START, SLOW, GRAPH))
    client = int(members(found.moves[0].clients)[0])
    told = moved(START, found.moves).explain(client)
    assert "was at site c until round 11, as that makes a round take" in told


@pytest.mark.parametrize(
    ("more", "sites", "verdict", "said"),
    [
        pytest.param({}, FAST, MoveVerdict.SHORTEST, "no move", id="nothing has changed"),
        pytest.param(
            {"rounds_left": 1, "state_bytes": 100_000_000},
            SLOW,
            MoveVerdict.TOO_DEAR,
            "in the 1 round left",
            id="the move takes longer than it saves",
        ),
        pytest.param({"room": {"a": 0, "b": 999}}, SLOW, MoveVerdict.SHORTEST, "", id="no disk"),
        pytest.param(
            {},
            [site("a", None), site("b"), site("c", None)],
            MoveVerdict.UNKNOWN,
            "of a and c not",
            id="one site's link is known",
        ),
        pytest.param(
            {},
            [site("a", None), site("b", None), site("c", None)],
            MoveVerdict.UNKNOWN,
            "of no site",
            id="no link is known",
        ),
    ],
)
def test_clients_stay(
    more: dict[str, object], sites: list[SiteCapacity], verdict: MoveVerdict, said: str
) -> None:
    found = reassignment(problem_of(START, sites, GRAPH, **more))
    assert (found.verdict, found.moves) == (verdict, ())
    assert said in found.reason


def test_a_site_that_has_returned_gets_clients_where_that_pays() -> None:
    """All clients of the lost site are at another one, which takes twice as long as before."""
    start = assign("capacity", CLIENTS, FAST, exchange=GRAPH)
    lost = reassigned(start, "c", FAST[:1], round_number=2)
    fast = [replace(each, link=LinkSpeed(up=1e9, down=1e9)) for each in FAST]
    work = replace(WORK, samples=np.full(CLIENTS, 100))
    found = reassignment(problem_of(lost, fast, GRAPH, work=work))
    assert {move.to for move in found.moves} == {"c"}
    assert {move.origin for move in found.moves} >= {"a"}
    early = reassignment(problem_of(lost, fast, GRAPH, work=work, round_number=7))
    assert {move.to for move in early.moves} == {"c"}
    for move in early.moves:
        assert not {*members(move.clients)} & {*members(start.share("c"))}


@pytest.mark.parametrize(
    ("number", "returns"),
    [
        pytest.param(14, False, id="within the window it stays"),
        pytest.param(15, True, id="after the window it returns"),
        pytest.param(5, False, id="the run went back to a round before the move"),
    ],
)
def test_a_client_that_left_a_site_returns_after_the_window(number: int, returns: bool) -> None:
    ring_of = ring(CLIENTS)
    start = assign("capacity", CLIENTS, FAST)
    astray = ClientMove(round_number=9, origin="c", to="a", clients=(range(50, 51),), reason="why")
    problem = problem_of(moved(start, [astray]), FAST, ring_of, round_number=number)
    found = reassignment(problem)
    back = [range(50, 51)] in [[*move.clients] for move in found.moves]
    assert back == returns


# -- properties ------------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> ReassignmentProblem:
    clients = draw(st.integers(2, 60))
    client = st.integers(0, clients - 1)
    names = draw(st.lists(st.sampled_from("abcde"), min_size=2, unique=True))
    rates = st.sampled_from([None, 1e2, 1e3, 1e4, 1e5])
    trips = st.sampled_from([None, 0.1])
    there = [
        SiteCapacity(
            name,
            draw(st.integers(1, 4)),
            draw(st.sampled_from([None, 1e-4, 1e-2])),
            LinkSpeed(up=draw(rates), down=draw(rates), round_trip_s=draw(trips)),
        )
        for name in names
    ]
    ends = np.array(draw(st.lists(st.tuples(client, client), max_size=120)), dtype=np.int64)
    one, other = ends.reshape(-1, 2).T
    exchange = (Exchange.directed if draw(st.booleans()) else Exchange.between)(one, other)
    first = draw(st.integers(0, clients))
    pinned = {draw(st.sampled_from(names)): [range(first, clients)]} if first < clients else {}
    start = assign(draw(st.sampled_from(["capacity", "round_robin"])), clients, there, pinned)
    moves = []
    for number in draw(st.lists(st.integers(1, 12), max_size=4)):
        origin, to = draw(st.permutations(names))[:2]
        if len(some := members(start.movable.get(origin, ()))):
            its = share_of(np.array(sorted(draw(st.sets(st.sampled_from(some.tolist()))))))
            moves.append(
                ClientMove(round_number=number, origin=origin, to=to, clients=its, reason="why")
            )
            start = moved(start, moves[-1:])
    work = RoundWork(
        model_bytes=STATE,
        sum_bytes=2 * STATE,
        samples=draw(st.none() | st.just(np.arange(clients) * 7)),
        mixing_steps=draw(st.integers(1, 3)),
    )
    nbytes = draw(st.sampled_from([1, STATE, 10**6]))
    room = draw(st.dictionaries(st.sampled_from(names), st.integers(0, 20 * nbytes)))
    return problem_of(
        start,
        there,
        exchange,
        work=work,
        state_bytes=nbytes,
        rounds_left=draw(st.integers(1, 500)),
        window=draw(st.integers(0, 12)),
        room=room,
    )


def check_moves(problem: ReassignmentProblem, found: Reassignment) -> None:
    """What each move has to keep."""
    before, there = problem.assignment, {each.name: each for each in problem.sites}
    leaving, coming = Counter[str](), Counter[str]()
    for move in found.moves:
        clients = {*members(move.clients).tolist()}
        assert clients <= {*members(before.movable.get(move.origin, ())).tolist()}, "pinned"
        for name in (move.origin, move.to):
            assert None not in (there[name].link.up, there[name].link.down)
        for earlier in before.moves:
            if earlier.origin == move.to and clients & {*members(earlier.clients).tolist()}:
                assert problem.round_number - earlier.round_number >= problem.window
        leaving[move.origin] += len(clients)
        coming[move.to] += len(clients)
    for name, count in leaving.items():
        assert count <= max(1, SHARE * size(before.movable[name]))
    for name, count in coming.items():
        if name in problem.room:
            assert count * problem.state_bytes <= problem.room[name]


@settings(max_examples=settings().max_examples // 3)
@given(problems())
def test_a_move_keeps_its_limits(problem: ReassignmentProblem) -> None:
    found = reassignment(problem)
    assert found.reason
    assert bool(found.moves) == (found.verdict is MoveVerdict.MOVE)
    check_moves(problem, found)


@settings(max_examples=settings().max_examples // 3)
@given(problems())
def test_a_move_keeps_the_sites_capacities(problem: ReassignmentProblem) -> None:
    before = problem.assignment
    after = moved(before, reassignment(problem).moves)
    assert after.pinned == before.pinned
    assert after.population == before.population
    if before.pinned:
        return
    sites = sorted(problem.sites, key=lambda each: each.name)
    speeds = 1 / Prices.of(sites).sample if any(s.seconds_per_sample for s in sites) else None
    if speeds is None:
        speeds = np.array([each.vnodes for each in sites])
    for each, part in zip(sites, before.population * speeds / speeds.sum(), strict=True):
        old, new = size(before.share(each.name)), size(after.share(each.name))
        assert new <= max(old, (part + 1) * (1 + BALANCE))
        assert new >= min(old, (part - 1) / LEAST)


@settings(max_examples=settings().max_examples // 3)
@given(problems())
def test_a_move_saves_more_than_it_costs(problem: ReassignmentProblem) -> None:
    found = reassignment(problem)
    if found.moves:
        after = moved(problem.assignment, found.moves)
        saved = seconds(problem, problem.assignment) - seconds(problem, after)
        prices = Prices.of(problem.sites)
        number = {each.name: at for at, each in enumerate(problem.sites)}
        up, down = np.zeros(len(number)), np.zeros(len(number))
        for move in found.moves:
            up[number[move.origin]] += size(move.clients) * problem.state_bytes
            down[number[move.to]] += size(move.clients) * problem.state_bytes
        cost = (up * prices.byte_up).max() + (down * prices.byte_down).max()
        assert saved * problem.rounds_left > cost * (1 - 1e-9)


@settings(max_examples=settings().max_examples // 3)
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_known_does_not_matter(
    problem: ReassignmentProblem, chance: random.Random
) -> None:
    found = reassignment(problem)
    mixed = list(problem.sites)
    chance.shuffle(mixed)
    shares = list(problem.assignment.movable.items())
    chance.shuffle(shares)
    other = replace(problem.assignment, movable=dict(shares))
    assert reassignment(replace(problem, sites=mixed, assignment=other)) == found


@settings(max_examples=settings().max_examples // 3)
@given(problems())
def test_a_run_that_is_asked_again_and_again_comes_to_rest(problem: ReassignmentProblem) -> None:
    """Each move makes a round shorter, so no client goes in circles."""
    for _ in range(3):
        found = reassignment(problem)
        after = moved(problem.assignment, found.moves)
        assert seconds(problem, after) <= seconds(problem, problem.assignment)
        problem = replace(
            problem, assignment=after, round_number=problem.round_number + problem.window
        )
