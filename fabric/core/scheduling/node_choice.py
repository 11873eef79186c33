"""Chooses the machines of a gang's members, or says why it has none.

Only ready machines of the queue's pool with the right labels count. Bin-packing takes the machine
with the least left, spreading the one with the largest part left, by GPUs for work that asks for
GPUs and by CPUs for other work, which avoids machines with GPUs while others have room. Ties go to
the first name. A gang's own policy comes before the strategy:

* PACK: as few machines as possible; STRICT_PACK: one;
* SPREAD: as many machines as possible; STRICT_SPREAD: each member on a machine of its own.

All machines are looked at in a few array operations, so the time of a choice hardly depends on how
many members it places. For a lone member the machines stay ranked, and only those that have changed
since are ranked anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpilot.common.text.amounts import counted

from ..records import SchedulingPolicy
from ..selectors import matches
from .records import Amounts, GangPart, GangSpec, MachineIndex, Strategy, plus
from .snapshot import Array, SchedulingSnapshot, whole_devices

PLENTY = 1 << 40
"""More members than any machine holds, for those that ask for nothing."""

Placed: TypeAlias = list[tuple[int, MachineIndex]]
"""A part and a machine for each member."""

StrategyOf: TypeAlias = Callable[[str, Amounts], Strategy]
"""A pool's strategy for a request."""


FULL = np.iinfo(np.int64).max
"""The rank of a machine without room."""
WITH_GPUS = 1 << 61
"""Added to the rank of a machine with GPUs for work that needs none."""


@dataclass(frozen=True, slots=True)
class NoPlaces:
    """A gang has no places."""

    text: str


@dataclass(slots=True, eq=False)
class _Ranking:
    """The machines that suit a lone member; the one of the smallest rank is bin-packed first."""

    rows: NDArray[np.intp]
    row_of: dict[int, int]
    ranks: Array
    seen: int
    """How many changes of machines it takes into account."""
    kind: int
    """The resource by which machines are compared."""
    asked: tuple[tuple[int, int], ...]
    """Which resources a member takes, and how much of each."""
    needs_gpus: bool


class Machines:
    """Where members of a snapshot's gangs may go, closed machines apart; remembers which machines
    suit which part."""

    def __init__(self, snapshot: SchedulingSnapshot, closed: frozenset[int] = frozenset()) -> None:
        self._snapshot, self._closed = snapshot, closed
        self._suitable: dict[tuple[str, tuple[object, ...]], NDArray[np.intp]] = {}
        self._could_run: dict[tuple[str, GangSpec], bool] = {}
        self._rankings: dict[tuple[str, Amounts, tuple[object, ...]], _Ranking] = {}
        self._gpu, self._cpu = snapshot.scale.gpu, snapshot.scale.cpu
        self._unit = 1 if self._gpu is None else snapshot.scale.units[self._gpu]

    def suitable(self, pool: str, part: GangPart) -> NDArray[np.intp]:
        """The ready machines of a pool with the labels that a part selects, in order."""
        key = (pool, part.selector)
        found = self._suitable.get(key)
        if found is None:
            fleet, ready = self._snapshot.fleet, self._snapshot.ready
            selector = dict(part.selector)
            rows = (
                i
                for i, each in enumerate(fleet.pools)
                if each == pool
                and ready[i]
                and i not in self._closed
                and matches(selector, fleet.labels[i])
            )
            found = self._suitable[key] = np.fromiter(rows, np.intp)
        return found

    def counts(
        self, rows: NDArray[np.intp], request: Amounts, free: Array, devices: Array | None
    ) -> Array:
        """How many members that ask for this fit each machine of `rows`."""
        counts = np.full(len(rows), PLENTY, np.int64)
        for i, amount in enumerate(request):
            if amount:
                np.minimum(counts, free[rows, i] // amount, out=counts)
        asked = 0 if self._gpu is None else request[self._gpu]
        if devices is not None and asked:
            if asked >= self._unit:
                fits = (devices[rows] == self._unit).sum(axis=1) // (asked // self._unit)
            else:
                fits = (devices[rows] // asked).sum(axis=1)
            np.minimum(counts, fits, out=counts)
        return np.maximum(counts, 0)

    def fullest(
        self, pool: str, part: GangPart, free: Array, devices: Array | None, changes: Sequence[int]
    ) -> MachineIndex | None:
        """The machine that bin-packing gives a lone member, as `choose` would; `changes` lists the
        machines that have changed, in turn."""
        key = (pool, part.request, part.selector)
        known = self._rankings.get(key)
        if known is None:
            known = self._rankings[key] = self._ranking(pool, part, free, devices, len(changes))
        for machine in set(changes[known.seen :]):
            at = known.row_of.get(machine)
            if at is None:
                continue
            row = free[machine].tolist()
            fits = True
            for i, amount in known.asked:
                if row[i] < amount:
                    fits = False
                    break
            if fits and devices is not None and known.needs_gpus:
                fits = bool(self.counts(known.rows[at : at + 1], part.request, free, devices)[0])
            avoid = not known.needs_gpus and self._snapshot.fleet.has_gpus[machine]
            known.ranks[at] = row[known.kind] + avoid * WITH_GPUS if fits else FULL
        known.seen = len(changes)
        if not len(known.rows):
            return None
        at = int(known.ranks.argmin())
        return None if known.ranks[at] == FULL else MachineIndex(int(known.rows[at]))

    def _ranking(
        self, pool: str, part: GangPart, free: Array, devices: Array | None, seen: int
    ) -> _Ranking:
        rows = self.suitable(pool, part)
        kind, needs_gpus = self.kind(part.request), self._needs_gpus(part.request)
        ranks = free[rows, kind].copy()
        if not needs_gpus:
            ranks += self._snapshot.fleet.has_gpus[rows] * WITH_GPUS
        ranks[self.counts(rows, part.request, free, devices) == 0] = FULL
        row_of = {row: at for at, row in enumerate(rows.tolist())}
        asked = tuple((i, amount) for i, amount in enumerate(part.request) if amount)
        return _Ranking(rows, row_of, ranks, seen, kind, asked, needs_gpus)

    def _needs_gpus(self, request: Amounts) -> bool:
        return self._gpu is not None and request[self._gpu] > 0

    def could_run(self, pool: str, gang: GangSpec) -> bool:
        """Whether the minimum of a gang has places if all machines are empty."""
        key = (pool, gang)
        known = self._could_run.get(key)
        if known is None:
            fleet = self._snapshot.fleet
            each_gpu = self._snapshot.devices is not None
            devices = whole_devices(fleet, self._snapshot.scale) if each_gpu else None
            least = tuple(part.least for part in gang.parts)
            first = least if any(least) else tuple(int(i == 0) for i in range(len(least)))
            if sum(first) == 1:
                part = gang.parts[first.index(1)]
                rows = self.suitable(pool, part)
                known = bool(self.counts(rows, part.request, fleet.capacity, devices).any())
            else:
                found = self.choose(
                    pool, gang, first, (), free=fleet.capacity, devices=devices, strategy=_binpack
                )
                known = not isinstance(found, NoPlaces)
            self._could_run[key] = known
        return known

    def kind(self, request: Amounts) -> int:
        """The resource by which machines are compared for a member."""
        if self._gpu is not None and request[self._gpu]:
            return self._gpu
        if self._cpu is not None:
            return self._cpu
        return next((i for i, amount in enumerate(request) if amount), 0)

    def choose(
        self,
        pool: str,
        gang: GangSpec,
        lacking: Sequence[int],
        held: Sequence[tuple[int, MachineIndex]],
        *,
        free: Array,
        devices: Array | None,
        strategy: StrategyOf,
    ) -> Placed | NoPlaces:
        """Places for these many members of each part; `held` are those that run already."""
        groups = sorted({part.group for part, n in zip(gang.parts, lacking, strict=True) if n})
        if len(groups) == 1 and sum(n > 0 for n in lacking) == 1:
            number = next(i for i, n in enumerate(lacking) if n)
            search = self._search(pool, gang, number, held, free, devices, strategy)
            return search.places(lacking[number])
        placed: Placed = []
        free, devices = free.copy(), None if devices is None else devices.copy()
        for group in groups:
            numbers = [i for i, n in enumerate(lacking) if n and gang.parts[i].group == group]
            found = self._place_group(
                pool, gang, numbers, lacking, (*held, *placed), free, devices, strategy
            )
            if isinstance(found, NoPlaces):
                return found
            placed += found
        return placed

    def _place_group(
        self,
        pool: str,
        gang: GangSpec,
        numbers: list[int],
        lacking: Sequence[int],
        held: Sequence[tuple[int, MachineIndex]],
        free: Array,
        devices: Array | None,
        strategy: StrategyOf,
    ) -> Placed | NoPlaces:
        """Places for members that differ, under one policy; takes them from `free`, `devices`."""
        policy = gang.policies[gang.parts[numbers[0]].group]
        size = {i: self._size(gang.parts[i].request) for i in numbers}
        numbers = sorted(numbers, key=lambda i: (-size[i], i))
        if policy in (SchedulingPolicy.PACK, SchedulingPolicy.STRICT_PACK):
            one = self._one_machine(pool, gang, numbers, lacking, held, free, devices)
            if one is not None or policy is SchedulingPolicy.STRICT_PACK:
                return one or NoPlaces("no machine has room for all members together")
        placed: Placed = []
        for i in numbers:
            search = self._search(pool, gang, i, (*held, *placed), free, devices, strategy)
            found = search.places(lacking[i])
            if isinstance(found, NoPlaces):
                return found
            for _, machine in found:
                self._take(gang.parts[i].request, machine, free, devices)
            placed += found
        return placed

    def _one_machine(
        self,
        pool: str,
        gang: GangSpec,
        numbers: list[int],
        lacking: Sequence[int],
        held: Sequence[tuple[int, MachineIndex]],
        free: Array,
        devices: Array | None,
    ) -> Placed | None:
        """The fullest machine with room for all these members; takes it."""
        group = gang.parts[numbers[0]].group
        total = (0,) * len(gang.parts[0].request)
        for i in numbers:
            for _ in range(lacking[i]):
                total = plus(total, gang.parts[i].request)
        rows = self.suitable(pool, gang.parts[numbers[0]])
        for i in numbers[1:]:
            rows = np.intersect1d(rows, self.suitable(pool, gang.parts[i]))
        ours = {machine for part, machine in held if gang.parts[part].group == group}
        if ours:
            rows = rows[np.isin(rows, list(ours))]
        rows = rows[(free[rows] >= np.array(total)).all(axis=1)]
        for row in rows[np.argsort(free[rows, self.kind(total)], kind="stable")]:
            machine = MachineIndex(int(row))
            before = free[row].copy()
            gpus_before = None if devices is None else devices[row].copy()
            fits = True
            for i in numbers:
                request = gang.parts[i].request
                for _ in range(lacking[i]):
                    one = np.array([row])
                    fits = fits and bool(self.counts(one, request, free, devices)[0])
                    if fits:
                        self._take(request, machine, free, devices)
            if fits:
                return [(i, machine) for i in numbers for _ in range(lacking[i])]
            free[row] = before
            if devices is not None and gpus_before is not None:
                devices[row] = gpus_before
        return None

    def _size(self, request: Amounts) -> float:
        units = self._snapshot.scale.units
        return request[self.kind(request)] / units[self.kind(request)]

    def _take(
        self, request: Amounts, machine: MachineIndex, free: Array, devices: Array | None
    ) -> None:
        free[machine] -= np.array(request)
        if devices is None or self._gpu is None or not request[self._gpu]:
            return
        asked, row = request[self._gpu], devices[machine]
        if asked >= self._unit:
            row[np.flatnonzero(row == self._unit)[: asked // self._unit]] = 0
        else:
            fits = np.flatnonzero(row >= asked)
            row[fits[row[fits].argmin()]] -= asked

    def _search(
        self,
        pool: str,
        gang: GangSpec,
        number: int,
        held: Sequence[tuple[int, MachineIndex]],
        free: Array,
        devices: Array | None,
        strategy: StrategyOf,
    ) -> _Search:
        part = gang.parts[number]
        rows = self.suitable(pool, part)
        kind = self.kind(part.request)
        fleet = self._snapshot.fleet
        return _Search(
            number=number,
            request=part.request,
            policy=gang.policies[part.group],
            spread=strategy(pool, part.request) is Strategy.SPREAD,
            rows=rows,
            counts=self.counts(rows, part.request, free, devices),
            left=free[rows, kind],
            whole=fleet.capacity[rows, kind],
            avoid=np.zeros(len(rows), bool)
            if self._needs_gpus(part.request)
            else fleet.has_gpus[rows],
            step=part.request[kind],
            ours=[m for p, m in held if gang.parts[p].group == part.group],
            words=self._snapshot.scale.words(part.request),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Search:
    """Equal members and the machines that suit them."""

    number: int
    request: Amounts
    policy: SchedulingPolicy | None
    spread: bool
    rows: NDArray[np.intp]
    counts: Array
    left: Array
    whole: Array
    avoid: NDArray[np.bool_]
    """Machines with GPUs, for work that needs none."""
    step: int
    """How much of the compared resource a member takes."""
    ours: list[MachineIndex]
    """The machines of the gang's members that run already."""
    words: str

    def places(self, wanted: int) -> Placed | NoPlaces:
        match self.policy:
            case SchedulingPolicy.STRICT_PACK:
                found = self._together(wanted)
            case SchedulingPolicy.PACK:
                found = self._together(wanted)
                found = self._few(wanted) if found is None else found
            case SchedulingPolicy.STRICT_SPREAD:
                found = self._each_by_itself(wanted)
            case SchedulingPolicy.SPREAD:
                found = self._one_by_one(wanted, apart=True)
            case None if self.spread:
                found = self._one_by_one(wanted, apart=False)
            case None:
                found = self._fill(wanted, self._fullest_first())
        if found is None:
            return NoPlaces(self._why(wanted))
        return [(self.number, MachineIndex(i)) for i in self.rows[found].tolist()]

    def _fullest_first(self) -> NDArray[np.intp]:
        return np.lexsort((self.left, self.avoid))

    def _preferred(self) -> NDArray[np.intp]:
        """By the strategy, the best machine first."""
        if not self.spread:
            return self._fullest_first()
        return np.lexsort((-self._part_left(self.left), self.avoid))

    def _part_left(self, left: Array) -> NDArray[np.float64]:
        return left / np.maximum(self.whole, 1)

    def _fill(self, wanted: int, order: NDArray[np.intp]) -> NDArray[np.intp] | None:
        """Fill machines one after another."""
        order = order[self.counts[order] > 0]
        upto = np.cumsum(np.minimum(self.counts[order], wanted))
        last = int(np.searchsorted(upto, wanted))
        if last >= len(order):
            return None
        chosen = order[: last + 1]
        each = np.minimum(self.counts[chosen], wanted)
        each[-1] -= upto[last] - wanted
        return np.repeat(chosen, each)

    def _together(self, wanted: int) -> NDArray[np.intp] | None:
        able = self.counts >= wanted
        if self.ours:
            able &= np.isin(self.rows, self.ours)
        order = self._preferred()
        order = order[able[order]]
        return np.repeat(order[:1], wanted) if len(order) else None

    def _few(self, wanted: int) -> NDArray[np.intp] | None:
        """The machines with the most room first, the last as tight as possible."""
        mine = np.isin(self.rows, self.ours)
        order = np.lexsort((self.left, self.avoid, -self.counts, ~mine))
        found: list[NDArray[np.intp]] = []
        for at, row in enumerate(order):
            if wanted <= 0:
                break
            later = order[at:]
            enough = later[self.counts[later] >= wanted]
            if len(enough):
                tightest = enough[np.lexsort((self.left[enough], self.avoid[enough]))[0]]
                found.append(np.repeat(tightest, wanted))
                wanted = 0
                break
            if not self.counts[row]:
                continue
            found.append(np.repeat(row, self.counts[row]))
            wanted -= int(self.counts[row])
        return None if wanted > 0 else np.concatenate(found)

    def _each_by_itself(self, wanted: int) -> NDArray[np.intp] | None:
        order = self._preferred()
        able = (self.counts > 0) & ~np.isin(self.rows, self.ours)
        order = order[able[order]]
        return order[:wanted] if len(order) >= wanted else None

    def _one_by_one(self, wanted: int, *, apart: bool) -> NDArray[np.intp] | None:
        """Each member on the best machine now; `apart`: on the one with the fewest of the gang."""
        counts, left = self.counts.copy(), self.left.copy()
        mates = np.zeros(len(self.rows), np.int64)
        for machine in self.ours if apart else ():
            mates[self.rows == machine] += 1
        found = []
        for _ in range(wanted):
            able = np.flatnonzero(counts > 0)
            if not len(able):
                return None
            prefer = -self._part_left(left)[able] if self.spread else left[able]
            best = able[np.lexsort((prefer, self.avoid[able], mates[able]))[0]]
            found.append(best)
            counts[best] -= 1
            left[best] -= self.step
            mates[best] += apart
        return np.array(found, np.intp)

    def _why(self, wanted: int) -> str:
        if not len(self.rows):
            return "no ready machine of its pool has the labels that it asks for"
        if self.policy is SchedulingPolicy.STRICT_SPREAD:
            most = int(((self.counts > 0) & ~np.isin(self.rows, self.ours)).sum())
            return f"wanted {wanted} machines with {self.words} free, found {most}"
        members = counted(wanted, "member")
        if self.policy is SchedulingPolicy.STRICT_PACK:
            most = int(self.counts.max(initial=0))
            return f"wanted one machine for {members} of {self.words}, found room for {most}"
        most = int(min(self.counts.sum(), PLENTY))
        return f"wanted room for {members} of {self.words}, found room for {most}"


def _binpack(pool: str, request: Amounts) -> Strategy:
    return Strategy.BINPACK
