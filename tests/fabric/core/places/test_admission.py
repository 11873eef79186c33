"""Queues admit in order: who is first, who is behind whom, whose deadline is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import given, strategies as st

from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.admission import Decision, Expire, QueuedAt, decide
from fedpilot.fabric.core.places.nomination import Admit, apply, never, place
from fedpilot.fabric.core.places.request import QueuePolicy, Request
from fedpilot.fabric.core.records import ROOT, ClusterId
from ledgers import admit, asks, contents, group, machines, told


class TestTheQueue:
    def test_the_first_that_does_not_fit_holds_up_the_rest(self) -> None:
        ledger = machines(a=4)
        decisions = decide(
            ledger, [asks("one", group(3)), asks("two", group(2)), asks("three", group(1))], 0.0
        )
        assert told(decisions) == ["admit one", "wait two 1", "wait three 2"]
        assert "the most free on one machine is 1 CPU" in reasons(decisions)[1]
        assert "two is before it" in reasons(decisions)[2]

    def test_higher_priority_goes_first(self) -> None:
        ledger = machines(a=4)
        waiting = [asks("one", group(3)), asks("two", group(3), priority=5)]
        assert told(decide(ledger, waiting, 0.0, QueuePolicy.PRIORITY)) == [
            "admit two",
            "wait one 1",
        ]

    def test_those_inside_a_cluster_have_a_queue_of_their_own(self) -> None:
        ledger = machines(a=4)
        admit(ledger, asks("job", group(2), flexible=False))
        waiting = [asks("one", group(4)), asks("part", group(2), inside="job")]
        assert told(decide(ledger, waiting, 0.0)) == ["wait one 1", "admit part"]

    def test_a_deadline_ends_the_wait(self) -> None:
        ledger = machines(a=4)
        admit(ledger, asks("job", group(3)))
        waiting = [asks("one", group(2), deadline=5.0), asks("two", group(1))]
        assert told(decide(ledger, waiting, 4.9)) == ["wait one 1", "wait two 2"]
        assert told(decide(ledger, waiting, 5.0)) == ["expire one", "admit two"]

    def test_what_could_never_be_met_is_told_from_what_must_wait(self) -> None:
        ledger = machines(a=4, b=2)
        admit(ledger, asks("job", group(4, 2)))
        assert never(ledger, asks("one", group(4))) is None
        refused = never(ledger, asks("two", group(4, 4)))
        assert refused is not None
        assert refused.most == 1
        assert never(ledger, asks("part", group(4), inside="job")) is None
        assert never(ledger, asks("part", group(4, 4), inside="job")) is not None


requests = st.builds(
    lambda number, amount, inside, priority, patience: asks(
        f"r{number}",
        *([group(amount)] if amount else []),
        inside=inside,
        priority=priority,
        deadline=patience,
    ),
    number=st.just(0),
    amount=st.integers(0, 5),
    inside=st.sampled_from([ROOT, "job", "other"]),
    priority=st.integers(0, 2),
    patience=st.none() | st.integers(0, 2),
)


def one_after_the_other(
    ledger: Ledger, waiting: Sequence[Request], now: float, policy: QueuePolicy
) -> list[Decision]:
    """What `decide` is to answer, found by looking at everybody."""
    trial, made = ledger.copy(), list[Decision]()
    queues: dict[ClusterId, list[ClusterId]] = {}
    if policy is QueuePolicy.PRIORITY:
        waiting = sorted(waiting, key=lambda request: -request.priority)
    for request in waiting:
        queue = queues.setdefault(request.parent, [])
        reason = f"{queue[0]} is before it" if queue else ""
        if not queue:
            found = place(trial, request)
            if isinstance(found, Admit):
                apply(trial, found, now)
                made.append(found)
                continue
            reason = found.reason
        if request.deadline is not None and request.deadline <= now:
            made.append(Expire(request, f"its deadline is over; {reason}"))
        else:
            queue.append(request.id)
            made.append(QueuedAt(request, len(queue), reason))
    return made


@given(
    waiting=st.lists(requests, max_size=12),
    now=st.integers(0, 2),
    policy=st.sampled_from(QueuePolicy),
)
def test_a_queue_is_decided_on_as_if_everybody_in_it_was_looked_at(
    waiting: list[Request], now: int, policy: QueuePolicy
) -> None:
    waiting = [replace(each, id=ClusterId(f"r{n}")) for n, each in enumerate(waiting)]
    ledger = machines(a=6, b=4)
    admit(ledger, asks("job", group(2), most=2), asks("other", group(1), flexible=False))
    before = contents(ledger)
    found = decide(ledger, waiting, now, policy)
    assert list(found) == one_after_the_other(ledger, waiting, now, policy)
    assert len(found) == len(waiting)
    assert contents(ledger) == before


def test_those_behind_the_first_are_not_looked_at_one_by_one() -> None:
    waiting = [asks(f"r{number}", group(1)) for number in range(10_000)]
    found = decide(machines(a=0.5), waiting, 0.0)
    assert list(found.made) == ["r0"]
    assert list(found)[-1] == QueuedAt(waiting[-1], 10_000, "r0 is before it")


def reasons(decisions: Iterable[Decision]) -> list[str]:
    return ["" if isinstance(each, Admit) else each.reason for each in decisions]
