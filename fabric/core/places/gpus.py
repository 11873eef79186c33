"""Free amounts of each single GPU of a place.

A share of a GPU comes from one GPU, so two free halves are not a whole one. Ray does not report
which GPUs it chose, so shares are assumed to lie as tightly as they can. If Ray refuses what seemed
possible, the machine is `fragmented`: its shares are assumed to lie as far apart as they can.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from ..ledger import Ledger
from ..records import MachineId, PlaceId
from ..resources import UNIT, Resources
from .placement import GPU, each_gpu


def free_gpus(
    ledger: Ledger, places: Iterable[PlaceId], fragmented: Container[MachineId] = frozenset()
) -> dict[PlaceId, tuple[int, ...]]:
    """The free amounts of these places' GPUs, in units, ascending."""
    taken: dict[PlaceId, list[int]] = {place: [] for place in places}
    for vnode in ledger.vnodes.values():
        if vnode.parent in taken:
            taken[vnode.parent].append(vnode.resources[GPU])
    for use in ledger.uses.values():
        if use.vnode in taken:
            taken[use.vnode].append(use.resources[GPU])
    return {
        place: _left(ledger.total(place)[GPU], parts, ledger.machine_of(place) in fragmented)
        for place, parts in taken.items()
    }


def obtainable_gpus(wanted: int, gpus: Iterable[int]) -> int:
    """How much of `wanted` the GPUs can give: whole GPUs, and a share of one more."""
    left = sorted(gpus)
    whole, share = divmod(wanted, UNIT)
    there = min(whole, left.count(UNIT))
    if there < whole or not share:
        return there * UNIT
    return wanted if max(left[: len(left) - there], default=0) >= share else there * UNIT


def fits_gpus(demand: Resources, gpus: Iterable[int]) -> bool:
    """Whether the GPUs can give all that a demand needs, each share from one GPU."""
    return obtainable_gpus(demand[GPU], gpus) == demand[GPU]


def _left(total: int, parts: Iterable[int], fragmented: bool) -> tuple[int, ...]:
    """What is left of each GPU after these parts, placed largest first.

    A share goes to the tightest GPU with enough room, or to the emptiest if `fragmented`.
    """
    gpus = list(each_gpu(total))
    shares = []
    for whole, share in (divmod(part, UNIT) for part in parts):
        shares += [UNIT] * whole + [share]
    for share in sorted(shares, reverse=True):
        enough = [n for n, free in enumerate(gpus) if free >= share]
        if enough:
            gpus[enough[-1 if fragmented else 0]] -= share
        else:  # the share is in several pieces
            gpus = _taken_from_many(gpus, share)
        gpus.sort()
    return tuple(free for free in gpus if free)


def _taken_from_many(gpus: Iterable[int], share: int) -> list[int]:
    left = []
    for free in sorted(gpus):
        part = min(free, share)
        share -= part
        left.append(free - part)
    return left
