"""What a site decides about a cluster whose machines another operator keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.core.ray_clusters.lifecycle import RayClusterState
from fedpilot.fabric.core.ray_clusters.operated import (
    ABSENT,
    OperatedDeclaration,
    OperatedSettings,
    OperatedTurn,
    OperatedView,
    OperatorTrouble,
    ResourceWrite,
    SeenResource,
    operate,
)

S = RayClusterState
SETTINGS = OperatedSettings()
DECLARED = OperatedDeclaration(digest="new", workers=2)
READY = SeenResource(
    ours=True, applied="new", observed=True, head_ready=True, ready_workers=2, desired_workers=2
)
REFUSED = OperatorTrouble(
    reason="you may not", refused=True, since_s=0.0, again_s=10.0, digest="new"
)
AWAY = OperatorTrouble(reason="it hangs", refused=False, since_s=0.0, again_s=10.0)


def decided(
    resource: SeenResource | str | None = READY,
    before: S = S.STARTING,
    declared: OperatedDeclaration = DECLARED,
    now: float = 1.0,
    reading: OperatorTrouble | None = None,
    writing: OperatorTrouble | None = None,
) -> OperatedTurn:
    view = OperatedView(resource=resource, reading=reading, writing=writing)
    return operate(declared, before, view, now, SETTINGS)


@pytest.mark.parametrize(
    ("resource", "deleted", "write"),
    [
        pytest.param(None, False, None, id="nothing is written before anything is known"),
        pytest.param(ABSENT, False, ResourceWrite.APPLY, id="what is missing is applied"),
        pytest.param(READY, False, None, id="what is as declared is left alone"),
        pytest.param(
            replace(READY, applied="old"), False, ResourceWrite.APPLY, id="a change is applied"
        ),
        pytest.param(
            replace(READY, differs="spec.x"), False, ResourceWrite.APPLY, id="a drift is set back"
        ),
        pytest.param(
            replace(READY, ours=False, applied="old"), False, None, id="another's is never written"
        ),
        pytest.param(
            replace(READY, deleting=True, applied="old"), False, None, id="what goes, goes first"
        ),
        pytest.param(READY, True, ResourceWrite.DELETE, id="ours is deleted"),
        pytest.param(replace(READY, ours=False), True, None, id="another's is never deleted"),
        pytest.param(replace(READY, deleting=True), True, None, id="it is deleted once"),
        pytest.param(ABSENT, True, None, id="what is gone is gone"),
    ],
)
def test_at_most_one_write_is_due(
    resource: SeenResource | str | None, deleted: bool, write: ResourceWrite | None
) -> None:
    found = decided(resource, declared=replace(DECLARED, deleted=deleted))
    assert found.write is write
    assert bool(found.because) == (write is not None)
    gone = resource == ABSENT or (isinstance(resource, SeenResource) and not resource.ours)
    assert found.finished == (deleted and gone)


@pytest.mark.parametrize(
    ("resource", "before", "state"),
    [
        pytest.param(READY, S.STARTING, S.READY, id="all are there"),
        pytest.param(replace(READY, ready_workers=1), S.READY, S.SCALING, id="one is missing"),
        pytest.param(replace(READY, desired_workers=3), S.READY, S.SCALING, id="one is too many"),
        pytest.param(
            replace(READY, observed=False), S.READY, S.SCALING, id="KubeRay has not seen it yet"
        ),
        pytest.param(replace(READY, applied="old"), S.READY, S.SCALING, id="it is not applied yet"),
        pytest.param(replace(READY, head_ready=False), S.READY, S.RECOVERING, id="the head died"),
        pytest.param(
            replace(READY, head_ready=False), S.STARTING, S.STARTING, id="the head has never been"
        ),
        pytest.param(ABSENT, S.READY, S.RECOVERING, id="it has been removed"),
        pytest.param(replace(READY, failed=True), S.READY, S.FAILED, id="KubeRay has given up"),
        pytest.param(None, S.READY, S.READY, id="nothing is known, and it stays as it was"),
    ],
)
def test_a_state_follows_from_what_is_seen(
    resource: SeenResource | str | None, before: S, state: S
) -> None:
    assert decided(resource, before).state is state


def test_ray_s_own_autoscaler_decides_how_many_are_enough() -> None:
    grown = replace(READY, ready_workers=7, desired_workers=7)
    assert decided(grown, declared=replace(DECLARED, workers=None)).state is S.READY
    assert decided(grown).state is S.SCALING


def test_a_write_waits_after_a_failure_and_another_declaration_does_not() -> None:
    waits = decided(ABSENT, writing=REFUSED)
    assert (waits.write, waits.wake_s, waits.stuck) == (None, 10.0, True)
    assert decided(ABSENT, writing=REFUSED, now=10.0).write is ResourceWrite.APPLY
    other = replace(DECLARED, digest="other")
    assert decided(ABSENT, writing=REFUSED, declared=other).write is ResourceWrite.APPLY


def test_what_is_as_declared_needs_no_write_and_forgets_its_failure() -> None:
    found = decided(READY, writing=REFUSED)
    assert (found.state, found.reason, found.stuck) == (S.READY, "", False)


def test_a_server_that_is_away_fails_a_cluster_that_never_served_after_a_while() -> None:
    early, late = (decided(None, reading=AWAY, now=now) for now in (59.0, 60.0))
    assert (early.state, early.stuck, early.wake_s) == (S.STARTING, False, 60.0)
    assert (late.state, late.stuck, late.reason) == (S.FAILED, True, "it hangs")
    served = decided(READY, S.READY, reading=AWAY, now=1000.0)
    assert (served.state, served.stuck) == (S.READY, False)


def test_pauses_double_up_to_a_minute_and_a_server_may_ask_for_more() -> None:
    trouble, pauses = None, []
    for _ in range(8):
        trouble = OperatorTrouble.after(trouble, "x", 0.0, SETTINGS, refused=False)
        pauses.append(trouble.again_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    asked = OperatorTrouble.after(None, "x", 0.0, SETTINGS, refused=False, wait_s=90.0)
    assert asked.again_s == 90.0


troubles = st.none() | st.builds(
    OperatorTrouble,
    reason=st.just("x"),
    refused=st.booleans(),
    since_s=st.sampled_from([0.0, 100.0]),
    again_s=st.sampled_from([50.0, 200.0]),
    digest=st.sampled_from(["new", "old", ""]),
)
resources = (
    st.none()
    | st.just(ABSENT)
    | st.builds(
        SeenResource,
        ours=st.booleans(),
        deleting=st.booleans(),
        applied=st.sampled_from(["new", "old"]),
        differs=st.sampled_from(["", "spec.x"]),
        observed=st.booleans(),
        head_ready=st.booleans(),
        suspended=st.booleans(),
        failed=st.booleans(),
        ready_workers=st.integers(0, 3),
        desired_workers=st.integers(0, 3),
    )
)


@given(
    resource=resources,
    before=st.sampled_from([each for each in S if each is not S.DELETING]),
    suspended=st.booleans(),
    deleted=st.booleans(),
    reading=troubles,
    writing=troubles,
)
def test_whatever_is_seen_others_are_left_alone_and_no_state_is_made_up(
    resource: SeenResource | str | None,
    before: S,
    suspended: bool,
    deleted: bool,
    reading: OperatorTrouble | None,
    writing: OperatorTrouble | None,
) -> None:
    declared = replace(DECLARED, suspended=suspended, deleted=deleted)
    found = decided(resource, before, declared, 100.0, reading, writing)
    assert (found.state is S.DELETING) == deleted
    assert found.write is not ResourceWrite.DELETE or deleted
    if isinstance(resource, SeenResource) and not resource.ours:
        assert found.write is None
    if found.state is S.READY:
        assert isinstance(resource, SeenResource) or (resource is None and before is S.READY)
    if found.stuck:
        assert found.reason or found.state is S.FAILED
