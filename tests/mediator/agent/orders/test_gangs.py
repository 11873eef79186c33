"""A mediator asks for vnodes of sound sizes, for a time that has an end."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from fedpilot.mediator.agent.orders.gangs import LONGEST_S, capped, gang_of
from fedpilot.mediator.core.reservation import VNodeClass
from fedpilot.mediator.core.rules.policy import Policy, ResourceCaps
from fedpilot.mediator.federation.site import GangRequest
from fedpilot.mediator.wire.messages import BadMessage

SOUND = GangRequest(name="g", resources={"CPU": 1.0})


RANGE = GangRequest(name="g", resources={"CPU": 1.0}, at_least=2, at_most=8)
SMALL = VNodeClass(name="small", resources={"CPU": 1.0}, at_least=2, at_most=6)
LARGE = VNodeClass(name="large", resources={"CPU": 4.0}, workers=1, labels={"zone": "in(a,b)"})
CLASSES = GangRequest(name="g", groups=(SMALL, LARGE))


@pytest.mark.parametrize("asked", [SOUND, RANGE, CLASSES])
def test_what_is_sound_is_taken_as_it_is(asked: GangRequest) -> None:
    assert gang_of(asked.to_json()) == asked


def test_sites_of_earlier_versions_get_no_key_that_they_do_not_know() -> None:
    assert {"at_least", "groups"}.isdisjoint(SOUND.to_json())


def test_classes_travel_as_json() -> None:
    assert gang_of(json.loads(json.dumps(CLASSES.to_json()))) == CLASSES
    assert (CLASSES.least, CLASSES.most, CLASSES.elastic) == (3, 7, True)
    assert CLASSES.gang == ((2, {"CPU": 1.0}), (1, {"CPU": 4.0}))


@pytest.mark.parametrize(
    ("caps", "most"),
    [
        pytest.param(ResourceCaps(), 6, id="no cap"),
        pytest.param(ResourceCaps(cpus=8), 4, id="the CPUs beside the other class"),
        pytest.param(ResourceCaps(vnodes=4), 3, id="the vnodes beside the other class"),
        pytest.param(ResourceCaps(cpus=6), 2, id="no more than the least"),
    ],
)
def test_a_policy_caps_how_far_a_class_grows(caps: ResourceCaps, most: int) -> None:
    small, large = capped(CLASSES, Policy(resources=caps)).groups
    assert (small, large) == (replace(SMALL, at_most=most), LARGE)


def test_of_two_classes_the_first_may_grow_first() -> None:
    other = replace(SMALL, name="other")
    request = GangRequest(name="g", groups=(SMALL, other))
    policy = Policy(resources=ResourceCaps(vnodes=9))
    assert [each.at_most for each in capped(request, policy).groups] == [6, 3]


def test_one_class_is_capped_as_before() -> None:
    policy = Policy(resources=ResourceCaps(cpus=4))
    assert capped(SOUND, policy) == replace(SOUND, at_most=4)
    assert capped(RANGE, policy) == replace(RANGE, at_most=4)
    fixed = replace(SOUND, workers=3)
    assert capped(fixed, policy) == fixed


@pytest.mark.parametrize("name", ["timeout_s", "lease_s"])
@pytest.mark.parametrize("asked", [LONGEST_S + 1, 10**400, math.inf])
def test_times_have_an_end(name: str, asked: float) -> None:
    assert getattr(gang_of({**SOUND.to_json(), name: asked}), name) == LONGEST_S


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"timeout_s": 0}, id="no time"),
        pytest.param({"lease_s": math.nan}, id="a time that is no number"),
        pytest.param({"lease_s": "60"}, id="a time in words"),
        pytest.param({"workers": 0}, id="no worker"),
        pytest.param({"workers": -3}, id="fewer than none"),
        pytest.param({"workers": 1.5}, id="one and a half"),
        pytest.param({"workers": True}, id="true"),
        pytest.param({"at_most": 0}, id="none at most"),
        pytest.param({"at_least": 0}, id="none at least"),
        pytest.param({"at_least": "2"}, id="a least number in words"),
        pytest.param({"at_least": 9, "at_most": 8}, id="a range that ends before it begins"),
        pytest.param({"at_least": 2, "workers": 2}, id="a range and a number"),
        pytest.param({"resources": {"CPU": -1.0}}, id="less than nothing"),
        pytest.param({"resources": {"CPU": math.inf}}, id="without end"),
        pytest.param({"resources": {"CPU": math.nan}}, id="no number"),
        pytest.param({"resources": {"CPU": "1"}}, id="an amount in words"),
        pytest.param({"resources": ["CPU"]}, id="a list"),
        pytest.param({"policy": "x"}, id="a policy that there is not"),
        pytest.param({"name": 3}, id="a number for a name"),
        pytest.param({"more": 1}, id="a key that there is not"),
        pytest.param({"groups": [SMALL.to_json()] * 2}, id="two classes of one name"),
        pytest.param({"groups": [{**LARGE.to_json(), "workers": 0}]}, id="a class of none"),
        pytest.param({"groups": [{**LARGE.to_json(), "later": 1}]}, id="a later kind of class"),
        pytest.param({"groups": [3]}, id="a number for a class"),
        pytest.param({"groups": 3}, id="a number for classes"),
        pytest.param({"groups": [{**LARGE.to_json(), "labels": {"a": 1}}]}, id="a number's label"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadMessage, match="no request for a gang"):
        gang_of({**SOUND.to_json(), **changes})
