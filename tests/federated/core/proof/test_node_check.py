"""What a site says of single nodes is taken only if it can be so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpilot.federated.core.proof.node_check import check_node
from fedpilot.federated.core.state import digest
from fedpilot.federated.core.sums.amounts import AnswerRefused

MODEL = {"w": np.zeros((2, 3), np.float32), "steps": np.array(4)}
ASKED = {"digest": digest(MODEL)}
SHOWN = {
    "state": "materialized",
    "worker": "worker 0",
    "reason": "train() was called",
    "samples": None,
    "seconds": 2.5,
    "trail": [[2.5, "request", "train() was called"], [1, "bind", "its worker"]],
}


def test_honest_answers_about_nodes_are_taken() -> None:
    check_node("node.show", {}, SHOWN, {}, MODEL)
    check_node("node.train", {}, {"tally": [3, 1, 5, 0]}, MODEL, MODEL)
    check_node("node.evaluate", {}, {"tally": [3, 1, 5, 0]}, {}, MODEL)
    check_node("node.materialize", {}, {"client": 3, "samples": None}, {}, MODEL)
    check_node("node.give", ASKED, {"readers": [4]}, MODEL, MODEL)
    check_node("node.give", ASKED, {"keys": ["run/client_3/round_1"]}, {}, MODEL)


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
        pytest.param(
            "node.train",
            {"tally": [1, 1, 1, 0]},
            {**MODEL, "w": np.zeros((2, 3))},
            id="a model of another type",
        ),
        pytest.param("node.give", {"readers": 4}, MODEL, id="a number for readers"),
        pytest.param("node.give", {"keys": "all"}, {}, id="a text for keys"),
        pytest.param("node.give", {"readers": []}, {}, id="a state without tensors"),
        pytest.param(
            "node.give",
            {"readers": [4]},
            {**MODEL, "w": np.ones((2, 3), np.float32)},
            id="a state of another digest",
        ),
        pytest.param("node.evaluate", {"tally": [1, 2, 1, 0]}, {}, id="more right than there are"),
    ],
)
def test_others_are_refused(kind: str, header: dict[str, Any], tensors: Any) -> None:
    with pytest.raises(AnswerRefused):
        check_node(kind, ASKED, header, tensors, MODEL)
