"""Projects that share the sites of a mediator: whose run is next, and which limits hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.core.scheduling.snapshot import Scale
from fedpilot.fabric.spec.queue_file import queue_file_of
from fedpilot.fabric.spec.queue_table import QueueTable
from fedpilot.mediator.core.run_queue import (
    POOL,
    ProjectQueues,
    QueueDecision,
    RunAsk,
    RunAtWork,
    RunQueueSettings,
    SiteRoom,
    WaitingRun,
    decide,
)

SITES = tuple(SiteRoom(name=name, total=Resources.of({"CPU": 2})) for name in "abcdef")
"""Twelve CPUs."""


def shared(**queues: Mapping[str, Any]) -> ProjectQueues:
    """Projects by name, with the other keys of a file of queues."""
    projects = [{"name": name, **keys} for name, keys in queues.items() if name != "departments"]
    departments = [*queues.get("departments", ())]
    file = queue_file_of({"projects": projects, "departments": departments})
    scale = Scale.of(dict.fromkeys(sorted(file.resources), 1.0))
    return ProjectQueues(scale=scale, queues=QueueTable(file, scale, (POOL,)).queues)


def quota(cpus: float, **keys: Any) -> dict[str, Any]:
    return {"quota": {"default": {"CPU": cpus}}, **keys}


def waits(run: str, project: str, at: float = 0.0, count: int = 1, **facts: Any) -> WaitingRun:
    """A run that takes whole sites."""
    ask = RunAsk(vnode={"CPU": 1.0}, workers=2, count=count, project=project)
    given: dict[str, Any] = {"user": "ann", "priority": 50, **facts}
    return WaitingRun(run=run, submitted_at=at, ask=ask, **given)


def works(run: str, project: str, sites: str, **facts: Any) -> RunAtWork:
    ask = RunAsk(vnode={"CPU": 1.0}, workers=2, count=len(sites), project=project)
    return RunAtWork(run=run, user="zoe", ask=ask, sites=frozenset(sites), **facts)


def decided(
    projects: ProjectQueues,
    waiting: list[WaitingRun],
    at_work: tuple[RunAtWork, ...] = (),
    free: int = 6,
) -> QueueDecision:
    return decide(waiting, at_work, SITES[:free], RunQueueSettings(), 100.0, projects=projects)


def begun(found: QueueDecision) -> list[str]:
    return [each.run for each in found.begins]


VISION_AND_SPEECH = shared(vision=quota(8), speech=quota(4))


def test_two_projects_get_sites_as_their_quotas_are() -> None:
    waiting = [
        waits(f"{project}{i}", project, i) for project in ("vision", "speech") for i in range(6)
    ]
    for listed in (waiting, waiting[::-1]):
        found = decided(VISION_AND_SPEECH, listed)
        assert begun(found) == ["vision0", "speech0", "vision1", "vision2", "speech1", "vision3"]


def test_what_a_project_does_not_ask_for_others_use() -> None:
    found = decided(VISION_AND_SPEECH, [waits(f"s{i}", "speech", i) for i in range(6)])
    assert len(begun(found)) == 6


def test_a_project_in_its_quota_comes_before_a_higher_class_of_one_beyond() -> None:
    at_work = (works("old", "speech", "ab"),)
    waiting = [waits("urgent", "speech", priority=125), waits("late", "vision", 9.0)]
    assert begun(decided(VISION_AND_SPEECH, waiting, at_work, free=3)) == ["late"]
    others = (works("old", "vision", "ab"),)
    assert begun(decided(VISION_AND_SPEECH, waiting, others, free=3)) == ["urgent"]


def test_what_an_ended_run_has_yet_to_release_is_not_its_projects_any_more() -> None:
    halves = shared(vision=quota(6), speech=quota(6))
    waiting = [waits("v", "vision"), waits("s", "speech", 1.0)]
    for leaving, first in ((True, "v"), (False, "s")):
        at_work = (works("old", "vision", "ab", leaving=leaving),)
        assert begun(decided(halves, waiting, at_work, free=3)) == [first]


def test_in_a_project_the_class_decides_then_turns_of_users() -> None:
    waiting = [
        waits("a1", "vision", 1.0),
        waits("a2", "vision", 2.0),
        waits("b1", "vision", 3.0, user="bob"),
        waits("urgent", "vision", 4.0, priority=125),
    ]
    found = decided(VISION_AND_SPEECH, waiting)
    assert begun(found) == ["urgent", "b1", "a1", "a2"]


def test_a_project_never_has_more_than_its_limit() -> None:
    projects = shared(vision=quota(8), speech=quota(4, limit={"default": {"CPU": 6}}))
    found = decided(projects, [waits(f"s{i}", "speech", i) for i in range(6)])
    assert begun(found) == ["s0", "s1", "s2"]
    assert {each.reason for each in found.waits} == {
        "project speech would exceed its limit of 6 CPU"
    }


def test_a_department_has_a_limit_for_all_its_projects() -> None:
    projects = shared(
        departments=({"name": "lab", **quota(4, limit={"default": {"CPU": 4}})},),
        vision=quota(2, department="lab"),
        speech=quota(2, department="lab"),
    )
    waiting = [waits("v", "vision", count=2), waits("s", "speech", 1.0)]
    found = decided(projects, waiting)
    assert begun(found) == ["s"]
    assert found.waits[0].reason == "project lab would exceed its limit of 4 CPU"


def test_what_is_not_preemptible_stays_in_quota() -> None:
    at_work = (works("v0", "vision", "abcd", preemptible=False),)
    guarded = waits("guarded", "vision", preemptible=False)
    found = decided(VISION_AND_SPEECH, [guarded, waits("other", "vision", 1.0)], at_work)
    assert begun(found) == ["other"]
    (wait,) = found.waits
    assert wait.reason == (
        "project vision would exceed its quota for non-preemptible work of 8 CPU"
    )


@pytest.mark.parametrize("project", ["", "gone"])
def test_a_run_without_a_project_that_is_there_is_in_the_default_one(project: str) -> None:
    """It has no quota, so that it comes after those that have."""
    waiting = [waits("v", "vision", 5.0), waits("other", project, 1.0)]
    assert begun(decided(VISION_AND_SPEECH, waiting)) == ["v", "other"]
    assert begun(decided(VISION_AND_SPEECH, waiting, free=1)) == ["v"]
