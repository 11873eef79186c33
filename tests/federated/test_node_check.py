"""What a site says of single nodes and chooses for all is taken only if it can be so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpilot.federated.core.execution import Execution, Kind
from fedpilot.federated.core.node_check import check_node, checked_choice
from fedpilot.federated.core.partial_check import AnswerRefused

MODEL = {"w": np.zeros((2, 3), np.float32), "steps": np.array(4)}
SHOWN = {
    "state": "materialized",
    "worker": "worker 0",
    "reason": "train() was called",
    "samples": None,
    "seconds": 2.5,
    "trail": [[2.5, "request", "train() was called"], [1, "bind", "its worker"]],
}


def test_honest_answers_about_nodes_are_taken() -> None:
    check_node("node.show", SHOWN, {}, MODEL)
    check_node("node.train", {"tally": [3, 1, 5, 0]}, MODEL, MODEL)
    check_node("node.evaluate", {"tally": [3, 1, 5, 0]}, {}, MODEL)
    check_node("node.materialize", {"client": 3, "samples": None}, {}, MODEL)


@pytest.mark.parametrize(
    ("kind", "header", "tensors"),
    [
        pytest.param("node.show", {**SHOWN, "state": "dancing"}, {}, id="a state that is none"),
        pytest.param("node.show", {**SHOWN, "state": ["virtual"]}, {}, id="a list of states"),
        pytest.param("node.show", {**SHOWN, "samples": -1}, {}, id="less than no samples"),
        pytest.param("node.show", {**SHOWN, "trail": [[1, "bind"]]}, {}, id="half a step"),
        pytest.param("node.show", {**SHOWN, "trail": 5}, {}, id="a number for a trail"),
        pytest.param("node.show", {"state": "virtual"}, {}, id="no trail"),
        pytest.param("node.train", {}, MODEL, id="no tally"),
        pytest.param("node.train", {"tally": [1, 1, 1, 0]}, {}, id="no model"),
        pytest.param(
            "node.train",
            {"tally": [1, 1, 1, 0]},
            {**MODEL, "w": np.zeros(9)},
            id="a model of another shape",
        ),
        pytest.param("node.evaluate", {"tally": [1, 2, 1, 0]}, {}, id="more right than there are"),
    ],
)
def test_others_are_refused(kind: str, header: dict[str, Any], tensors: Any) -> None:
    with pytest.raises(AnswerRefused):
        check_node(kind, header, tensors, MODEL)


def test_a_choice_is_one_of_the_ways_there_are() -> None:
    header = {"execution": ["folded", 64], "reason": "2.0x as fast"}
    assert checked_choice(header, "auto") == (Execution(Kind.FOLDED, 64), "2.0x as fast")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"reason": "x"}, id="none"),
        pytest.param({"execution": "folded", "reason": "x"}, id="a text"),
        pytest.param({"execution": ["dancing", 3], "reason": "x"}, id="no way there is"),
        pytest.param({"execution": [["folded"], 3], "reason": "x"}, id="a list of ways"),
        pytest.param({"execution": ["folded", 0], "reason": "x"}, id="no clients at all"),
        pytest.param({"execution": ["folded", 10**9], "reason": "x"}, id="all clients there are"),
        pytest.param({"execution": ["folded", True], "reason": "x"}, id="true for a number"),
        pytest.param({"execution": ["sequential", 3], "reason": "x"}, id="not what was named"),
        pytest.param({"execution": ["folded", 3]}, id="no reason"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(AnswerRefused):
        checked_choice(header, "folded")
