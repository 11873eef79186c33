"""What Ray's state is told of a virtual cluster: all that is its own, or that some is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster_documents import Document
from fedpilot.fabric.errors import NoSuchCluster
from fedpilot.fabric.inside import state
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters

TASK = "7" * state.TASK_ID
NODES = [{"node_id": "n1", "node_ip": "10.0.0.1"}, {"node_id": "n2", "node_ip": "10.0.0.2"}]
WORK = {"task_id": TASK, "node_id": "n1", "worker_pid": 11}
ACTOR = {"actor_id": "a", "state": "ALIVE", "node_id": "n2", "pid": 22}


@dataclass
class Answer:
    """What Ray's aggregator answers."""

    total: int = 0
    num_after_truncation: int = 0
    partial_failure_warning: str | None = None
    result: list[Document] = field(default_factory=list)


def held(ip: str, pid: int, id: str = "f" * 56) -> Document:
    return {"object_id": id, "ip": ip, "pid": pid, "object_size": 1}


@pytest.mark.parametrize(
    ("what", "ours"),
    [
        pytest.param(held("10.0.0.1", 11), True, id="a task's process holds it"),
        pytest.param(held("10.0.0.2", 22), True, id="an actor's process holds it"),
        pytest.param(held("10.0.0.2", 11), False, id="the same process id on another machine"),
        pytest.param(held("10.0.0.1", 33), False, id="another process on the same machine"),
        pytest.param(held("10.0.0.9", 33, f"{TASK}01"), True, id="a task made it"),
        pytest.param(held("10.0.0.2", 44), False, id="the process id of an actor that died"),
    ],
)
def test_an_object_is_of_who_made_it_and_of_who_holds_it(what: Document, ours: bool) -> None:
    dead = {**ACTOR, "state": "DEAD", "pid": 44}
    waiting = {"task_id": "8" * state.TASK_ID}
    assert state.of_work([what, what], [WORK, waiting], [ACTOR, dead], NODES) == [what] * ours


@pytest.mark.parametrize(
    ("what", "answer", "said"),
    [
        pytest.param("tasks", Answer(7, 7), None, id="all are there"),
        pytest.param("tasks", Answer(9, 7), "forgotten 2 tasks", id="tasks were forgotten"),
        pytest.param("actors", Answer(9, 7), "forgotten 2 actors", id="actors were forgotten"),
        pytest.param("objects", Answer(9, 7), None, id="one object is counted where it is held"),
        pytest.param("objects", Answer(7, 7, "2 raylets"), "2 raylets", id="a machine is silent"),
    ],
)
def test_what_ray_does_not_tell_of_is_said(what: str, answer: Answer, said: str | None) -> None:
    found = state.lacking(what, answer)
    assert (found is None) if said is None else (found is not None and said in found)


def test_no_such_virtual_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(VirtualClusters):
        def __init__(self) -> None:
            pass

        def snapshot(self) -> dict[str, Any]:
            inside = {"id": "b", "children": []}
            return {"clusters": [{"id": "a", "children": ["b"]}, inside]}

    monkeypatch.setattr(state, "VirtualClusters", Two)
    for asked in (state.tasks, state.actors, state.objects):
        with pytest.raises(NoSuchCluster, match="'nope'; there are: a, b"):
            asked("nope")
    assert state._below(Two().snapshot(), "a") == {"a", "b"}
    assert state._below(Two().snapshot(), "b") == {"b"}
