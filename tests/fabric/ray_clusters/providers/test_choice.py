"""Which declarations this version can provide, and how they may change."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import FaultTolerance
from fedpilot.fabric.errors import SpecError
from fedpilot.fabric.ray_clusters.providers.choice import check_provided, check_same_provider
from machine_world import declared

REDIS = FaultTolerance(redis_address="redis:6379", password_file="/secret")


@pytest.mark.parametrize(
    ("provider", "options", "refused"),
    [
        pytest.param("local", None, "", id="a head without a state of its own"),
        pytest.param("local", REDIS, "", id="a head on this computer with a Redis"),
        pytest.param("local", FaultTolerance(), "starts no Redis", id="a Redis that is missing"),
        pytest.param("ssh", REDIS, "gcsFaultToleranceOptions", id="a head on another host"),
    ],
)
def test_a_head_keeps_its_state_where_its_provider_can(
    provider: str, options: FaultTolerance | None, refused: str
) -> None:
    expected: AbstractContextManager[object] = (
        pytest.raises(SpecError, match=refused) if refused else nullcontext()
    )
    with expected:
        check_provided(declared(provider=provider, fault_tolerance=options))


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        pytest.param(REDIS, replace(REDIS, password_file="/new"), True, id="another password"),
        pytest.param(REDIS, replace(REDIS, username="ray"), True, id="another user"),
        pytest.param(REDIS, replace(REDIS, redis_address="b:1"), False, id="another Redis"),
        pytest.param(REDIS, replace(REDIS, namespace="b"), False, id="other keys"),
        pytest.param(None, REDIS, False, id="a Redis for a head that had none"),
        pytest.param(REDIS, None, False, id="no Redis any more"),
    ],
)
def test_the_state_of_a_control_plane_stays_where_it_is(
    before: FaultTolerance | None, after: FaultTolerance | None, may: bool
) -> None:
    expected: AbstractContextManager[object] = (
        nullcontext() if may else pytest.raises(SpecError, match="cannot change")
    )
    with expected:
        check_same_provider(declared(fault_tolerance=before), declared(fault_tolerance=after))
