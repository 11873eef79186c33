"""What a run asks for is read back as it was written, and refused if it is impossible."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fedpilot.fabric.core.resources import Resources
from fedpilot.mediator.core.reservation import VNodeClass
from fedpilot.mediator.core.run_queue import BadAsk, RunAsk


def test_an_ask_is_read_back() -> None:
    ask = RunAsk(vnode={"CPU": 0.5, "memory": 1e9}, workers=3, count=2, required=("a",), data="x")
    assert RunAsk.from_json(json.loads(json.dumps(ask.to_json()))) == ask
    assert RunAsk.from_json({"later": 1}) == RunAsk()


def test_an_ask_for_as_many_as_fit_depends_on_the_site() -> None:
    ask = RunAsk(vnode={"CPU": 2.0}, at_most=3)
    sizes = {1: 2, 2: 2, 5: 4, 100: 6}
    for cpus, wanted in sizes.items():
        assert ask.at(Resources.of({"CPU": cpus})) == Resources.of({"CPU": wanted})


def test_an_ask_for_a_range_needs_its_least_at_every_site() -> None:
    ask = RunAsk(vnode={"CPU": 2.0}, at_least=2, at_most=8)
    assert RunAsk.from_json(json.loads(json.dumps(ask.to_json()))) == ask
    assert ask.at(Resources.of({"CPU": 64})) == Resources.of({"CPU": 4})
    assert ask.in_words() == "2 to 8 vnodes of 2 CPU"


def test_an_ask_for_classes_needs_all_of_them() -> None:
    small = VNodeClass(name="small", resources={"CPU": 1.0}, at_least=2, at_most=6)
    large = VNodeClass(name="large", resources={"CPU": 4.0, "GPU": 1.0}, workers=1)
    ask = RunAsk(workers=3, groups=(small, large))
    assert RunAsk.from_json(json.loads(json.dumps(ask.to_json()))) == ask
    assert ask.at(Resources.of({"CPU": 64})) == Resources.of({"CPU": 6, "GPU": 1})
    assert ask.in_words() == "2 to 6 vnodes of 1 CPU and 1 vnode of 4 CPU, 1 GPU"


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([], id="a list"),
        pytest.param({"vnode": {"CPU": -1}}, id="a negative amount"),
        pytest.param({"vnode": {"CPU": math.inf}}, id="an endless amount"),
        pytest.param({"vnode": {"CPU": "1"}}, id="an amount in words"),
        pytest.param({"vnode": {"": 1}}, id="a resource without a name"),
        pytest.param({"workers": 0}, id="no worker"),
        pytest.param({"workers": 10**9}, id="a billion workers"),
        pytest.param({"at_least": 0}, id="a range from none"),
        pytest.param({"count": True}, id="a truth for a number"),
        pytest.param({"required": "a"}, id="a site that is no list"),
        pytest.param({"required": [1]}, id="a number for a site"),
        pytest.param({"data": 3}, id="a number for a data set"),
        pytest.param({"groups": 3}, id="a number for classes"),
        pytest.param({"groups": [{"workers": 0}]}, id="a class of none"),
        pytest.param({"groups": [{"later": 1}]}, id="a later kind of class"),
        pytest.param({"groups": [{"resources": {"CPU": 1e300}}]}, id="more than there is"),
    ],
)
def test_an_impossible_ask_is_refused(values: Any) -> None:
    with pytest.raises(BadAsk):
        RunAsk.from_json(values)
