"""What queues have used outlives another scale, another file of queues, and the manager."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from fedpilot.fabric.core.scheduling.records import UNLIMITED, Amounts, PoolQueue
from fedpilot.fabric.core.scheduling.snapshot import FINE, Scale
from fedpilot.fabric.manager.scheduling.live_usage import SAVE_S, LiveUsage
from fedpilot.fabric.manager.scheduling.queue_document import queue_document
from reconciler_world import World, applies, asks, nodes, story, two

CPUS = Scale.of({"CPU": 8.0})
GPUS = Scale.of({"CPU": 8.0, "GPU": 8.0})


def queue(name: str, width: int = 1) -> PoolQueue:
    return PoolQueue(
        name=name,
        pool="p",
        parent=None,
        leaf=True,
        quota=(0,) * width,
        weight=(Fraction(1),) * width,
        limit=(UNLIMITED,) * width,
        rationed=(True,) * width,
    )


A, B = queue("a"), queue("b")


def held(a: float, b: float) -> list[Amounts]:
    return [(int(a * FINE),), (int(b * FINE),)]


def parts(usage: LiveUsage, half_life_s: float | None = None) -> list[float]:
    """What a and b have used of 8 CPUs."""
    spans = usage.spans((A, B), CPUS, half_life_s)
    found = spans.parts((A, B), {"p": (8 * FINE,)}, half_life_s)
    return [float(each[0]) for each in found]


def used(half_life_s: float | None = None) -> LiveUsage:
    """Queue a holds 8 CPUs for 10 s, then queue b for 10 s."""
    usage = LiveUsage()
    usage.until(100.0, (A, B), CPUS, held(0, 0), half_life_s)
    usage.until(110.0, (A, B), CPUS, held(8, 0), half_life_s)
    usage.until(120.0, (A, B), CPUS, held(0, 8), half_life_s)
    return usage


def test_without_a_half_life_all_seconds_count_the_same() -> None:
    assert parts(used()) == [0.5, 0.5]


def test_with_a_half_life_what_is_older_counts_less() -> None:
    assert parts(used(10.0), 10.0) == pytest.approx([1 / 3, 2 / 3], abs=1e-4)


def test_a_very_long_history_is_one_span_of_a_finite_length() -> None:
    usage = LiveUsage()
    usage.until(1.0, (A, B), CPUS, held(0, 0), 1.0)
    usage.until(1e6, (A, B), CPUS, held(4, 0), 1.0)
    assert parts(usage, 1.0) == pytest.approx([0.5, 0.0], abs=1e-4)
    assert usage.spans((A, B), CPUS, 1.0).length_s == pytest.approx(40)


def test_the_first_look_only_begins() -> None:
    usage = LiveUsage()
    usage.until(100.0, (A, B), CPUS, held(8, 0), None)
    assert parts(usage) == [0, 0]


def test_it_is_kept_by_name_over_another_scale_and_other_queues() -> None:
    usage = used()
    c, b, a = (queue(name, 2) for name in "cba")
    usage.until(130.0, (c, b, a), GPUS, [(0, 8 * FINE), (0, 0), (8 * FINE, 0)], None)
    spans = usage.spans((a, b, c), GPUS, None)
    assert spans.length_s == 30
    found = spans.parts((a, b, c), {"p": (8 * FINE, 8 * FINE)}, None)
    assert [[round(float(part), 3) for part in each] for each in found] == [
        [0.667, 0],
        [0.333, 0],
        [0, 0.333],
    ]


def test_its_note_is_written_now_and_then_and_read_again() -> None:
    usage = used()
    note = usage.note(120.0)
    assert usage.note(120.0 + SAVE_S - 0.1) is None
    again = LiveUsage(json.loads(json.dumps(note)))
    assert parts(again) == [0.5, 0.5]
    again.until(140.0, (A, B), CPUS, held(8, 0), None)
    assert parts(again) == [0.75, 0.25]


def test_what_is_forgotten_is_forgotten_in_the_note_too() -> None:
    usage = used()
    usage.forget()
    assert parts(LiveUsage(usage.note(120.0))) == [0, 0]
    assert usage.note(200.0) is None
    usage.until(200.0, (A, B), CPUS, held(8, 0), None)
    assert parts(usage) == [0, 0]


def file(effect: float) -> Mapping[str, Any]:
    weight = {"default": {"CPU": 1}}
    quota = {"default": {"CPU": 0}}
    names = ("vision", "speech", "default")
    projects = [{"name": n, "quota": quota, "over_quota_weight": weight} for n in names]
    return {"projects": projects, "settings": {"usage_effect": effect, "grace_s": 0.0}}


async def both_ask(world: World, effect: float) -> tuple[int, int]:
    """Vision has held all 8 CPUs for a minute; then both have 8 requests. What each gets."""
    await world.begins(*two())
    applies(world, file(effect))
    await world.create(*(asks(f"v{n}", nodes(1), project="vision") for n in range(8)))
    await world.passes(60)
    await world.again()  # the manager is killed, and its successor looks back as far
    for n in range(8):
        await world.create(asks(f"s{n}", nodes(1), project="speech"))
    await world.passes(3)
    held = [name for name, state in world.states().items() if state == "active"]
    return sum(name[0] == "v" for name in held), sum(name[0] == "s" for name in held)


class TestShares:
    @story
    async def test_without_effect_the_past_does_not_count(self, world: World) -> None:
        assert await both_ask(world, 0.0) == (4, 4)

    @story
    async def test_a_project_that_used_more_lately_gets_less(self, world: World) -> None:
        vision, speech = await both_ask(world, 1.0)
        assert vision + speech == 8
        assert speech > 4

    @story
    async def test_the_document_says_what_was_used(self, world: World) -> None:
        await both_ask(world, 1.0)
        admission, now = world.reconciler.admission, world.clock()
        root = admission.root
        found = queue_document(
            admission.state, world.reconciler.statuses, admission.book, {}, now, root.usage
        )
        queues = {each["name"]: each["used"] for each in found["queues"]}
        assert queues["vision"]["CPU"] > 0.9
        assert 0 < queues["speech"]["CPU"] < 0.1
        without = queue_document(
            admission.state, world.reconciler.statuses, admission.book, {}, now
        )
        assert {each["used"] for each in without["queues"]} == {None}
