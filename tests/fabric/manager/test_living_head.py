"""A manager is made at the head, which may have to join first."""

from __future__ import annotations

import pytest

from fedpilot.fabric.errors import FabricError
from fedpilot.fabric.manager import actor
from fedpilot.fabric.manager.actor import living_head
from fedpilot.fabric.ray import private_ray

HEAD = {"NodeID": "head", "Alive": True, "Resources": {"node:__internal_head__": 1.0}}
DEAD = {**HEAD, "NodeID": "before", "Alive": False}
WORKER = {"NodeID": "worker", "Alive": True, "Resources": {"CPU": 4.0}}


def test_a_head_that_joins_a_moment_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "HEAD_LOOK_S", 0.0)
    looks = iter([[DEAD, WORKER], [DEAD, WORKER], [DEAD, WORKER, HEAD]])
    monkeypatch.setattr(private_ray, "node_table", lambda: next(looks))
    assert living_head() == "head"


def test_a_cluster_without_a_head_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "HEAD_S", 0.0)
    monkeypatch.setattr(actor, "HEAD_LOOK_S", 0.0)
    monkeypatch.setattr(private_ray, "node_table", lambda: [DEAD, WORKER])
    with pytest.raises(FabricError, match="no head machine that is alive"):
        living_head()
