"""GroupProvisioner: makes and removes placement groups in Ray as the saved cluster state says."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..core.cluster_state import ClusterState
from ..core.places.groups import GroupId, PlacementGroupRecord
from ..core.places.placement import Misfit, fit
from ..core.records import Bundle, Machine, MachineId
from ..core.resources import Resources
from ..errors import FabricError
from ..ray.control_plane.protocol import RayControl, Seen

ROOM_S, ROOM_POLL_S = 0.4, 0.005
"""How long Ray may take to see that resources are free again, and how often to ask."""

PAST = 1000
log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
Other = TypeVar("Other")


@dataclass(slots=True)
class Order:
    """The placement groups to remove, and those to make afterwards."""

    remove: list[PlacementGroupRecord] = field(default_factory=list)
    make: list[PlacementGroupRecord] = field(default_factory=list)
    removed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all removals are done."""


class GroupProvisioner:
    """Carries out orders."""

    def __init__(
        self,
        ray: RayControl,
        clock: Callable[[], float],
        state: ClusterState,
        *,
        name: str,
        patience_s: float,
        on_there: Callable[[PlacementGroupRecord, Seen], None],
    ) -> None:
        """`on_there` gets each made placement group and what Ray reports about it."""
        self._ray = ray
        self._clock = clock
        self._state = state
        self.name = name
        """The prefix of our placement groups' names."""
        self._patience_s = patience_s
        self._on_there = on_there
        self._next = Order()
        """The orders that have not begun."""
        self._doing: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[GroupId] = Counter()
        self._touched: dict[MachineId, float] = {}
        self._hosts: dict[GroupId, tuple[MachineId | None, ...]] = {}
        self._made_room = 0.0
        """When we last removed a placement group."""
        self._leaving: set[GroupId] = set()
        self.owed: set[GroupId] = set()
        """Placement groups that Ray may not have removed, since it did not answer."""
        self.past: deque[GroupId] = deque(maxlen=PAST)
        """The placement groups that we removed last."""

    @property
    def ordered(self) -> bool:
        """Whether there are orders that have not begun."""
        return bool(self._next.remove or self._next.make)

    @property
    def in_flight(self) -> set[GroupId]:
        """The placement groups that are being made or removed."""
        return set(self._in_flight)

    def is_ours(self, name: str) -> bool:
        """Whether this ledger's manager made a placement group with that name."""
        return name.startswith(f"{self.name}:")

    def fresh(self, machine: MachineId, within_s: float) -> bool:
        """Whether we changed a machine so recently that Ray may not show it yet."""
        return self._clock() < self._touched.get(machine, 0.0) + within_s

    def found(self, seen: Seen) -> None:
        """Record the machines on which a placement group was seen."""
        self._hosts[seen.id] = seen.hosts

    def knows(self, seen: Seen) -> bool:
        """Whether a placement group is still on the recorded machines."""
        return self._hosts.get(seen.id) == seen.hosts

    def order(
        self,
        *,
        remove: Iterable[PlacementGroupRecord] = (),
        make: Iterable[PlacementGroupRecord] = (),
    ) -> None:
        """Order removals and creations, which begin once the cluster state is saved."""
        self._next.remove += remove
        self._next.make += make

    def begin(self) -> Order:
        """Begin all orders together: a new group may need the room of a removed one."""
        order, self._next = self._next, Order()
        if not (order.remove or order.make):
            order.removed.set()
            return order
        self._in_flight.update(group.id for group in (*order.remove, *order.make))
        task = asyncio.create_task(self._carry_out(order))
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)
        return order

    async def _carry_out(self, order: Order) -> None:
        try:
            await asyncio.gather(*(self._remove(group) for group in order.remove))
            order.removed.set()
            await asyncio.gather(*(self._make(group) for group in order.make))
        finally:
            order.removed.set()
            self._in_flight.subtract(group.id for group in (*order.remove, *order.make))
            self._in_flight = +self._in_flight

    async def _remove(self, group: PlacementGroupRecord) -> None:
        self._touch(group)
        self._leaving.add(group.id)
        if await self._try(self._ray.remove(group.id), otherwise=True):
            self.owed.add(group.id)
        self._leaving.discard(group.id)
        self._made_room = self._clock()
        self.past.append(group.id)
        self._touch(group)
        self._hosts.pop(group.id, None)

    async def _make(self, group: PlacementGroupRecord) -> None:
        while group.id in self._leaving:  # an older group with this id
            await asyncio.sleep(ROOM_POLL_S)
        await self._room(group)
        if group.id not in self._state.groups:
            return  # it was dropped meanwhile
        labels = [machine.labels for machine in self._state.ledger.machines.values()]
        name = f"{self.name}:{group.cluster}:{group.id[:12]}"
        created = self._ray.create(group, name, labels, self._patience_s)
        there = await self._try(created, otherwise=False)
        if group.id not in self._state.groups:
            await self._remove(group)
            return
        if not there:
            return
        seen = await self._try(self._ray.look(group.id), otherwise=None)
        known = self._state.groups.get(group.id)
        if seen is not None and known is not None:
            self._hosts[seen.id] = seen.hosts
            self._touch(known)
            self._on_there(known, seen)

    async def _room(self, group: PlacementGroupRecord) -> None:
        """Wait until Ray sees the room that we made: otherwise it delays the group by up to 1 s."""
        until = self._made_room + ROOM_S
        while self._clock() < until:
            free = await self._try(self._ray.available(), otherwise=None)
            if free is None or fits(group, self._state.ledger.machines.values(), free):
                return
            await asyncio.sleep(ROOM_POLL_S)

    async def _try(self, call: Coroutine[Any, Any, Answer], otherwise: Other) -> Answer | Other:
        try:
            return await call
        except (OSError, FabricError) as error:
            log.warning("Ray did not do what was asked, and will be asked again: %s", error)
            return otherwise

    def _touch(self, group: PlacementGroupRecord) -> None:
        """Note that Ray's view of these machines may be out of date for a while."""
        machines = {*(piece.machine for piece in group.pieces), *self._hosts.get(group.id, ())}
        self._touched.update((each, self._clock()) for each in machines if each is not None)


def fits(
    group: PlacementGroupRecord, machines: Iterable[Machine], free: Mapping[MachineId, Resources]
) -> bool:
    """Whether Ray could place a placement group now."""
    there = [replace(m, total=free.get(m.id, Resources())) for m in machines]
    if group.movable:
        bundles = [Bundle(resources=p.resources, selector=p.selector) for p in group.pieces]
        return not isinstance(fit(bundles, group.policy, there), Misfit)
    needed: dict[MachineId, Resources] = {}
    for piece in group.pieces:
        if piece.machine is not None:
            needed[piece.machine] = needed.get(piece.machine, Resources()) + piece.resources
    return all(need.fits(free.get(id, Resources())) for id, need in needed.items())
