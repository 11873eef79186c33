"""Which queue comes next, and which workload of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpilot.fabric.core.scheduling.order import (
    QueueStanding,
    entitlement,
    furthest_over,
    place_in_line,
    queue_key,
)
from fedpilot.fabric.core.scheduling.records import GangPart, GangSpec, QueueIndex, WorkloadId
from fedpilot.fabric.core.scheduling.snapshot import Kind
from scheduling_situations import GPU, facts

QUEUE = facts([8], {"A": 2}).snapshot().queues[0]
ELASTIC = GangSpec(parts=(GangPart(request=(GPU,), least=1, most=3),))


def key(*, has: int, needs: int = 1, quota: int = 2, share: int = 4, priority: int = 0) -> object:
    queue = replace(QUEUE, quota=(quota * GPU,), priority=priority)
    deserved = (share * GPU,)
    entitled = entitlement(queue, deserved)
    standing = QueueStanding.of(queue, deserved, entitled, (GPU,))
    return queue_key(standing, (has * GPU,), (needs * GPU,))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(key(has=4), key(has=5), id="not over its share, before one that is"),
        pytest.param(key(has=1), key(has=2), id="in quota with the request, before one above"),
        pytest.param(key(has=2, priority=1), key(has=2), id="higher priority"),
        pytest.param(key(has=1), key(has=0, priority=1, needs=3), id="quota before priority"),
        pytest.param(key(has=2), key(has=3), id="the smaller share of what it is entitled to"),
        pytest.param(key(has=0, quota=2, share=2), key(has=0, quota=0, share=0),
                     id="one that is entitled to something"),
    ],
)  # fmt: skip
def test_the_first_queue_comes_before_the_second(first: object, second: object) -> None:
    assert first < second  # type: ignore[operator]


def kind(priority: int, running: int) -> Kind:
    return Kind(QueueIndex(0), ELASTIC, priority, True, (running,))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((kind(75, 0), 2), (kind(50, 0), 1), id="higher priority before older"),
        pytest.param((kind(50, 0), 1), (kind(50, 0), 2), id="older"),
        pytest.param((kind(10, 0), 2), (kind(75, 1), 1), id="a minimum before any surplus"),
        pytest.param((kind(50, 1), 2), (kind(50, 2), 1), id="at its minimum before above it"),
    ],
)
def test_the_first_workload_comes_before_the_second(
    first: tuple[Kind, int], second: tuple[Kind, int]
) -> None:
    id = WorkloadId("w")
    assert place_in_line(first[0], (first[1], id)) < place_in_line(second[0], (second[1], id))


def over(has: int, *, priority: int = 0) -> object:
    queue, share = replace(QUEUE, priority=priority), (4 * GPU,)
    return furthest_over(queue, share, entitlement(queue, share), (has * GPU,), (GPU,))


@pytest.mark.parametrize(
    ("gives", "keeps"),
    [
        pytest.param(over(5, priority=1), over(4), id="over its share, whatever its priority"),
        pytest.param(over(3), over(2), id="over its quota"),
        pytest.param(over(3), over(4, priority=1), id="lower priority, if both are over quota"),
        pytest.param(over(4), over(3), id="further over"),
    ],
)
def test_the_first_queue_gives_before_the_second(gives: object, keeps: object) -> None:
    assert gives > keeps  # type: ignore[operator]
