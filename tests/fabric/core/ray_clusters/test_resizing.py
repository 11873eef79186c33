"""Which machines of a group leave, how many start, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import MachineGroup, MachineName, UpgradeKind
from fedpilot.fabric.core.ray_clusters.machines import MachineRecord, MachineState, Sighting
from fedpilot.fabric.core.ray_clusters.resizing import next_hosts, resize
from machine_world import group, template

ROLLING, RECREATE, NONE = UpgradeKind.ROLLING, UpgradeKind.RECREATE, UpgradeKind.NONE


def machines(of: MachineGroup, states: str, version: int = 0) -> list[MachineRecord]:
    """A machine for each letter: `r` is ready, `s` starts."""
    return [
        MachineRecord(
            name=MachineName(f"m{number}"),
            number=number,
            group=of.name,
            host="",
            template=template(version).digest if version else of.template.digest,
            head=MachineName("h"),
            state=MachineState.READY if state == "r" else MachineState.STARTING,
            since_s=float(number),
            reason="",
        )
        for number, state in enumerate(states)
    ]


def seen(idle: Sequence[str], loss: Sequence[str] = ()) -> dict[MachineName, Sighting]:
    """These machines are idle, the first one for longest; the loss of others grows in order."""
    found = {
        MachineName(n): Sighting(exists=True, idle_since_s=float(i)) for i, n in enumerate(idle)
    }
    found |= {MachineName(n): Sighting(exists=True, loss=float(i)) for i, n in enumerate(loss)}
    return found


@pytest.mark.parametrize(
    ("declared", "states", "sightings", "leaving", "starting"),
    [
        pytest.param(group("g", 2), "rr", {}, [], 0, id="as it should be"),
        pytest.param(group("g", 3), "r", {}, [], 2, id="all that lack start at once"),
        pytest.param(group("g", 1), "rrs", {}, ["m1", "m2"], 0, id="what starts leaves first"),
        pytest.param(
            group("g", 1), "rrr", seen(["m2", "m0"]), ["m0", "m2"], 0, id="then what is idle"
        ),
        pytest.param(
            group("g", 2), "rrr", seen([], ["m2", "m0", "m1"]), ["m2"], 0, id="then the least loss"
        ),
        pytest.param(
            group("g", 2, leaving=(MachineName("m0"),)),
            "rrr",
            seen(["m2"]),
            ["m0"],
            0,
            id="the one that is named leaves before an idle one",
        ),
        pytest.param(
            group("g", 2, leaving=(MachineName("m0"),)), "rr", {}, ["m0"], 1, id="and is replaced"
        ),
        pytest.param(
            group("g", 2, least=2, leaving=(MachineName("m0"),)),
            "rr",
            {},
            [],
            1,
            id="after its successor is ready if the minimum forbids it to leave before",
        ),
        pytest.param(
            group("g", 2, least=2, leaving=(MachineName("m0"),)),
            "rrs",
            {},
            [],
            0,
            id="which takes its time",
        ),
        pytest.param(
            group("g", 2, suspended=True, least=1), "rr", {}, ["m0", "m1"], 0, id="suspended"
        ),
    ],
)
def test_a_group_is_brought_to_its_number(
    declared: MachineGroup,
    states: str,
    sightings: dict[MachineName, Sighting],
    leaving: list[str],
    starting: int,
) -> None:
    found = resize(declared, machines(declared, states), sightings, ROLLING, 1)
    assert (sorted(found.leaving), found.starting) == (leaving, starting)


@pytest.mark.parametrize(
    ("upgrade", "most", "leaving", "starting"),
    [
        pytest.param(ROLLING, 1, 1, 1, id="one after the other"),
        pytest.param(ROLLING, 2, 2, 2, id="two at a time"),
        pytest.param(ROLLING, 0, 0, 1, id="one more first, if none may be away"),
        pytest.param(RECREATE, 1, 3, 3, id="all at once"),
        pytest.param(NONE, 1, 0, 0, id="not at all"),
    ],
)
def test_a_new_template_is_brought_in_as_declared(
    upgrade: UpgradeKind, most: int, leaving: int, starting: int
) -> None:
    declared = group("g", 3)
    old = machines(declared, "rrr", version=2)
    found = resize(declared, old, {}, upgrade, most)
    assert (len(found.leaving), found.starting) == (leaving, starting)


def test_machines_start_where_the_fewest_are_and_never_on_a_host_that_is_away() -> None:
    declared = group("g", 4, hosts=("a", "b", "c"))
    there = [replace(each, host="a") for each in machines(declared, "rr")]
    assert next_hosts(declared, there, frozenset({"c"}), 3) == ["b", "b", "a"]
    assert next_hosts(declared, there, frozenset({"a", "b", "c"}), 3) == []
    assert next_hosts(group("g", 1), [], frozenset(), 2) == ["", ""]
