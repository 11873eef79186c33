"""ExistingRayCluster: follows a Ray that runs already, by asking its control plane.

It calls nothing that changes the Ray. A control plane that does not answer is asked again for ever,
so that the cluster is seen again once it is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedpilot.common.strict_yaml.errors import printable

from ...core.ray_clusters.declaration import DeclaredRayCluster, MachineName
from ...core.ray_clusters.metering import IDLE_S
from ...core.ray_clusters.operated import (
    ABSENT,
    OperatedDeclaration,
    OperatedMachine,
    OperatedSettings,
    OperatedView,
    OperatorTrouble,
    ResourceWrite,
    SeenResource,
)
from ...errors import ClusterRefuses, ClusterUnreachable, FabricError
from ...ray.connection import address_of_this_machine
from ...ray.control_plane.ray_nodes import RayNode, RayView
from ...spec.ray_cluster.document import RayClusterDocument
from .observed import counts_of, group_of, machines_of, seen_of

TOKEN_KEY = "`spec.fedpilot.tokenFile`"
LONGEST = 300
"""In characters, of what a failed call says."""


class ObservedNodes(Protocol):
    """The control plane of one Ray cluster. Calls raise ClusterUnreachable."""

    async def look(self) -> RayView:
        """The living nodes."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTimes:
    """How often a Ray is asked, and how long it may be silent."""

    look_s: float = 2.0
    """The pause between two calls."""
    silent_s: float = 5.0
    """How long calls may fail before the cluster counts as away."""


@dataclass(kw_only=True)
class ExistingRayCluster:
    """One declared Ray cluster that runs already."""

    document: RayClusterDocument
    nodes_at: Callable[[str, str], ObservedNodes]
    """The control plane at an address, with a token."""
    found_here: Callable[[], str] = address_of_this_machine
    """What the address `auto` means now. ClusterUnreachable."""
    clock: Callable[[], float] = time.time
    times: ExistingTimes = field(default_factory=ExistingTimes)
    deleted: bool = False
    place: str = ""
    """The address at which it was seen last; empty: it was not seen yet."""

    def __post_init__(self) -> None:
        self._nodes: ObservedNodes | None = None
        self._asked = ""
        """The address that is asked."""
        self._seen: tuple[RayNode, ...] | None = None
        """Its living nodes; None before the first answer."""
        self._moved = False
        """Whether the first answer at another address is still missing."""
        self._reading: OperatorTrouble | None = None
        self._told: tuple[object, ...] = ()
        """What was known when a change was last told of."""
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()

    def declare(self, document: RayClusterDocument, *, deleted: bool) -> None:
        """Take another declaration, which may name another Ray."""
        before, self.document, self.deleted = self._declared, document, deleted
        if _way_in(before) != _way_in(self._declared):
            self._seen, self._reading, self._moved = None, None, True
            self._hurry.set()

    @property
    def _declared(self) -> DeclaredRayCluster:
        return self.document.declared

    @property
    def declared(self) -> OperatedDeclaration:
        """Nothing of it is declared that could have to be written."""
        return OperatedDeclaration(digest="", workers=None, deleted=self.deleted)

    # -- what is known -----------------------------------------------------------------------------

    def view(self) -> OperatedView:
        """What is known now; of a cluster that is deleted nothing is left to end."""
        seen: SeenResource | str | None = None
        if self.deleted:
            seen = ABSENT
        elif self._is_away or self._moved:
            seen = seen_of(())
        elif self._seen is not None:
            seen = seen_of(self._seen)
        return OperatedView(resource=seen, reading=self._reading, asked="its control plane")

    @property
    def _is_away(self) -> bool:
        """Whether it refuses us, or has been silent for too long."""
        trouble = self._reading
        if trouble is None:
            return False
        return trouble.refused or self.clock() - trouble.since_s >= self.times.silent_s

    def machines(
        self, before: Mapping[MachineName, OperatedMachine], next_number: int, now: float
    ) -> tuple[Mapping[MachineName, OperatedMachine], int]:
        """Its living nodes, and the next machine's number; none while it is away."""
        if self._is_away or self._moved:
            return {}, next_number
        if self._seen is None:
            return before, next_number
        return machines_of(self._seen, before, next_number, now)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many machines it had when it was last seen, by group."""
        return counts_of(self._seen or ())

    @property
    def idle(self) -> Mapping[str, int]:
        """How many of its machines have no work, by group."""
        there = () if self._is_away else self._seen or ()
        idle: dict[str, int] = {group_of(node): 0 for node in there}
        for node in there:
            idle[group_of(node)] += not node.draining and node.idle_s >= IDLE_S
        return idle

    @property
    def lacks(self) -> str:
        """Nothing: what answers can be shown."""
        return ""

    @property
    def address(self) -> str | None:
        """`host:port` of its head, as last seen; None before."""
        return self.place if self.place and self._declared.address in ("auto", self.place) else None

    @property
    def token_file(self) -> str | None:
        """The file that the declaration names; None if it names none."""
        return self._declared.token_file or None

    @property
    def has_auth(self) -> bool:
        """Whether the cluster asks for a token."""
        return bool(self._declared.token_file)

    async def changed(self) -> None:
        """Return once something may be known that was not before."""
        await self._changed.wait()
        self._changed.clear()

    # -- looking -----------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Ask again and again until cancelled."""
        while True:
            self._hurry.clear()
            asked = _way_in(self._declared)
            try:
                address, view = await self._look()
            except ClusterUnreachable as error:
                await self._disconnect()
                if asked == _way_in(self._declared):
                    self._failed(error)
            else:
                if asked == _way_in(self._declared):
                    nodes = [*view.nodes.values(), *view.namesakes]
                    self._seen = tuple(sorted(nodes, key=lambda node: node.id))
                    self._reading, self._moved, self.place = None, False, address
            self._tell()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.times.look_s):
                    await self._hurry.wait()

    async def _look(self) -> tuple[str, RayView]:
        """Where it is, and what its control plane knows. ClusterUnreachable."""
        declared = self._declared
        if self._nodes is not None and declared.address not in ("auto", self._asked):
            await self._disconnect()
        if self._nodes is None:
            address = self.found_here() if declared.address == "auto" else declared.address
            self._nodes, self._asked = self.nodes_at(address, _token(declared)), address
        return self._asked, await self._nodes.look()

    async def _disconnect(self) -> None:
        """Find its address, and read its token, anew before the next call."""
        nodes, self._nodes = self._nodes, None
        if nodes is not None:
            await nodes.close()

    def _failed(self, error: ClusterUnreachable) -> None:
        self._reading = OperatorTrouble.after(
            self._reading,
            _reason(error, self._declared),
            self.clock(),
            OperatedSettings(),
            refused=isinstance(error, ClusterRefuses),
        )

    def _tell(self) -> None:
        """Wake all that wait for a change, if there is one."""
        trouble = self._reading
        reason = (trouble.reason, trouble.refused) if trouble is not None else None
        found = (self._facts, reason, self._is_away, self._moved, self.place)
        if found != self._told:
            self._told = found
            self._changed.set()

    @property
    def _facts(self) -> object:
        """What is shown of its nodes: not how idle they are."""
        if self._seen is None:
            return None
        return [(each.id, each.draining, each.total, dict(each.labels)) for each in self._seen]

    # -- what others would change ------------------------------------------------------------------

    async def write(self, write: ResourceWrite) -> None:
        """Refuse: the Ray is not ours. FabricError."""
        raise FabricError(f"the Ray of {self._declared.name} is not ours to {write}")

    async def forget(self) -> None:
        """Keep nothing of it: there is nothing."""

    async def close(self) -> None:
        await self._disconnect()


def _way_in(declared: DeclaredRayCluster) -> tuple[str, str]:
    return declared.address, declared.token_file


def _token(declared: DeclaredRayCluster) -> str:
    """The token of the Ray; empty if it has none. ClusterRefuses if its file has none."""
    if not declared.token_file:
        return ""
    try:
        token = Path(declared.token_file).read_text().strip()
    except (OSError, ValueError) as error:
        reason = f"{TOKEN_KEY} cannot be read: {error}"
        raise ClusterRefuses(declared.address, reason) from error
    if not token:
        raise ClusterRefuses(declared.address, f"{TOKEN_KEY} is empty: {declared.token_file}")
    return token


def _reason(error: ClusterUnreachable, declared: DeclaredRayCluster) -> str:
    """Why it cannot be seen, and what helps."""
    said = printable(error.reason, LONGEST)
    if not isinstance(error, ClusterRefuses):
        return f"the Ray at {error.address} does not answer: {said}"
    if said.startswith(TOKEN_KEY):
        return said
    if declared.token_file:
        return f"the Ray at {error.address} refuses the token in {declared.token_file}: {said}"
    return (
        f"the Ray at {error.address} refuses a call without a token: {TOKEN_KEY} names the file "
        "with its token"
    )
