"""What the manager tells of itself costs what there is to tell."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from pathlib import Path
from typing import Any

from cluster_documents import A, held, machine, vnode
from fedpilot.fabric.core.cluster_state import Entry
from fedpilot.fabric.core.records import DEFAULT, ROOT, ClusterId
from fedpilot.fabric.manager.snapshot import Snapshot, held_by_others
from reconciler_world import World, asks, nodes, story, two


class Entries(dict[ClusterId, Entry]):
    """Counts how often all of them are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[ClusterId]:
        self.looks += 1
        return super().__iter__()

    def items(self) -> ItemsView[ClusterId, Entry]:  # type: ignore[override]
        self.looks += 1
        return super().items()


@story
async def test_all_are_told_level_by_level_in_one_look(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.sqlite")
    await world.begins(*two())
    parents = {"a": ROOT, "b": ROOT, "a1": "a", "b1": "b", "a2": "a", "a11": "a1"}
    await world.create(*(asks(name, inside=parent) for name, parent in parents.items()))
    world.cluster_state.entries = entries = Entries(world.cluster_state.entries)
    document: dict[str, Any] = Snapshot(world.reconciler).document()
    told = [each["id"] for each in document["clusters"]]
    assert told == ["a", "b", DEFAULT, "a1", "a2", "b1", "a11"]
    assert {each["id"]: each["parent"] for each in document["clusters"]} == {
        **parents,
        DEFAULT: ROOT,
    }
    assert entries.looks < len(parents)


@story
async def test_each_node_is_told_with_the_bundles_that_carry_it(tmp_path: Path) -> None:
    world = World(tmp_path / "ledger.sqlite")
    await world.begins(*two())
    await world.create(asks("job", nodes(3, 2)))
    await world.passes(1)
    (told,) = [
        each for each in Snapshot(world.reconciler).document()["clusters"] if each["id"] == "job"
    ]
    (group,) = world.groups("job")
    assert [each["groups"] for each in told["nodes"]] == [
        [{"id": group, "bundle": index, "resources": {"CPU": cpus}}]
        for index, cpus in enumerate((3, 2))
    ]


def test_who_holds_what_is_named_but_for_the_one_that_asks() -> None:
    document = {
        "machines": [machine(A, 4, 0)],
        "clusters": [
            held("first-ada-1a2b3c-oslo", vnode("first/0", A, 1), vnode("first/1", A, 1)),
            held("second-bob-4d5e6f-oslo", state="waiting", position=1),
            held(DEFAULT, vnode("default/0", A, 2)),
        ],
    }
    assert held_by_others(document, ROOT, "second-bob-4d5e6f-oslo") == (
        "held are 2 CPU by first-ada-1a2b3c-oslo and "
        "2 CPU by what runs on Ray outside all virtual clusters"
    )
    assert held_by_others({"machines": [], "clusters": []}, ROOT, "x") == ""
