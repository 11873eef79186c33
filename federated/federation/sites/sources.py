"""Where a federation's sites come from, and the two sources on this machine.

The third, a mediator, is in `federation/remote/mediator_sites.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpilot.fabric import VirtualClusterManager, local_machine
from fedpilot.mediator import (
    FederationMediator,
    GangRequest,
    InProcessSite,
    Payload,
    Site,
    SiteContext,
)
from fedpilot.mediator.core.links import LinkUse
from fedpilot.mediator.core.traffic import Flow

from ...config.schema import RunConfig
from ...errors import ConfigError
from ...prepare.gang_request import SMALLEST_OBJECT_STORE, begin_ray, declared_ray, enter_ray

if TYPE_CHECKING:
    from fedpilot.fabric import Cluster, RayCluster

    from .kept_ray import KeptRay
    from .local_sites import LocalSites

Declarations = Mapping[str, Mapping[str, Any]]
"""What sites declare or disclose of their data sets, by site and data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A run whose workers are up, and the callbacks for its source of sites."""

    mediator: FederationMediator
    spec_of: Callable[[str], Payload]
    round_number: Callable[[], int]
    passed: Callable[[str, str], None]
    """Called with a ready site that the run may not take in although it lacks one, and why."""
    link_used: Callable[[LinkUse], None]
    """Called with the time that models and sums take over a site's link."""


class SiteSource(ABC):
    """Provides the sites of a federation, which closes it when it ends."""

    apart = False
    """Whether sites are other processes, which load the config's objects themselves."""
    brings_ray = True
    """Whether `open` waits for Ray, within `resources.start_timeout`, and not for sites."""
    names: tuple[str, ...]
    """The sites that may take part; at a mediator without data at sites, known once opened."""
    least: int | None
    """The fewest sites that must hold their part of the gang; None for all."""
    counted: Callable[[], list[tuple[Flow, int]]] | None = None
    """Returns the bytes counted on the wire since its last call; None without a wire."""

    @abstractmethod
    def disclosed(self) -> Declarations:
        """What sites disclose of the run's data set; ConfigError if none is known to declare it."""

    @abstractmethod
    def begin(self) -> None:
        """Begin slow starts, when `open` follows at once."""

    @abstractmethod
    def open(
        self, request: GangRequest, store: int, among: Collection[str], undo: ExitStack
    ) -> Sequence[Site]:
        """The available sites of those `among`; `undo` ends what they need.

        `request` is the gang that a site will hold, `store` the bytes for objects that it needs.
        """

    def told(self, spec: Payload) -> Payload:
        """A site's spec, completed by what only this source has."""
        return spec

    @abstractmethod
    def follow(self, run: StartedRun, undo: ExitStack) -> None:
        """From now on follow sites that come and go, until `undo`."""

    @abstractmethod
    def close(self) -> None:
        """End what was begun and not opened; may be called twice."""


class HereSource(SiteSource):
    """The config's sites on this machine, which stay to the end."""

    def __init__(self, config: RunConfig, names: Sequence[str]) -> None:
        """`names` replace the config's sites. Raises BadFile."""
        self.config = config
        self.names = tuple(names)
        self.least = config.sites.min_sites
        self.data_at = _declared_here(config, self.names)
        """What the admins of the sites declare, by site and data set."""

    def disclosed(self) -> Declarations:
        """What this machine's sites disclose of their data; ConfigError if none declares any."""
        if not self.data_at:
            raise ConfigError.about(
                "data.from",
                found="`sites`, and no site is known that declares data",
                allowed="a run at a mediator (`fedpilot run --mediator`), whose sites do; or "
                "`sites.site_files`",
            )
        from ...prepare.inputs.data_at_sites import disclosed_by

        wanted = self.config.data.dataset or ""
        return {site: disclosed_by(data, wanted) for site, data in self.data_at.items()}


class OneRay(HereSource):
    """Sites that are parts of this process, each with its own gang on the same Ray."""

    def __init__(
        self,
        config: RunConfig,
        names: Sequence[str],
        cluster: Cluster | None = None,
        kept: KeptRay | None = None,
    ) -> None:
        """`cluster` replaces the Ray that the config asks for. Raises BadFile, SpecError.

        With `kept` that Ray stays when this source ends, for the next one.
        """
        super().__init__(config, names)
        self._cluster, self._kept = cluster, kept
        self._declared = None if cluster else declared_ray(config)
        self._begun: RayCluster | None = None

    def begin(self) -> None:
        """Begin to start the private Ray, if the config asks for one. Raises NotFeasible."""
        if self._cluster is None and self._kept is None:
            self._check()
            self._begun = begin_ray(self.config)

    def open(
        self, request: GangRequest, store: int, among: Collection[str], undo: ExitStack
    ) -> Sequence[Site]:
        """All sites. Raises NotFeasible, ClusterStartFailed."""
        begun, self._begun = self._begun, None
        if begun is not None:
            undo.callback(begun.close)
        if self._cluster is None:
            self._check()
        if self._kept is not None:
            cluster = self._kept.entered(self.config, store)
        else:
            cluster = self._cluster or enter_ray(self.config, store, begun, self._declared, undo)
        manager = undo.enter_context(VirtualClusterManager(cluster))
        return [
            InProcessSite(name, manager, SiteContext(name=name, data=self.data_at.get(name, {})))
            for name in self.names
            if name in among
        ]

    def _check(self) -> None:
        """Raise NotFeasible if machines that are known could never hold the gang."""
        from .planned_sites import check_here

        ray = self.config.resources.ray
        machines = [local_machine(ray.num_cpus, ray.num_gpus)]
        if self._declared is not None:
            if self._declared.declared.provider != "local":
                return
            machines = [*self._declared.declared.largest(local_machine())]
        check_here(self.config, self.names, machines)

    def follow(self, run: StartedRun, undo: ExitStack) -> None:
        """Follow nothing: these sites end with this process."""

    def close(self) -> None:
        """End a Ray that was begun but not used."""
        if self._begun is not None:
            self._begun.close()


class RayEach(HereSource):
    """Sites that are processes on this machine, each with a Ray of its own."""

    apart = True

    def __init__(self, config: RunConfig) -> None:
        """The sites that the config asks for. Raises BadFile."""
        super().__init__(config, config.sites.names)
        self._begun: LocalSites | None = None

    def begin(self) -> None:
        """Begin to start all of them, with the smallest object stores."""
        self._begun = self._started(0)

    def open(
        self, request: GangRequest, store: int, among: Collection[str], undo: ExitStack
    ) -> Sequence[Site]:
        """The sites of `among`. Raises NotFeasible, ClusterStartFailed, SiteUnreachable."""
        begun, self._begun = self._begun, None
        if begun is not None and begun.store < store:
            begun.close()  # its object stores are too small for these data
            begun = None
        self._sites = begun or self._started(store)
        undo.callback(self._sites.close)
        self._sites.wait()
        there = [site for site in self._sites.sites() if site.name in among]
        self._opened = [site.name for site in there]
        return there

    def follow(self, run: StartedRun, undo: ExitStack) -> None:
        """Bring in sites whose runners died, which starts the next runners."""
        from .membership_watcher import MembershipWatcher

        mediator = run.mediator

        def look(busy: Collection[str]) -> dict[str, Future[Any]]:
            out = {*busy, *mediator.membership.sites, *mediator.membership.excluded}
            gone = [site for site in self._opened if site not in out and self._sites.died(site)]
            return {site: mediator.readmit(site) for site in gone}

        watcher = MembershipWatcher(look)
        undo.callback(watcher.close)
        undo.enter_context(mediator.events.heard_by(watcher.hear))

    def _started(self, store: int) -> LocalSites:
        from .local_sites import LocalSites

        return LocalSites(self.config, max(store, SMALLEST_OBJECT_STORE), self.data_at)

    def close(self) -> None:
        """End Rays that were begun but not used."""
        if self._begun is not None:
            self._begun.close()


def disclosed_to(config: RunConfig, source: SiteSource) -> dict[str, Mapping[str, Any]] | None:
    """What each site discloses of the run's data set; None where a config's data is loaded here."""
    if config.data.from_ is None:
        return None
    name, disclosed = config.data.dataset or "", source.disclosed()
    held = {site: sets[name] for site, sets in disclosed.items() if name in sets}
    return {site: held[site] for site in source.names if site in held}


def sites_here(
    config: RunConfig,
    names: Sequence[str] | None,
    cluster: Cluster | None,
    kept: KeptRay | None = None,
) -> OneRay | RayEach:
    """The sites of a config on this machine; `names` and `cluster` ask for parts of this process.

    Several sites have a Ray each, unless an argument says which Ray to use. Only the Ray of a
    single site can be `kept`. Raises BadFile.
    """
    if cluster is None and names is None and len(config.sites.names) > 1:
        return RayEach(config)
    return OneRay(config, names or config.sites.names, cluster, kept)


def _declared_here(config: RunConfig, sites: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """What the admins of this machine's sites declare, by site and data set. Raises BadFile."""
    if config.data.from_ is None or not config.sites.site_files:
        return {}
    from fedpilot.mediator.agent.site_config.site_files import read_site_file

    return {
        site: {name: each.to_json() for name, each in read_site_file(Path(file)).items()}
        for site, file in zip(sites, config.sites.site_files, strict=True)
    }
