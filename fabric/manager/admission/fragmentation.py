"""Fragmentation: machines whose free GPUs must be scattered, as Ray refused (`places/gpus.py`)."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from ...core.cluster_state import ClusterState
from ...core.places.placement import GPU
from ...core.places.request import Request
from ...core.records import ClusterId, MachineId, VNodeId
from ...core.resources import Resources

BELIEVED_S = 60.0
"""How long a machine's GPUs count as fragmented after a refusal of Ray, if nothing changes."""


class Fragmentation:
    """What Ray's refusals imply about the GPUs of machines."""

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._found: dict[MachineId, tuple[frozenset[tuple[VNodeId, Resources]], float]] = {}
        """The vnodes on each machine, and until when its GPUs count as fragmented."""

    def refused(self, request: Request, below: Sequence[ClusterId]) -> None:
        """Record that Ray had no room for these GPUs: their machines are fragmented."""
        ledger = self._state.ledger
        if not request.needs[GPU]:
            return
        if any(group.movable for group in self._state.groups.of_cluster(request.id)):
            machines = {each.id for each in ledger.machines.values() if each.total[GPU]}
        else:
            machines = {vnode.machine for id in below for vnode in ledger.of(id)}
        for machine in machines:
            self._found[machine] = self._carved_on(machine, below), self._clock() + BELIEVED_S

    def machines(self) -> frozenset[MachineId]:
        """The machines that are fragmented and unchanged since Ray's refusal."""
        now = self._clock()
        self._found = {
            machine: (carved, until)
            for machine, (carved, until) in self._found.items()
            if now < until and carved == self._carved_on(machine)
        }
        return frozenset(self._found)

    def _carved_on(
        self, machine: MachineId, but: Container[ClusterId] = ()
    ) -> frozenset[tuple[VNodeId, Resources]]:
        vnodes = self._state.ledger.vnodes.values()
        there = (each for each in vnodes if each.parent == machine and each.cluster not in but)
        return frozenset((each.id, each.resources) for each in there)
