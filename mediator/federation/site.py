"""Site: one Ray cluster of a federation. Slow calls return futures, so sites work concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from fedpilot.common.host.exit_codes import UNREACHABLE
from fedpilot.fabric import FabricError, GangTimeout, SchedulingPolicy

from ..core.reservation import MOST_VNODES, Answer, Refusal, VNodeClass

if TYPE_CHECKING:
    from ..workload import Notify, Payload

CLASS_LABEL = "fedpilot/vnode-class"
"""The label of a vnode that names its class, where a gang has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """A site's part of a gang: vnodes of one size, or of several classes."""

    name: str
    resources: Mapping[str, float] = field(default_factory=dict)
    """Of one vnode, by Ray's names: `CPU`, `GPU`, `memory` (bytes), custom ones."""
    workers: int | None = None
    """Vnodes; None for as many as fit, up to `at_most`."""
    at_least: int | None = None
    """Of a gang whose vnodes above that number come and leave one by one, up to `at_most`."""
    at_most: int = MOST_VNODES
    groups: tuple[VNodeClass, ...] = ()
    """Its classes, if it has several; the four fields above then say nothing."""
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
    def classes(self) -> tuple[VNodeClass, ...]:
        """What its vnodes are: one class or more."""
        return self.groups or (
            VNodeClass(
                resources=self.resources,
                workers=self.workers,
                at_least=self.at_least,
                at_most=self.at_most,
            ),
        )

    @property
    def gang(self) -> tuple[tuple[int, Mapping[str, float]], ...]:
        """The fewest vnodes of each class, and what one of them has."""
        return tuple((each.least, each.resources) for each in self.classes)

    @property
    def elastic(self) -> bool:
        """Whether vnodes come and leave one by one."""
        return any(each.at_least is not None for each in self.classes)

    @property
    def least(self) -> int:
        """The fewest vnodes with which the site can take part."""
        return sum(each.least for each in self.classes)

    @property
    def most(self) -> int:
        """The most vnodes that the site may have."""
        return sum(each.most for each in self.classes)

    def to_json(self) -> dict[str, Any]:
        """Its fields; sites of older versions do not know those that are left out if empty."""
        return {
            key: value
            for key, value in asdict(self).items()
            if value or key not in ("at_least", "groups", "project", "pool", "priority_class")
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        groups = tuple(map(VNodeClass.from_json, values.get("groups", ())))
        policy = SchedulingPolicy(values["policy"])
        return cls(**{**values, "policy": policy, "groups": groups})


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
