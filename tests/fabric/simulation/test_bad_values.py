"""Amounts beyond counting, labels that cannot be selected and names twice are refused in place."""

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
        pytest.param(
            clusters(
                steps=[
                    {"at_s": 0, "do": [{"op": "add_node", "node": "m1", "capacity": {"cpu": 1}}]}
                ]
            ),
            "steps[0].do[0].node",
            "each node once",
            id="a machine that is there already",
        ),
        pytest.param(
            clusters(
                virtual_clusters=[{"id": "v"}],
                steps=[{"at_s": 0, "do": [{"op": "create_cluster", "cluster": "v"}] * 2}],
            ),
            "steps[0].do[1].cluster",
            "does not exist now",
            id="a virtual cluster that exists already",
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


def test_a_virtual_cluster_may_be_created_again_after_it_or_its_parent_has_ended(
    tmp_path: Path,
) -> None:
    create = [{"op": "create_cluster", "cluster": each} for each in ("v", "w")]
    end = {"op": "end_cluster", "cluster": "v"}
    specs = [{"id": "v"}, {"id": "w", "parent": "v"}]
    file = tmp_path / "case.json"
    steps = [{"at_s": 0, "do": [*create, end, *create]}]
    file.write_text(json.dumps(clusters(virtual_clusters=specs, steps=steps)))
    assert len(read_cases(file)) == 1
