"""The rules that no action may break: limits, and the quota for non-preemptible work.

Both hold for the project and for its department. A gang is tested for all members to be started.
"""

from __future__ import annotations

from collections.abc import Sequence

from .records import Amounts, PoolQueue, QueueIndex, Reason, Rule
from .snapshot import Scale


def refusal(
    queues: Sequence[PoolQueue],
    path: Sequence[QueueIndex],
    allocated: Sequence[Sequence[int]],
    guaranteed: Sequence[Sequence[int]],
    need: Amounts,
    *,
    preemptible: bool,
    scale: Scale,
) -> Reason | None:
    """Why `need` more may not run in the queue at the start of this path; None if it may."""
    for index in path:
        queue = queues[index]
        over = _beyond(allocated[index], need, queue.limit)
        if over is not None:
            return Reason(Rule.LIMIT, _words(queue, "limit", queue.limit, over, scale))
        if preemptible:
            continue
        over = _beyond(guaranteed[index], need, queue.quota)
        if over is not None:
            text = _words(queue, "quota for non-preemptible work", queue.quota, over, scale)
            return Reason(Rule.NONPREEMPTIBLE_QUOTA, text)
    return None


def _beyond(has: Sequence[int], need: Amounts, most: Amounts) -> int | None:
    """The first resource of which `need` more would be too much."""
    for i, amount in enumerate(need):
        if amount and has[i] + amount > most[i]:
            return i
    return None


def _words(queue: PoolQueue, what: str, most: Amounts, resource: int, scale: Scale) -> str:
    name, unit = scale.names[resource], scale.units[resource]
    return f"{queue.name} would exceed its {what} of {most[resource] / unit:.15g} {name}"
