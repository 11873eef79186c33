"""A placement group is waited for until Ray has noted that it is created."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from fedpilot.fabric.ray.workers.worker import RayGroup


@pytest.mark.parametrize("meanwhile", ["PENDING", "PREPARED"])
def test_a_group_whose_first_task_ends_before_ray_notes_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    states = iter([meanwhile, meanwhile, "CREATED"])

    def table(made: object) -> dict[str, Any]:
        return {"state": next(states), "bundles_to_node_id": {1: "b", 0: "a"}}

    monkeypatch.setattr(ray, "wait", lambda refs, timeout: (refs, []))
    monkeypatch.setattr("ray.util.placement_group_table", table)
    made: Any = SimpleNamespace(ready=lambda: "its first task")
    assert RayGroup(made, as_actor=id, forget=id).wait(60.0) == ("a", "b")


def test_a_group_that_is_removed_as_it_is_waited_for_has_no_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: (refs, []))
    monkeypatch.setattr("ray.util.placement_group_table", lambda made: {"state": "REMOVED"})
    made: Any = SimpleNamespace(ready=lambda: "it failed")
    assert RayGroup(made, as_actor=id, forget=id).wait(60.0) is None
