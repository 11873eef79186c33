"""SiteWorkload: the protocol for work at a site, which `federated` implements.

The mediator carries `Payload`s without reading them: a header of JSON values and named tensors,
never pickles. Implementations are entry points (group `fedpilot.site_workloads`), so this package
is independent of learning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedpilot.fabric import Gang

from .core.rules.wants import Wants
from .errors import UnknownWorkload

ENTRY_POINTS = "fedpilot.site_workloads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A message between a coordinator and a site's workload."""

    kind: str
    header: Mapping[str, Any] = field(default_factory=dict)
    """JSON values only."""
    tensors: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, without the header."""
        return sum(np.asarray(tensor).nbytes for tensor in self.tensors.values())


Notify = Callable[[Payload], None]
"""A workload calls it, from any thread, with an event that a coordinator may show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteContext:
    """What a workload gets to know about its site."""

    name: str
    folder: Path | None = None
    """The folder of this run at this site; None if the orders name it."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data sets that the site's admin declared, by name (`site.yaml`)."""


class SiteWorkload(Protocol):
    """One federation's part at one site, from its gang to its last answer."""

    def wants(self, spec: Payload, site: SiteContext) -> Wants:
        """What a spec wants of a site, for the site's policy; called before `prepare`.

        Derived at the site from the spec, without data or user code. The mediator states the user.
        """

    def covered(self, answer: Payload) -> int:
        """The least number of the site's clients that an answer covers; 0 if it covers none.

        An answer about single clients covers one. Another instance may have made the answer.
        """

    def prepare(self, spec: Payload, site: SiteContext) -> None:
        """Check and load what the spec names; raise before anything is reserved or started."""

    def start(self, gang: Gang, notify: Notify) -> None:
        """Start workers on the gang's vnodes."""

    def deliver(self, order: Payload) -> Future[Payload]:
        """Take an order; the future holds its answer, or the error that the work raised."""

    def stop(self) -> None:
        """Stop the workers and drop undone work; may be called twice."""


def load_workload(name: str) -> SiteWorkload:
    """Make an instance of the workload installed as `name`; UnknownWorkload if there is none."""
    workload: SiteWorkload = _class_of(name)()
    return workload


@cache  # one that is found: reading what is installed takes 10 ms
def _class_of(name: str) -> type:
    from importlib.metadata import entry_points

    installed = entry_points(group=ENTRY_POINTS)
    if name not in installed.names:
        raise UnknownWorkload(name, tuple(sorted(installed.names)))
    found: type = installed[name].load()
    return found
