"""A site behind a link promises only what it was asked for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fake_sites import REQUEST
from fedpilot.mediator import (
    Payload,
    Promise,
    Refusal,
)
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.core.reservation import Answer, VNodeClass
from fedpilot.mediator.federation.linked_site import promised
from fedpilot.mediator.federation.site import GangRequest


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param(
            Payload(kind="promised", header={"vnodes": 2}), Promise("s", 2), id="a promise"
        ),
        pytest.param(
            Payload(kind="refused", header={"reason": "busy"}), Refusal("s", "busy"), id="a refusal"
        ),
        pytest.param(
            Payload(kind="refused"), Refusal("s", "it gave no reason"), id="one without a reason"
        ),
        pytest.param(
            Payload(kind="refused", header={"reason": "no Ray", "unreachable": True}),
            Refusal("s", "no Ray", unreachable=True),
            id="a Ray that cannot be used",
        ),
        pytest.param(
            Payload(kind="refused", header={"reason": "busy", "unreachable": 1}),
            Refusal("s", "busy"),
            id="one that says so wrongly",
        ),
        pytest.param(
            Payload(kind="refused", header={"reason": "busy", "full": True}),
            Refusal("s", "busy", full=True),
            id="a site that is full for now",
        ),
        pytest.param(Payload(kind="promised"), None, id="a promise of nothing"),
        pytest.param(Payload(kind="promised", header={"vnodes": 0}), None, id="of no vnodes"),
        pytest.param(Payload(kind="promised", header={"vnodes": 10**9}), None, id="of too many"),
        pytest.param(Payload(kind="promised", header={"vnodes": True}), None, id="of true vnodes"),
        pytest.param(Payload(kind="promised", header={"vnodes": "2"}), None, id="of a text"),
        pytest.param(Payload(kind="done", header={"vnodes": 2}), None, id="something else"),
    ],
)
def test_a_promise_is_of_what_was_asked_for(answer: Payload, found: Answer) -> None:
    told = promised("s", answer, REQUEST)
    assert told == found if found is not None else isinstance(told, Refusal)


SMALL = VNodeClass(name="small", resources={"CPU": 1.0}, workers=3)
LARGE = VNodeClass(name="large", resources={"CPU": 4.0}, workers=1)
GROWING = replace(SMALL, workers=None, at_least=2, at_most=6)


@pytest.mark.parametrize(
    ("classes", "vnodes", "why"),
    [
        pytest.param((SMALL, LARGE), 4, None, id="all of them"),
        pytest.param((SMALL, LARGE), 3, "it promised 3 vnodes of the 4", id="one too few"),
        pytest.param((GROWING, LARGE), 5, None, id="in the range"),
        pytest.param((GROWING, LARGE), 2, "2 vnodes of 3 to 7 asked for", id="below the range"),
        pytest.param((GROWING, LARGE), 8, "8 vnodes of 3 to 7 asked for", id="above the range"),
    ],
)
def test_a_promise_is_of_the_vnodes_of_all_classes(
    classes: tuple[VNodeClass, ...], vnodes: int, why: str | None
) -> None:
    answer = Payload(kind="promised", header={"vnodes": vnodes})
    told = promised("s", answer, GangRequest(name="g", groups=classes))
    if why is None:
        assert told == Promise("s", vnodes)
    else:
        assert isinstance(told, Refusal)
        assert why in told.reason


@pytest.mark.parametrize(
    ("said", "link"),
    [
        pytest.param({"up": 1e6, "down": 5}, LinkSpeed(up=1e6, down=5.0), id="both directions"),
        pytest.param({"up": 1e6}, LinkSpeed(up=1e6), id="one direction"),
        pytest.param(None, LinkSpeed(), id="a site of an earlier version"),
        pytest.param({"up": -1, "down": "fast"}, LinkSpeed(), id="nonsense"),
        pytest.param({"up": True, "down": math.inf}, LinkSpeed(), id="no numbers"),
        pytest.param([1], LinkSpeed(), id="a list"),
    ],
)
def test_a_promise_names_the_link_of_its_site(said: object, link: LinkSpeed) -> None:
    header = {"vnodes": 1} if said is None else {"vnodes": 1, "link": said}
    told = promised("s", Payload(kind="promised", header=header), REQUEST)
    assert told == Promise("s", 1, link)


def test_what_the_mediator_knows_of_a_link_wins_over_the_promise() -> None:
    known = LinkSpeed(up=3.0, up_measured_at=9.0)
    answer = Payload(kind="promised", header={"vnodes": 1, "link": {"up": 1e6, "down": 5}})
    told = promised("s", answer, REQUEST, known)
    assert told == Promise("s", 1, LinkSpeed(up=3.0, up_measured_at=9.0, down=5.0))
