"""Sites that are lost with an order, before or amid their work on it, and federations over them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest

from federations import Lab, Log
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Event, Federation
from fedpilot.federated.federation.coordinator.coordinator import Coordinator
from fedpilot.federated.federation.setup.global_model import GlobalModel
from fedpilot.mediator import InProcessSite, Payload, SiteLost
from fedpilot.mediator.federation.futures import done

SITES = ("east", "north", "west")
SITE = "fedpilot.federated.federation.sites.sources.InProcessSite"
Moments = dict[str, set[int]]
"""The orders, counted from 0, with which a site is lost."""


class ShakySite(InProcessSite):
    """A site that is lost with some of its orders, before or amid its work on them."""

    moments: ClassVar[Moments] = {}
    amid: ClassVar[bool] = False
    sites: ClassVar[dict[str, ShakySite]] = {}

    def __init__(self, name: str, *args: Any) -> None:
        super().__init__(name, *args)
        self.gone = False
        self.orders: list[Payload] = []
        self.keys: list[str] = []
        self._open: list[Future[Payload]] = []
        self._numbers = itertools.count()
        self.sites[name] = self

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        if self.gone:
            return self._refused()
        self.orders.append(order)
        self.keys.append(key)
        fatal = next(self._numbers) in self.moments.get(self.name, ())
        if fatal and not self.amid:
            self.vanish()
            return self._refused()
        answer: Future[Payload] = Future()
        self._open.append(answer)
        worked = super().deliver(order, key, purpose)
        if fatal:
            self.vanish()
        worked.add_done_callback(lambda made: self._hand_over(made, answer))
        return answer

    def vanish(self) -> None:
        """All that was there is gone, and whoever waits is told."""
        self.gone = True
        for answer in self._open:
            if not answer.done():
                answer.set_exception(SiteLost(self.name, "the cable was cut"))
        self.release().result()

    def _refused(self) -> Future[Payload]:
        def refuse() -> Payload:
            raise SiteLost(self.name, "the cable was cut")

        return done(refuse)

    def _hand_over(self, made: Future[Payload], answer: Future[Payload]) -> None:
        if not answer.done():
            error = made.exception()
            if error is None:
                answer.set_result(made.result())
            else:
                answer.set_exception(error)


def returning(federation: Federation, site: str) -> Callable[[Event], None]:
    """An observer that brings a site back a moment after it was lost."""

    def bring() -> None:
        ShakySite.sites[site].gone = False
        assert federation.gang.mediator is not None
        federation.gang.mediator.readmit(site).result(60)

    def observer(event: Event) -> None:
        if event.name == "site_lost" and event.fields["site"] == site:
            threading.Thread(target=bring, daemon=True).start()

    return observer


class Region:
    """A lab with three sites, and what shall become of them."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.log = Log()

    def federation(
        self,
        moments: Moments | None = None,
        *observers: Callable[[Event], None],
        amid: bool = False,
        **keys: Any,
    ) -> Federation:
        ShakySite.moments, ShakySite.amid, ShakySite.sites = moments or {}, amid, {}
        self.log = Log()
        cluster = FakeCluster([fake_machine("a", CPU=8)])
        config = self.lab.config(**{"resources__workers": 2, **keys})
        observing = (self.log, *observers)
        made = Federation(config, observers=observing, cluster=cluster, sites=SITES)
        self.lab._undo.callback(made.close)
        return made


class Outages:
    """Sites that are lost, and come back, when a round begins."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(SITE, ShakySite)
        for name, value in {"moments": {}, "amid": False, "sites": {}}.items():
            patch.setattr(ShakySite, name, value)
        self.patch = patch

    def happen(
        self,
        federation: Federation,
        lost: dict[int, Sequence[str]],
        back: dict[int, Sequence[str]] | None = None,
    ) -> None:
        """Lose or bring back sites as a round begins for the first time, by its number."""
        step, losses, returns = Coordinator.step, dict(lost), dict(back or {})

        def stepping(coordinator: Coordinator, model: GlobalModel) -> Any:
            mediator = federation.gang.mediator
            if mediator is not None and coordinator._run.mediator is mediator:
                for site in returns.pop(model.round_number + 1, ()):
                    ShakySite.sites[site].gone = False
                    mediator.readmit(site).result(60)
                for site in losses.pop(model.round_number + 1, ()):
                    ShakySite.sites[site].vanish()
            return step(coordinator, model)

        self.patch.setattr(Coordinator, "step", stepping)
