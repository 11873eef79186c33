"""Every part of `expect` can fail, and says what was expected and what was found."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.fabric.simulation.case_schema import KINDS, Case
from fedpilot.fabric.simulation.expectations import differences
from fedpilot.fabric.simulation.play import play


def settle(expect: dict[str, Any]) -> Case:
    """A runs on n1, B is reclaimed for C and waits."""
    return KINDS["settle"].model_validate(
        {
            "id": "e",
            "kind": "settle",
            "nodes": [
                {"name": "n1", "capacity": {"gpu": 1}},
                {"name": "n2", "capacity": {"gpu": 1}},
            ],
            "projects": [
                {"name": "P", "quota": {"default": {"gpu": 1}}},
                {"name": "Q", "quota": {"default": {"gpu": 1}}},
            ],
            "workloads": [
                {"id": "a", "project": "P", "member_request": {"gpu": 1}, "running_on": ["n1"]},
                {"id": "b", "project": "P", "member_request": {"gpu": 1}, "running_on": ["n2"]},
                {"id": "c", "project": "Q", "member_request": {"gpu": 1}},
            ],
            "expect": expect,
        }
    )


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        pytest.param({"running": {"b": 1}}, "running members of b: expected 1, found 0",
                     id="running"),
        pytest.param({"running_total": [{"workloads": ["a", "c"], "members": 1}]},
                     "of a, c together: expected 1, found 2", id="running_total"),
        pytest.param({"running_min": {"b": 1}}, "expected 1 or more", id="running_min"),
        pytest.param({"any_of": [{"a": 0}, {"b": 1, "c": 1}]}, "expected one of", id="any_of"),
        pytest.param({"undisturbed": ["a", "b"]}, "b: expected that none", id="undisturbed"),
        pytest.param({"placement": {"c": {"n1": 1}}}, "placement of c", id="placement"),
        pytest.param({"nodes_used": 1}, "nodes used: expected 1, found 2", id="nodes_used"),
        pytest.param({"nodes_used": {"a": 2}}, "nodes used by a", id="nodes_used of a workload"),
        pytest.param({"waiting": {"b": "limit"}}, "why b waits: expected limit, found no-room",
                     id="waiting"),
        pytest.param({"waiting": {"a": "limit"}}, "found that it does not", id="waiting, but runs"),
        pytest.param({"fairshare": {"P": {"default": {"gpu": 2}}}}, "fair share of P in default",
                     id="fairshare"),
        pytest.param({"stopped": {"b": 0}}, "stopped members of b: expected 0, found 1",
                     id="stopped"),
    ],
)  # fmt: skip
def test_an_expectation_that_does_not_hold_is_told(expect: dict[str, Any], words: str) -> None:
    case = settle(expect)
    (told,) = differences(case, play(case))
    assert words in told


def test_expectations_that_hold_are_not_told() -> None:
    expect = {
        "running": {"a": 1, "b": 0, "c": 1},
        "running_total": [{"workloads": ["a", "b"], "members": 1}],
        "running_min": {"a": 1},
        "any_of": [{"a": 0}, {"a": 1}],
        "undisturbed": ["a"],
        "placement": {"c": {"n2": 1}},
        "nodes_used": 2,
        "stopped": {"a": 0, "b": 1},
        "waiting": {"b": "no-room"},
        "fairshare": {"P": {"default": {"gpu": 1}}},
    }
    case = settle(expect)
    assert differences(case, play(case)) == []


def test_shares_and_virtual_clusters_that_differ_are_told() -> None:
    division = KINDS["fairshare"].model_validate(
        {
            "id": "f",
            "kind": "fairshare",
            "resource": "gpu",
            "total": 3,
            "departments": [{"name": "D", "quota": 1}],
            "queues": [{"name": "A", "department": "D", "quota": 1, "requested": 1}],
            "expect": {
                "fairshare": {"A": 2}, "department_fairshare": {"D": 3}, "unassigned": 1
            },
        }
    )  # fmt: skip
    assert len(differences(division, play(division))) == 3
    clusters = KINDS["virtual_cluster"].model_validate(
        {
            "id": "v",
            "kind": "virtual_cluster",
            "nodes": [{"name": "m", "capacity": {"cpu": 2}}],
            "virtual_clusters": [{"id": "a", "flex_min": {"cpu": 1}}],
            "steps": [
                {
                    "at_s": 0,
                    "do": [{"op": "create_cluster", "cluster": "a"}],
                    "expect": {
                        "cluster_total": {"a": {"cpu": 2}},
                        "virtual_nodes": {"a": {}},
                        "queued_clusters": 0,
                    },
                }
            ],
        }
    )
    told = differences(clusters, play(clusters))
    assert [each.split(":")[1].strip() for each in told] == [
        "cluster_total",
        "virtual_nodes",
    ]
