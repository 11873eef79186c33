"""Site: one Ray cluster of a federation. Slow calls return futures, so sites work concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from fedpilot.common.host.exit_codes import UNREACHABLE
from fedpilot.fabric import FabricError, GangTimeout, SchedulingPolicy

from ..core.reservation import Answer, Refusal
from ..workload import Notify, Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """A site's part of a gang: vnodes of one size."""

    name: str
    resources: Mapping[str, float]
    """Of one vnode, by Ray's names: `CPU`, `GPU`, `memory` (bytes), custom ones."""
    workers: int | None = None
    """Vnodes; None for as many as fit, up to `at_most`."""
    at_least: int | None = None
    """Of a gang whose vnodes above that number come and leave one by one, up to `at_most`."""
    at_most: int = 16
    policy: SchedulingPolicy = SchedulingPolicy.SPREAD
    timeout_s: float = 60.0
    lease_s: float = 60.0
    """An uncommitted promise ends after this time."""
    project: str = ""
    """Whose queue it waits in on a Ray that others use, too; empty: `default`."""
    pool: str = ""
    """The node pool there; empty: the first one that could hold it."""
    priority_class: str = ""
    """Empty: `train`."""

    @property
    def least(self) -> int:
        """The fewest vnodes with which the site can take part."""
        return self.workers or self.at_least or 1

    @property
    def most(self) -> int:
        """The most vnodes that the site may have."""
        return self.workers or self.at_most

    def to_json(self) -> dict[str, Any]:
        """Its fields; sites of older versions do not know those that are left out if empty."""
        return {
            key: value
            for key, value in asdict(self).items()
            if value or key not in ("at_least", "project", "pool", "priority_class")
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "policy": SchedulingPolicy(values["policy"])})


class Site(Protocol):
    """One participating Ray cluster: first reserved, then given work."""

    @property
    def name(self) -> str: ...

    def prepare(self, request: GangRequest) -> Future[Answer]:
        """Reserve this site's part of a gang, or say why not."""

    def commit(self) -> Future[None]:
        """Keep what was promised, since the whole gang stands."""

    def release(self) -> Future[None]:
        """Release what was promised or committed, with everything on it."""

    def check(self, workload: str, spec: Payload) -> Future[None]:
        """Load a workload and have it check its spec; fails with the problem found."""

    def start(self, notify: Notify) -> Future[None]:
        """Start the checked workload on the committed vnodes."""

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        """Give the workload an order, executed once per key."""


def refusal(site: str, error: FabricError) -> Refusal:
    """Make the refusal of a site that could not reserve its part."""
    return Refusal(
        site,
        str(error),
        unreachable=error.exits_with == UNREACHABLE,
        full=isinstance(error, GangTimeout),
    )
