"""The reconciler looks at all jobs that should stay inside, and at those that never asked it."""

from __future__ import annotations

from fedpilot.fabric import Resources
from fedpilot.fabric.core.audit import Running
from fedpilot.fabric.core.places.groups import GroupId
from reconciler_world import World, asks, nodes, story, two


@story
async def test_a_job_that_only_ray_was_told_of_is_looked_at(world: World) -> None:
    await world.begins(*two())
    await world.create(asks("job", nodes(1)))
    await world.passes()
    inside, outside = world.ray.job_up("0a", named="job"), world.ray.job_up("0b")
    (group,) = world.groups("job")
    one = Resources.of({"CPU": 1})
    for job, where in ((inside, group), (inside, None), (outside, None)):
        told = Running(
            job=job,
            kind="task",
            id=f"{job} in {where}",
            name="f",
            group=where and GroupId(where),
            resources=one,
        )
        world.ray.reports.append(told)
    await world.passes(3)
    assert [each.reason for each in world.reconciler.escapes] == [
        "task f of job 0a holds 1 CPU in no group"
    ]
    world.ray.job_down("0a")
    await world.passes(3)
    assert world.reconciler.escapes == ()
