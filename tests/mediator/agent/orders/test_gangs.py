"""A mediator asks for vnodes of sound sizes, for a time that has an end."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedpilot.mediator.agent.orders.gangs import LONGEST_S, gang_of
from fedpilot.mediator.federation.site import GangRequest
from fedpilot.mediator.wire.messages import BadMessage

SOUND = GangRequest(name="g", resources={"CPU": 1.0})


RANGE = GangRequest(name="g", resources={"CPU": 1.0}, at_least=2, at_most=8)


@pytest.mark.parametrize("asked", [SOUND, RANGE])
def test_what_is_sound_is_taken_as_it_is(asked: GangRequest) -> None:
    assert gang_of(asked.to_json()) == asked


def test_sites_of_earlier_versions_get_no_key_that_they_do_not_know() -> None:
    assert "at_least" not in SOUND.to_json()


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
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadMessage, match="no request for a gang"):
        gang_of({**SOUND.to_json(), **changes})
