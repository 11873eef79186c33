"""Where Ray has no room for GPUs that the ledger takes to be free, others are tried."""

from __future__ import annotations

import pytest

from fedpilot.fabric import Bundle, Resources, SchedulingPolicy
from fedpilot.fabric.core.records import BundleGroup
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import World, asks, story


class TestGpus:
    @story
    async def test_what_ray_cannot_place_is_not_tried_again_and_again(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two halves may lie on one GPU, as the ledger hopes, or on two, as they do here."""
        await world.begins(fake_machine("a", CPU=4, GPU=2))
        await world.create(asks("one", gpus(0.5)), asks("two", gpus(0.5)))
        await world.passes(2)
        find = world.ray._find
        monkeypatch.setattr(
            world.ray,
            "_find",
            lambda held, *rest: None if "whole" in held.name else find(held, *rest),
        )
        await world.create(asks("whole", gpus(1)))
        await world.passes(30)
        assert world.state("whole") == "waiting"
        assert [event for id, event, _ in world.events() if id == "whole"] == [
            "asked",
            "admitted",
            "waits again",
        ]
        monkeypatch.undo()
        await world.delete("one")
        await world.passes(2)
        assert world.state("whole") == "active"
        assert not world.wrong()


def gpus(amount: float) -> BundleGroup:
    bundle = Bundle(resources=Resources.of({"GPU": amount}))
    return BundleGroup(bundles=(bundle,), policy=SchedulingPolicy.PACK)
