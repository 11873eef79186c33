"""An autoscaler that decides again and again, while gangs come and go and machines take time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from fedpilot.fabric.core.ray_clusters.autoscaling import (
    AutoscalerSettings,
    Demand,
    PendingGang,
    SuppliedMachine,
    autoscale,
)
from fedpilot.fabric.core.ray_clusters.declaration import (
    GroupName,
    MachineGroup,
    MachineName,
    MachineTemplate,
)
from fedpilot.fabric.core.records import Bundle, BundleGroup, SchedulingPolicy
from fedpilot.fabric.core.resources import Resources

ONE = Resources.of({"CPU": 1})
PACK = SchedulingPolicy.PACK
START_S = 5
gangs = st.tuples(
    st.integers(0, 300).map(float), st.integers(1, 8), st.integers(1, 200)
)  # when it comes, its members, how long it runs


@given(
    coming=st.lists(gangs, max_size=12),
    most=st.integers(1, 12),
    least=st.integers(0, 2),
    idle_s=st.sampled_from([0.0, 10.0, 60.0]),
    cooldown_s=st.sampled_from([0.0, 30.0, 60.0]),
)
def test_no_machine_comes_and_leaves_within_the_cool_down_and_all_that_can_run_does(
    coming: list[tuple[float, int, int]], most: int, least: int, idle_s: float, cooldown_s: float
) -> None:
    settings = AutoscalerSettings(cooldown_s=cooldown_s)
    group = MachineGroup(
        name=GroupName("workers"),
        replicas=0,
        least=min(least, most),
        most=most,
        idle_s=idle_s,
        template=MachineTemplate(resources=ONE),
    )
    waiting = {str(number): each for number, each in enumerate(coming)}
    joined = dict[str, float]()
    on_the_way = dict[str, float]()
    busy, free_since, ends = dict[str, str](), dict[str, float](), dict[str, float]()
    ran, numbers = set[str](), iter(range(10**6))
    for now in map(float, range(1500)):
        while len(joined) + len(on_the_way) < group.wanted:
            on_the_way[f"m{next(numbers)}"] = now
        for name in [name for name, began in on_the_way.items() if now - began >= START_S]:
            del on_the_way[name]
            joined[name] = free_since[name] = now
        for name in [name for name, gang in busy.items() if ends[gang] <= now]:
            del busy[name]
            free_since[name] = now
        here = {id: each for id, each in waiting.items() if each[0] <= now and id not in ran}
        for id, (_, size, runs_s) in here.items():
            free = [name for name in joined if name not in busy]
            if len(free) >= size:
                ran.add(id)
                ends[id] = now + runs_s
                busy |= dict.fromkeys(free[:size], id)
        pending = [
            PendingGang(
                id=id,
                groups=(BundleGroup(bundles=(Bundle(resources=ONE),) * size, policy=PACK),),
                since_s=at,
            )
            for id, (at, size, _) in here.items()
            if id not in ran
        ]
        machines = [
            SuppliedMachine(
                name=MachineName(name),
                group=group.name,
                free=Resources() if name in busy else ONE,
                since_s=since,
                idle_since_s=None if name in busy else free_since[name],
            )
            for name, since in joined.items()
        ]
        demand = Demand(seen_s=now, gangs=tuple(pending), machines=tuple(machines))
        done = not pending and not busy and all(at < now for at, _, _ in coming)
        if done and not on_the_way and len(joined) == group.least == group.wanted:
            break
        edit = autoscale([group], demand, now, settings).edits.get(group.name)
        if edit is None:
            continue
        for name in edit.leaving:
            assert name not in busy, "a machine in use leaves"
            assert now - joined[name] >= cooldown_s, "it came within the cool-down"
            assert now - free_since[name] >= idle_s
            del joined[name]
        group = replace(group, replicas=edit.replicas)
        assert group.least <= edit.replicas <= group.most
    assert ran == {id for id, (_, size, _) in waiting.items() if size <= most}
    assert len(joined) == group.least, "machines that nothing needs stay"
