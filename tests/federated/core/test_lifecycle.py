"""A VirtualNode's life is a table without gaps, and the ledger never follows the population."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.lifecycle import (
    TRANSITIONS,
    NodeEvent,
    NodeRecord,
    NodeRecords,
    NodeState,
    Visit,
    after,
    joined,
)
from fedpilot.federated.errors import InvalidTransition

S, E = NodeState, NodeEvent

ALLOWED = {
    (S.VIRTUAL, E.REQUEST): S.PENDING,
    (S.PENDING, E.REQUEST): S.PENDING,
    (S.PENDING, E.BIND): S.MATERIALIZED,
    (S.PENDING, E.RELEASE): S.RELEASED,
    (S.PENDING, E.FAIL): S.FAILED,
    (S.MATERIALIZED, E.REQUEST): S.MATERIALIZED,
    (S.MATERIALIZED, E.BIND): S.MATERIALIZED,
    (S.MATERIALIZED, E.LOSE): S.PENDING,
    (S.MATERIALIZED, E.RELEASE): S.RELEASED,
    (S.MATERIALIZED, E.FAIL): S.FAILED,
    (S.RELEASED, E.REQUEST): S.PENDING,
    (S.FAILED, E.REQUEST): S.PENDING,
}


@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("event", NodeEvent)
def test_every_pair_is_decided(state: NodeState, event: NodeEvent) -> None:
    if (state, event) in ALLOWED:
        assert after(state, event) is ALLOWED[state, event]
        return
    with pytest.raises(InvalidTransition) as caught:
        after(state, event, "client_3")
    text = str(caught.value)
    assert "client_3" in text
    assert state in text
    assert event in text
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.subject, again.state, again.event) == ("client_3", state, event)


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(NodeState)


def test_from_every_state_a_request_leads_to_work() -> None:
    for state in NodeState:
        assert after(state, E.REQUEST) in (S.PENDING, S.MATERIALIZED)


def test_a_node_nobody_touched_is_virtual_and_costs_nothing() -> None:
    ledger = NodeRecords()
    record = ledger.record(999_999)
    assert (record.state, record.worker, record.trail) == (S.VIRTUAL, "", ())
    assert len(ledger) == 0


def test_a_record_tells_where_why_and_since_when() -> None:
    ledger = NodeRecords()
    ledger.apply([5], E.REQUEST, now=1.0, reason="needed")
    ledger.apply([5], E.BIND, now=2.0, reason="its worker", worker="worker 1")
    ledger.apply([5], E.BIND, now=3.0, reason="its worker", worker="worker 1")
    record = ledger.record(5)
    assert (record.state, record.worker, record.reason) == (
        S.MATERIALIZED,
        "worker 1",
        "its worker",
    )
    assert record.since == 2.0
    assert [(at, event) for at, event, _ in record.trail] == [
        (1.0, E.REQUEST), (2.0, E.BIND), (3.0, E.BIND)
    ]  # fmt: skip
    ledger.apply([5], E.RELEASE, now=4.0, reason="done")
    assert (ledger.record(5).worker, ledger.record(5).since) == ("worker 1", 4.0)


def test_the_trail_keeps_the_latest_events() -> None:
    ledger = NodeRecords()
    for now in range(30):
        ledger.apply([0], E.REQUEST, now=float(now), reason=str(now))
    assert [why for _, _, why in ledger.record(0).trail] == [str(n) for n in range(22, 30)]


def test_many_nodes_take_one_event_together() -> None:
    ledger = NodeRecords()
    ledger.apply(range(100), E.REQUEST, now=0.0, reason="a round")
    ledger.apply(range(50), E.BIND, now=1.0, reason="a chunk", worker="worker 0")
    assert ledger.in_state(S.MATERIALIZED) == tuple(range(50))
    assert ledger.in_state(S.PENDING) == tuple(range(50, 100))
    assert ledger.in_state(S.PENDING, S.MATERIALIZED)[-1] == 49, "touched last comes last"


def test_an_event_that_does_not_fit_is_refused_and_changes_that_node_not() -> None:
    ledger = NodeRecords()
    ledger.apply([1], E.REQUEST, now=0.0, reason="")
    with pytest.raises(InvalidTransition, match="node 2"):
        ledger.apply([2], E.BIND, now=1.0, reason="")
    assert ledger.record(2).state is S.VIRTUAL
    assert ledger.record(1).state is S.PENDING


def test_the_longest_settled_are_forgotten_first_and_are_virtual_again() -> None:
    ledger = NodeRecords(keep=3)
    for index in range(5):
        ledger.apply([index], E.REQUEST, now=float(index), reason="")
        ledger.apply([index], E.RELEASE, now=float(index), reason="")
    assert len(ledger) == 3
    assert [ledger.record(i).state for i in range(5)] == [S.VIRTUAL] * 2 + [S.RELEASED] * 3


def test_nodes_that_are_in_use_are_never_forgotten() -> None:
    ledger = NodeRecords(keep=2)
    ledger.apply(range(4), E.REQUEST, now=0.0, reason="")
    ledger.apply([9], E.REQUEST, now=1.0, reason="")
    ledger.apply([9], E.FAIL, now=1.0, reason="")
    assert len(ledger) == 4
    assert ledger.in_state(S.PENDING) == (0, 1, 2, 3)
    assert ledger.record(9).state is S.VIRTUAL


def test_a_forgotten_node_lives_again() -> None:
    ledger = NodeRecords(keep=1)
    for index in (0, 1):
        ledger.apply([index], E.REQUEST, now=0.0, reason="")
        ledger.apply([index], E.RELEASE, now=0.0, reason="")
    ledger.apply([0], E.REQUEST, now=1.0, reason="again")
    assert ledger.record(0).state is S.PENDING
    assert len(ledger.record(0).trail) == 1


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(NodeEvent)), max_size=200))
def test_whatever_happens_memory_is_bounded_by_the_nodes_in_use(
    history: list[tuple[int, NodeEvent]],
) -> None:
    ledger = NodeRecords(keep=4)
    for now, (index, event) in enumerate(history):
        state = ledger.record(index).state
        if event in TRANSITIONS[state]:
            ledger.apply([index], event, now=float(now), reason="")
        else:
            with pytest.raises(InvalidTransition):
                ledger.apply([index], event, now=float(now), reason="")
            assert ledger.record(index).state is state
        in_use = ledger.in_state(S.PENDING, S.MATERIALIZED)
        assert len(ledger) <= max(4, len(in_use))
        assert len(ledger.record(index).trail) <= NodeRecords.TRAIL


# -- visits -----------------------------------------------------------------------------------


def untouched() -> NodeRecord:
    return NodeRecords().record(0)


def visit(*events: tuple[float, NodeEvent, str], nodes: tuple[int, ...] = (2, 5, 9)) -> Visit:
    made = Visit(np.array(nodes))
    for now, event, worker in events:
        made.apply(event, now=now, reason=f"{event} at {now:g}", worker=worker)
    return made


ROUND = ((1.0, E.REQUEST, ""), (2.0, E.BIND, "worker 1"), (3.0, E.RELEASE, ""))


@pytest.mark.parametrize("index", range(12))
def test_a_visit_knows_its_nodes(index: int) -> None:
    assert (index in visit()) == (index in (2, 5, 9))
    assert index not in Visit(np.empty(0, dtype=np.int64))


@given(st.lists(st.sampled_from(NodeEvent), max_size=30))
def test_a_visit_goes_by_the_same_table_and_leaves_out_what_does_not_apply(
    events: list[NodeEvent],
) -> None:
    made, state = visit(), S.VIRTUAL
    for now, event in enumerate(events):
        made.apply(event, now=float(now), reason="")
        state = TRANSITIONS[state].get(event, state)
        assert made.state is state
    replayed = S.VIRTUAL
    for _, event, _ in made.trail:
        replayed = after(replayed, event)
    assert replayed is state


def test_a_node_that_only_passed_through_a_round_is_told_of_it() -> None:
    found = joined(untouched(), [visit(*ROUND)])
    assert (found.state, found.worker, found.since) == (S.RELEASED, "worker 1", 3.0)
    assert found.reason == "release at 3"
    assert [event for _, event, _ in found.trail] == [E.REQUEST, E.BIND, E.RELEASE]


@pytest.mark.parametrize(
    ("events", "state", "since"),
    [
        pytest.param(ROUND[:1], S.PENDING, 1.0, id="it waits"),
        pytest.param(ROUND[:2], S.MATERIALIZED, 2.0, id="its piece is at a worker"),
        pytest.param((*ROUND[:2], (4.0, E.LOSE, "")), S.PENDING, 4.0, id="its worker died"),
        pytest.param(
            (*ROUND[:2], (4.0, E.LOSE, ""), (5.0, E.BIND, "worker 0")),
            S.MATERIALIZED,
            5.0,
            id="it went to another",
        ),
        pytest.param((*ROUND[:2], (4.0, E.FAIL, "")), S.FAILED, 4.0, id="its piece failed"),
    ],
)
def test_a_node_amid_a_round(
    events: tuple[tuple[float, NodeEvent, str], ...], state: NodeState, since: float
) -> None:
    found = joined(untouched(), [visit(*events)])
    assert (found.state, found.since) == (state, since)
    assert found.worker == ([""] + [worker for _, _, worker in events if worker])[-1]


def test_the_latest_of_two_rounds_counts_and_both_are_told() -> None:
    second = visit((4.0, E.REQUEST, ""), (5.0, E.BIND, "worker 0"))
    found = joined(untouched(), [visit(*ROUND), second])
    assert (found.state, found.worker, found.since) == (S.MATERIALIZED, "worker 0", 5.0)
    assert [at for at, _, _ in found.trail] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_a_node_did_by_itself_is_told_in_order_with_its_rounds() -> None:
    ledger = NodeRecords()
    ledger.apply([5], E.REQUEST, now=0.0, reason="train() was called")
    ledger.apply([5], E.BIND, now=0.5, reason="its worker", worker="worker 7")
    ledger.apply([5], E.RELEASE, now=0.7, reason="release() was called")
    found = joined(ledger.record(5), [visit(*ROUND)])
    assert (found.state, found.worker) == (S.RELEASED, "worker 1")
    assert [at for at, _, _ in found.trail] == [0.0, 0.5, 0.7, 1.0, 2.0, 3.0]
    earlier = visit((-3.0, E.REQUEST, ""), (-2.0, E.BIND, "worker 3"), (-1.0, E.RELEASE, ""))
    found = joined(ledger.record(5), [earlier])
    assert (found.state, found.worker, found.reason) == (
        S.RELEASED, "worker 7", "release() was called"
    )  # fmt: skip
    assert found.trail[0][0] == -3.0


def test_a_joined_trail_keeps_the_latest_events() -> None:
    many = [visit((float(n), E.REQUEST, ""), (n + 0.5, E.RELEASE, "")) for n in range(20)]
    found = joined(untouched(), many)
    assert len(found.trail) == NodeRecords.TRAIL
    assert found.trail[-1][0] == 19.5
