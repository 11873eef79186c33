"""However machines die, declarations change and the manager crashes: all ends as declared."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings, strategies as st

from fedpilot.fabric.core.ray_clusters.declaration import HEAD, MachineGroup, MachineName
from fedpilot.fabric.core.ray_clusters.failures import FailureSettings
from fedpilot.fabric.core.ray_clusters.lifecycle import LifecycleSettings, RayClusterState
from fedpilot.fabric.core.ray_clusters.machines import MachineState
from machine_world import FAULT_TOLERANT, MachineWorld, declared, group, template

HOSTS = ("x", "y")
HISTORIES = settings.default.max_examples if settings.default else 100
PATIENT = LifecycleSettings(join_s=20, failures=FailureSettings(forget_s=120, longest_s=10))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 4)),
        st.tuples(st.just("crash"), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.integers(0, 9)),
        st.tuples(st.just("vanish"), st.integers(0, 9)),
        st.tuples(st.just("work"), st.integers(0, 9)),
        st.tuples(st.just("scale"), st.integers(0, 13)),
        st.tuples(st.just("name"), st.integers(0, 9)),
        st.tuples(st.just("renew"), st.integers(0, 3)),
        st.tuples(st.just("drop"), st.integers(0, 1)),
        st.tuples(st.just("suspend"), st.integers(0, 2)),
        st.tuples(st.just("host"), st.integers(0, 3)),
        st.tuples(st.just("joins"), st.integers(0, 1)),
    ),
    max_size=40,
)


def _start(fault_tolerant: bool) -> MachineWorld:
    hosts = HOSTS if fault_tolerant else ()
    return MachineWorld(
        declared=declared(
            group("a", 2, least=1, most=4, hosts=hosts),
            group("b", 1, most=4, hosts=hosts, drain_s=3.0),
            head=MachineGroup(name=HEAD, least=1, hosts=hosts),
            fault_tolerance=FAULT_TOLERANT if fault_tolerant else None,
        ),
        settings=PATIENT,
    )


def _do(world: MachineWorld, what: str, number: int, declared_groups: list[MachineGroup]) -> None:
    names = sorted(world.there)
    machine = names[number % len(names)] if names else None
    workers = list(world.declared.workers)
    match what:
        case "turn":
            world.turn()
            world.now += number
        case "crash":
            world.turn(crash=number)
        case "kill" if machine:
            world.kill(machine)
        case "vanish" if machine:
            world.vanish(machine)
        case "work" if machine:
            world.there[machine].work = float(number)
        case "scale" if workers:
            chosen = workers[number % len(workers)]
            world.scale(chosen.name, number // 2)
        case "name" if workers and machine:
            chosen = workers[number % len(workers)]
            world.scale(chosen.name, chosen.replicas, [MachineName(machine)])
        case "renew":
            new = template(number)
            if number == 0:
                world.change(head=replace(world.declared.head, template=new))
            else:
                world.change(workers=tuple(replace(each, template=new) for each in workers))
        case "drop":
            kept = [each for each in workers if each.name != "b"]
            world.change(workers=tuple(declared_groups if number else kept))
        case "suspend":
            if number == 2:
                world.change(suspended=not world.declared.suspended)
            elif workers:
                first = replace(workers[0], suspended=bool(number))
                world.change(workers=(first, *workers[1:]))
        case "host":
            world.hosts_down = frozenset({HOSTS[number]}) if number < 2 else frozenset()
        case "joins":
            world.joins = bool(number)


@settings(max_examples=HISTORIES)
@given(STEPS, st.booleans(), st.booleans())
def test_every_history_converges_to_the_declaration(
    steps: list[tuple[str, int]], fault_tolerant: bool, deleted: bool
) -> None:
    world = _start(fault_tolerant)
    groups = list(world.declared.workers)
    for what, number in steps:
        _do(world, what, number, groups)
    world.hosts_down, world.joins, world.deleted = frozenset(), True, deleted
    world.settle()
    assert not world.wrongs
    kept = {each.name for each in world.memory.machines}
    assert kept == {*world.there}  # no orphan, nothing lost
    assert len(world.started) == len({*world.started})
    if deleted:
        assert world.last is not None
        assert world.last.finished
        return
    suspended = world.declared.suspended
    for each in world.declared.groups:
        ready = world.names(each.name, MachineState.READY)
        assert len(ready) == (0 if suspended else each.wanted)
        assert {m.template for m in world.memory.machines if m.group == each.name} <= {
            each.template.digest
        }
    wanted = RayClusterState.SUSPENDED if suspended else RayClusterState.READY
    assert world.memory.state is wanted
