"""What a plan could not place leaves it as gangs."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.fabric.simulation.case_schema import SettleCase
from fedpilot.fabric.simulation.settling import settle_case


def unplaced(*workloads: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """What is told of a case with two machines of 4 GPUs."""
    case = SettleCase.model_validate(
        {
            "id": "gangs",
            "kind": "settle",
            "nodes": [{"name": name, "capacity": {"gpu": 4}} for name in "ab"],
            "projects": [{"name": "A", "quota": {"default": {"gpu": 8}}}],
            "workloads": [{"project": "A", **each} for each in workloads],
            **more,
        }
    )
    found: list[dict[str, Any]] = settle_case(case)["unplaced"]
    return found


def test_the_parts_of_a_gang_stay_together_with_policy_and_selector() -> None:
    runs = {"id": "runs", "member_request": {"gpu": 1}, "running_on": ["a"]}
    parts = [
        {"request": {"gpu": 4}, "members": {"min": 2, "max": 2}, "selector": {"zone": "in(x,y)"}},
        {"request": {"gpu": 0.5}, "members": {"min": 1, "max": 3}, "group": 1},
    ]
    waits = {
        "id": "waits",
        "parts": parts,
        "policies": ["strict_spread", None],
        "waits_since_s": -5,
    }
    (told,) = unplaced(runs, waits)
    assert told["groups"] == [
        {
            "policy": "STRICT_SPREAD",
            "bundles": [
                {"count": 2, "resources": {"gpu": 4}, "selector": {"zone": "in(x,y)"}},
            ],
        },
        {"policy": "PACK", "bundles": [{"count": 1, "resources": {"gpu": 0.5}, "selector": {}}]},
    ]
    assert (told["id"], told["project"], told["pool"]) == ("waits", "A", "default")
    assert (told["since"], told["rule"], told["kind"]) == (-5, "never", "virtual-cluster")


def test_what_waits_longest_comes_first_and_what_runs_is_not_told() -> None:
    def workload(id: str, gpus: float, since: float) -> dict[str, Any]:
        return {"id": id, "member_request": {"gpu": gpus}, "waits_since_s": since}

    told = unplaced(
        workload("a", 4, -1), workload("b", 3, -2), workload("c", 3, -3), workload("d", 4, -9)
    )
    assert [(each["id"], each["since"]) for each in told] == [("d", -9), ("c", -3)]


@pytest.mark.parametrize(
    ("gpus", "quota", "preemptible", "rule", "helps"),
    [
        pytest.param(4, 8, True, "no-room", True, id="no room"),
        pytest.param(5, 8, True, "never", True, id="machines are too small"),
        pytest.param(4, 3, False, "nonpreemptible-quota", False, id="a quota is in the way"),
    ],
)
def test_machines_help_unless_a_rule_is_in_the_way(
    gpus: int, quota: int, preemptible: bool, rule: str, helps: bool
) -> None:
    running = [{"id": f"r{n}", "member_request": {"gpu": 4}, "running_on": [n]} for n in "ab"]
    asks = {"id": "w", "member_request": {"gpu": gpus}, "preemptible": preemptible}
    queues = [{"name": "A", "quota": {"default": {"gpu": quota}}}]
    (told,) = unplaced(*running, asks, projects=queues)
    assert (told["rule"], told["machines_help"]) == (rule, helps)


def test_what_a_running_gang_lacks_is_told_alone() -> None:
    runs = {
        "id": "w",
        "member_request": {"gpu": 4},
        "members": {"min": 3, "max": 3},
        "running_on": ["a", "b"],
    }
    (told,) = unplaced(runs)
    assert told["kind"] == "lost-nodes"
    assert [bundle["count"] for group in told["groups"] for bundle in group["bundles"]] == [1]
