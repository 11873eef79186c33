"""Events of a site carry its name, whatever it says itself."""

from __future__ import annotations

from fake_sites import REQUEST, FakeSite
from fedpilot.mediator import (
    FederationMediator,
    Payload,
)


def test_whose_event_it_is_is_not_for_the_site_to_say() -> None:
    site, heard = FakeSite("a"), list[Payload]()
    mediator = FederationMediator([site])
    mediator.reserve(REQUEST)
    mediator.start("w", {"a": Payload(kind="spec")}, heard.append)
    for claimed in ({}, {"site": "b"}):
        site.notify(Payload(kind="clients_done", header={"round": 3, **claimed}))
    told = [each.header for each in heard if each.kind == "clients_done"]
    assert told == [{"site": "a", "round": 3}] * 2
