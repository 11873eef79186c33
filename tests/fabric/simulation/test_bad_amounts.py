"""Amounts too large to count and labels that cannot be selected are refused where they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpilot.common.strict_yaml.errors import BadFile
from fedpilot.fabric.simulation.case_file import read_cases


def settle(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a",
        "kind": "settle",
        "nodes": [{"name": "n1", "capacity": {"gpu": 2}}],
        "projects": [{"name": "A", "quota": {"default": {"gpu": 1}}}],
        "workloads": [],
        **changes,
    }


def clusters(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a",
        "kind": "virtual_cluster",
        "nodes": [{"name": "m1", "capacity": {"cpu": 4}}],
        "virtual_clusters": [],
        "steps": [],
        **changes,
    }


def workload(**changes: Any) -> dict[str, Any]:
    return {"id": "w", "project": "A", "member_request": {"gpu": 1}, **changes}


def selecting(*values: str) -> dict[str, Any]:
    node = {"resources": {"cpu": 1}, "parent_selector": {"zone": list(values)}}
    return {"id": "v", "fixed_nodes": [node]}


@pytest.mark.parametrize(
    ("case", "key", "allowed"),
    [
        pytest.param(
            settle(nodes=[{"name": "n1", "capacity": {"gpu": 1e308}}]),
            "nodes[0].capacity.gpu",
            "a number of at least 0 and at most 1000000000000000",
            id="a capacity beyond counting",
        ),
        pytest.param(
            settle(nodes=[{"name": "n1", "capacity": {"gpu": 1e12}}]),
            "nodes[0].capacity.gpu",
            "at most 10000",
            id="more GPUs than a machine can have",
        ),
        pytest.param(
            settle(projects=[{"name": "A", "quota": {"default": {"gpu": 1e308}}}]),
            "projects[0].quota.default.gpu",
            "at most 1000000000000000000",
            id="a quota beyond counting",
        ),
        pytest.param(
            settle(workloads=[workload(members={"min": 10**20, "max": 10**20})]),
            "workloads[0].members.min",
            "at most 100000",
            id="more members than a gang can have",
        ),
        pytest.param(
            settle(workloads=[workload(node_selector={"zone": "a b"})]),
            "workloads[0].node_selector.zone",
            "letters, digits",
            id="a label value that no selector can ask for",
        ),
        pytest.param(
            clusters(virtual_clusters=[selecting()]),
            "virtual_clusters[0].fixed_nodes[0].parent_selector.zone",
            "at least one value",
            id="a selector without values",
        ),
        pytest.param(
            clusters(virtual_clusters=[selecting("a", "")]),
            "virtual_clusters[0].fixed_nodes[0].parent_selector.zone[1]",
            "text",
            id="a selector with an empty value",
        ),
    ],
)
def test_it_is_refused(tmp_path: Path, case: dict[str, Any], key: str, allowed: str) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case))
    with pytest.raises(BadFile) as refused:
        read_cases(file)
    assert f": {key}\n" in str(refused.value)
    assert allowed in str(refused.value)
