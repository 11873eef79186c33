"""`fedpilot cluster explain`: every state has its reason, and what would help."""

from __future__ import annotations

import pytest

from cluster_documents import NOW, A, B, Document, event, held, machine, shared, vnode, waiting
from fedpilot.fabric.cli.terminal.explain import sentences


def explained(name: str, *events: Document, document: Document | None = None) -> str:
    return " ".join(sentences(document or shared(), name, events, NOW))


def recovering() -> Document:
    lost = held("vision", vnode("vision/0", A, 1), state="recovering", reason="machine b died")
    lost["spec"] = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}] * 2}]}
    return {"machines": [machine(A, 4, 0)], "clusters": [lost, held("x", vnode("x/0", A, 3))]}


def recovering_inside() -> Document:
    """What is free of the Ray cluster is not the parent's."""
    document = recovering()
    document["machines"] = [machine(A, 4, 0), machine(B, 16, 16)]
    document["clusters"][0]["parent"] = "team"
    document["clusters"].append(
        held("team", vnode("team/0", A, 3), available={"CPU": 2.0}, children=["vision"])
    )
    return document


def losing_nodes() -> Document:
    """One node leaves after a grace, one once it is idle."""
    nodes = [vnode(f"vision/{n}", A, 1) for n in range(3)]
    for node, at in zip(nodes[1:], (NOW + 8, None), strict=True):
        why = {"claimant": "asr", "rule": "preempt-surplus", "reason": "surplus gives way"}
        node["leaves"] = {"at": at, **why}
    return {"machines": [machine(A, 4, 0)], "clusters": [held("vision", *nodes)]}


STORIES = [
    pytest.param(
        "tabular",
        [],
        None,
        [
            "1st of 2",
            "2 CPU are free",
            "lacks 3 CPU",
            "ending speech (3 CPU), vision (2 CPU) or what runs outside of them (1 CPU)",
            "gives up in 10 min",
            "Once it has its places, it stays until it is deleted",
        ],
        id="the first in the queue lacks something",
    ),
    pytest.param(
        "genomics",
        [],
        None,
        ["Before it is tabular", "what does not fit is skipped", "What would help"],
        id="the second does not wait for the first",
    ),
    pytest.param(
        "speech",
        [event("speech", "active", ago=65)],
        None,
        ["active, for 1 min 5 s now", "2 CPU of that is borrowed", "Inside it: eval"],
        id="an active one that has borrowed",
    ),
    pytest.param(
        "vision",
        [],
        None,
        ["Tasks and actors in it: 1 running, 2 waiting for room; 1 CPU is idle"],
        id="an active one with work",
    ),
    pytest.param(
        "vision",
        [],
        losing_nodes(),
        [
            "Its node vision/1 leaves for asr within 8 s: preempt-surplus, surplus gives way.",
            "Its node vision/2 leaves for asr once it is idle",
        ],
        id="one that loses nodes",
    ),
    pytest.param("eval", [], None, ["ends with Ray's job 01000000"], id="one of a job"),
    pytest.param("default", [], None, ["outside all virtual clusters"], id="the rest of Ray"),
    pytest.param(
        "vision",
        [],
        recovering(),
        ["machine b died", "lacks 1 CPU", "nothing is free.", "ending x (3 CPU)"],
        id="one that has lost a machine",
    ),
    pytest.param(
        "vision",
        [],
        recovering_inside(),
        ["2 CPU is free in team.", "room for team to grow"],
        id="one inside another that has lost a machine",
    ),
    pytest.param(
        "gone",
        [event("gone", "asked"), event("gone", "ended", "2 CPU are free")],
        None,
        ["ended", "without having got its places: 2 CPU are free"],
        id="one that never got its places",
    ),
    pytest.param(
        "gone",
        [event("gone", "asked"), event("gone", "admitted"), event("gone", "ended", "deleted")],
        None,
        [" ended 5 s ago: deleted"],
        id="one that was deleted",
    ),
]


@pytest.mark.parametrize(("name", "events", "document", "told"), STORIES)
def test_it_is_explained(
    name: str, events: list[Document], document: Document | None, told: list[str]
) -> None:
    story = explained(name, *events, document=document)
    for part in told:
        assert part in story


def test_pieces_that_do_not_fit_are_not_called_a_lack() -> None:
    document = shared()
    document["clusters"][2] = waiting("tabular", 1, 2, "one node needs 2 CPU")
    assert "Enough is free in total, but not in the sizes that it needs" in explained(
        "tabular", document=document
    )
