"""Bad case files are refused before anything is decided: file, line, key, found, allowed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedpilot.common.strict_yaml.errors import BadFile
from fedpilot.fabric.simulation.case_file import read_cases
from queue_documents import with_value


def good() -> dict[str, Any]:
    return {
        "id": "c",
        "kind": "settle",
        "nodes": [{"name": "n1", "pool": "x", "capacity": {"gpu": 2}}],
        "departments": [{"name": "D", "quota": {"x": {"gpu": 2}}}],
        "projects": [{"name": "A", "department": "D", "quota": {"x": {"gpu": 1}}}],
        "workloads": [
            {
                "id": "w",
                "project": "A",
                "pool": "x",
                "members": {"min": 1, "max": 2},
                "member_request": {"gpu": 1},
                "running_on": ["n1"],
            }
        ],
        "expect": {"running": {"w": 1}},
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good case with another value at a path."""
    return with_value(good(), path, value)


def problems(tmp_path: Path, document: Any) -> str:
    file = tmp_path / "case.json"
    file.write_text(json.dumps(document, indent=1))
    with pytest.raises(BadFile) as refused:
        read_cases(file)
    return str(refused.value)


N1 = {"name": "n1", "pool": "x", "capacity": {"gpu": 2}}


SHARES = {
    "id": "w",
    "project": "A",
    "pool": "x",
    "members": {"min": 3, "max": 3},
    "member_request": {"gpu": 0.6},
    "running_on": ["n1"] * 3,
}


@pytest.mark.parametrize(
    ("path", "value", "key", "words"),
    [
        pytest.param("workload", [], "workload", "nearest: workloads", id="an unknown key"),
        pytest.param("kind", "setle", "kind", "nearest: settle", id="an unknown kind"),
        pytest.param("nodes", [N1, {**N1, "pool": "y"}], "nodes[1].name", "a second time",
                     id="a machine in two pools"),
        pytest.param("projects.0.department", "E", "projects[0].department", "does not exist",
                     id="a department that does not exist"),
        pytest.param("projects.0.quota", {"y": {}}, "projects[0].quota.y", "allowed: one of: x",
                     id="a pool that does not exist"),
        pytest.param("projects.0.quota.x.gpu", -1, "projects[0].quota.x.gpu", "-1",
                     id="a negative amount"),
        pytest.param("workloads.0.project", "B", "workloads[0].project", "one of: A",
                     id="a project that does not exist"),
        pytest.param("workloads.0.members", {"min": 3, "max": 2}, "workloads[0].members.min",
                     "at most `members.max`", id="a minimum above the maximum"),
        pytest.param("workloads.0.member_request", {"gpus": 1}, "workloads[0].member_request.gpus",
                     "nearest: gpu", id="a resource that no machine has"),
        pytest.param("workloads.0.member_request.gpu", 1.5, "workloads[0].member_request.gpu",
                     "whole GPUs", id="one and a half GPUs"),
        pytest.param("workloads.0.class", "trian", "workloads[0].class", "nearest: train",
                     id="an unknown class"),
        pytest.param("classes", [{"name": "train", "priority": 60}], "classes[0].name",
                     "a second time", id="a class by the name of a preset"),
        pytest.param("projects.0.usage", [{"pool": "x", "from_s": -5, "to_s": 1, "amounts": {}}],
                     "projects[0].usage[0].to_s", "ends by 0 s", id="usage after the beginning"),
        pytest.param("may_come", [{"pool": "x", "capacity": {"tpu": 1}}, {"size": 3}],
                     "may_come[1].capacity", "missing", id="a shape without a capacity"),
        pytest.param("workloads.0.running_on", ["n11"], "workloads[0].running_on[0]", "nearest: n1",
                     id="a machine that does not exist"),
        pytest.param("workloads.0.running_on", ["n1"] * 3, "workloads[0].running_on", "a list of 3",
                     id="more members than the maximum"),
        pytest.param("workloads.0.member_request.gpu", 3, "workloads[0].running_on[0]",
                     "at most 2 gpu", id="a machine over capacity"),
        pytest.param("workloads.0", SHARES, "workloads[0].running_on[2]", "no single GPU",
                     id="shares of GPUs that fit no GPU"),
        pytest.param("expect.running", {"ww": 1}, "expect.running.ww", "nearest: w",
                     id="an expectation of an unknown workload"),
        pytest.param("settings", {"placement": {"gpu": "pack"}}, "settings.placement.gpu",
                     "binpack", id="an unknown strategy"),
    ],
)  # fmt: skip
def test_a_bad_case_is_refused(tmp_path: Path, path: str, value: Any, key: str, words: str) -> None:
    said = problems(tmp_path, changed(path, value))
    assert f": {key}\n" in said
    assert words in said


def test_a_resource_of_a_machine_that_may_come_can_be_asked_for(tmp_path: Path) -> None:
    case = changed("workloads.0.member_request", {"tpu": 1})
    del case["workloads"][0]["running_on"], case["expect"]
    assert "workloads[0].member_request.tpu" in problems(tmp_path, case)
    file = tmp_path / "may_come.json"
    file.write_text(json.dumps({**case, "may_come": [{"pool": "x", "capacity": {"tpu": 1}}]}))
    assert len(read_cases(file)) == 1


def test_every_problem_has_its_line(tmp_path: Path) -> None:
    case = changed("workloads.0.project", "B")
    text = json.dumps(case, indent=1)
    line = next(n for n, each in enumerate(text.split("\n"), 1) if '"project": "B"' in each)
    assert f"case.json:{line}: workloads[0].project" in problems(tmp_path, case)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('{"id": "a", "id": "b"}', "a second `id`", id="a key twice"),
        pytest.param('{"id": NaN}', "kind", id="a number that JSON does not have"),
        pytest.param("[]", "a case, or `cases:`", id="a list"),
        pytest.param("schema_version: 3\ncases: []", "1 or 2", id="a version of the future"),
        pytest.param("cases: {}", "a list of cases", id="cases that are no list"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "case.yaml"
    file.write_text(text)
    with pytest.raises(BadFile, match=words):
        read_cases(file)


def test_an_id_twice_is_refused(tmp_path: Path) -> None:
    assert "cases[1].id" in problems(tmp_path, {"cases": [good(), good()]})


def cluster_case(**changes: Any) -> dict[str, Any]:
    return {
        "id": "v",
        "kind": "virtual_cluster",
        "nodes": [{"name": "m", "capacity": {"cpu": 4}}],
        "virtual_clusters": [{"id": "a", "parent": "b"}, {"id": "b", "parent": "a"}],
        "steps": [{"at_s": 2}, {"at_s": 1}],
        **changes,
    }


def test_virtual_clusters_in_a_circle_and_time_that_runs_back_are_refused(tmp_path: Path) -> None:
    said = problems(tmp_path, cluster_case())
    assert "virtual_clusters[0].parent" in said
    assert "no circle" in said
    assert "steps[1].at_s" in said


@pytest.mark.parametrize("wrong", [None, True, 7, "text", [], {}, [7], {"a": 7}, -1.5])
def test_a_wrong_value_of_any_key_is_a_problem_and_no_crash(tmp_path: Path, wrong: Any) -> None:
    timeline = {
        **good(),
        "kind": "timeline",
        "steps": [{"at_s": 0, "do": [{"op": "submit", "workload": "w"}]}],
    }
    del timeline["expect"]
    share = {"name": "A", "quota": 1, "requested": 2, "department": "D"}
    division = {
        "id": "f", "kind": "fairshare", "resource": "gpu", "total": 4, "queues": [share],
        "departments": [{"name": "D", "quota": 1}], "expect": {"fairshare": {"A": 2}},
    }  # fmt: skip
    clusters = cluster_case(virtual_clusters=[{"id": "a", "flex_min": {"cpu": 1}}], steps=[])
    for case in (good(), timeline, division, clusters):
        for path in _paths(case):
            file = tmp_path / "case.json"
            file.write_text(json.dumps(_with(case, path, wrong)))
            with suppress(BadFile):
                read_cases(file)


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for step, inner in steps:
        found.append((*path, step))
        if isinstance(inner, dict | list):
            found += _paths(inner, (*path, step))
    return found


def _with(case: Any, path: tuple[str | int, ...], value: Any) -> Any:
    twin = json.loads(json.dumps(case))
    section = twin
    for step in path[:-1]:
        section = section[step]
    section[path[-1]] = value
    return twin
