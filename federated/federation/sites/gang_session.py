"""GangSession: reserves a federation's gang at its sites and starts the workers, once; ends both.

The first call that needs the workers starts it. If the start fails, or another thread closes the
session meanwhile, everything begun is undone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from fedpilot.mediator import FederationMediator, GangRequest, Payload, Site

from ...config.telling import told
from ...core.state import State
from ...errors import FederatedError
from ...prepare.assigning import strategy_of
from ...prepare.gang_request import gang_request, object_store_bytes
from ..events import EventBus
from ..setup.global_model import CurrentModel
from ..setup.loaded_config import LoadedConfig
from ..setup.planning import inputs_of_plan
from .event_relay import EventRelay
from .lifetime import Lifetime
from .sources import SiteSource, StartedRun

WORKLOAD = "federated"


class GangSession:
    """The gang of one federation: not yet reserved, then at work, then closed."""

    def __init__(
        self,
        source: SiteSource,
        loaded: LoadedConfig,
        model: CurrentModel,
        events: EventBus,
        *,
        name: str,
        user: str,
        undo: ExitStack,
    ) -> None:
        """`name` is the gang's, `user` owns it; `undo` ends what was started before."""
        self.name = name
        self._user = user
        self._source = source
        self._loaded = loaded
        self._model = model
        self._events = events
        strict = loaded.config.run.reproducible == "strict"
        alike = loaded.config.resources.alike
        self.relay = EventRelay(events.emit, strict=strict, compares_classes=alike)
        self._life = Lifetime(undo)
        self._graph: State | None = None
        """The tensors of a spec, once needed."""
        self.mediator: FederationMediator | None = None
        """Routes orders to the sites; None unless the gang is at work."""

    def running(self, otherwise: str) -> FederationMediator:
        """The mediator; raises FederatedError with this text unless the gang is at work."""
        if self.mediator is None:
            raise FederatedError(otherwise)
        return self.mediator

    @property
    def closing(self) -> bool:
        """Whether it is closed, or will be once its start ends."""
        return self._life.closing

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that clients may be assigned to."""
        return self._loaded.among(self._source.names)

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Facts of every worker that came up; empty before `start`."""
        return self.relay.workforce.all()

    def start(self) -> None:
        """Reserve the gang and start its workers; does nothing if they are up."""
        self._life.start(self._start)

    def close(self) -> None:
        """End the workers, release the gang, end what the sites were started with."""
        self._life.close()

    def _start(self, undo: ExitStack) -> None:
        loaded, events, relay = self._loaded, self._events, self.relay
        started = time.perf_counter()

        def seconds() -> float:
            return round(time.perf_counter() - started, 3)

        with events.step("execution"):
            loaded.settle_execution(events.emit)
        config = loaded.config
        request = gang_request(config, self.name, self._user)
        sites = self._opened(request, undo)
        loaded.check_shares(len(sites))
        events.emit("cluster_ready", seconds=seconds())
        mediator = self._mediator_over(sites)
        undo.callback(self._forget_mediator)
        undo.callback(mediator.close)
        self._life.check()
        with events.step("gang", request.timeout_s):
            least, required = self._source.least, config.sites.required
            promises = mediator.reserve(request, min_sites=least, required=required)
        vnodes = {site: promise.vnodes for site, promise in promises.items()}
        events.emit("gang_reserved", vnodes=vnodes, seconds=seconds())
        from ...prepare.topology import lasting_exchange_of

        union, exchange = loaded.inputs.union, None
        work = pace = None
        if len(promises) > 1:
            exchange = lasting_exchange_of(config, loaded.inputs.graphs)
        if exchange is not None:
            work = loaded.inputs.round_work(config)
            pace = inputs_of_plan(loaded, self.name).pace.value
        mediator.membership.assign(
            loaded.inputs.population,
            None if union is None else union.pinned,
            exchange,
            work,
            loaded.inputs.labels,
            seconds_per_sample=pace,
        )
        specs = {site: self.spec_of(site) for site in self.sites}
        self._life.check()
        with events.step("workers", config.resources.start_timeout, told_by_others=True):
            mediator.start(WORKLOAD, specs, relay.happened)
        relay.compare_workers()
        counts = relay.workforce.by_class()
        by_class = {each.name: counts.get(each.name, 0) for each in request.groups}
        classes = {"vnode_classes": by_class} if by_class else {}
        events.emit("workers_ready", workers=len(self.workers), seconds=seconds(), **classes)
        self._life.check()
        run = StartedRun(
            mediator=mediator,
            spec_of=self.spec_of,
            round_number=lambda: self._model.now.round_number,
            passed=relay.passed_over,
            link_used=relay.link_use(loaded.inputs.costs(config).of_a_site),
        )
        self._source.follow(run, undo)
        self.mediator = mediator

    def _opened(self, request: GangRequest, undo: ExitStack) -> Sequence[Site]:
        """Open the sites; they end with the gang."""
        loaded, config = self._loaded, self._loaded.config
        store = object_store_bytes(loaded.inputs) + loaded.bytes_of_updates
        step, within_s = "sites", config.participation.wait_for_sites_s
        if self._source.brings_ray:
            step, within_s = "ray", config.resources.start_timeout
        with self._events.step(step, within_s):
            return self._source.open(request, store, self.sites, undo)

    def _mediator_over(self, sites: Sequence[Site]) -> FederationMediator:
        config = self._loaded.config
        stateful = config.clients_keep_states
        return FederationMediator(
            sites,
            assignment=strategy_of(config),
            # A client's state is at its site: elsewhere it would be another client.
            replacement=config.participation.replacement and not stateful,
            counted=self._source.counted,
        )

    def _forget_mediator(self) -> None:
        self.mediator = None
        self.relay.workforce.forget()

    def spec_of(self, site: str) -> Payload:
        """A site's spec of the federation; raises UnionError if it has none of the run's data."""
        from ...prepare.inputs.local_data import hand_over
        from ...prepare.topology import graph_of_spec

        loaded, union = self._loaded, self._loaded.inputs.union
        apart = self._source.apart or union is not None
        header = {
            **told(loaded.config),
            "paths": list(loaded.paths),
            "materials": "" if apart else hand_over(loaded.inputs),
        }
        if union is not None:
            header["place"] = union.place_of(site).to_json()
        likes = self.relay.workforce.likes()
        if loaded.config.run.reproducible == "strict" and likes:
            header |= likes
        if self._graph is None:
            self._graph = graph_of_spec(loaded.config, loaded.inputs.graphs)
        spec = Payload(kind="federation", header=header, tensors=self._graph)
        return self._source.told(spec)
