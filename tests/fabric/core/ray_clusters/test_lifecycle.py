"""What the manager of a declared Ray cluster does next."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import HEAD, MachineGroup, MachineName
from fedpilot.fabric.core.ray_clusters.lifecycle import (
    STATE_TRANSITIONS,
    RayClusterMemory,
    RayClusterState,
    StartMachine,
)
from fedpilot.fabric.core.ray_clusters.machines import (
    LIVE,
    TRANSITIONS,
    MachineEvent,
    MachineState,
)
from machine_world import BOOT_S, FAULT_TOLERANT, MachineWorld, declared, group, template

READY, STARTING, STOPPING = MachineState.READY, MachineState.STARTING, MachineState.STOPPING


def ready(*groups: MachineGroup, **fields: object) -> MachineWorld:
    """A world whose cluster has come up."""
    world = MachineWorld(declared=declared(*groups, **fields))
    world.settle()
    assert world.memory.state is RayClusterState.READY
    return world


@pytest.mark.parametrize("state", [*MachineState])
@pytest.mark.parametrize("event", [*MachineEvent])
def test_every_event_is_decided_in_every_state_of_a_machine(
    state: MachineState, event: MachineEvent
) -> None:
    assert TRANSITIONS[state][event] in MachineState
    assert state is not MachineState.GONE or TRANSITIONS[state][event] is MachineState.GONE


def test_every_state_of_a_cluster_can_end_in_its_deletion() -> None:
    assert STATE_TRANSITIONS.keys() == {*RayClusterState}
    for state, after in STATE_TRANSITIONS.items():
        assert state is RayClusterState.DELETING or RayClusterState.DELETING in after


def test_the_head_starts_first_and_then_all_workers_before_it_serves() -> None:
    world = MachineWorld(declared=declared(group("small", 3), group("large", 2)))
    world.turn()
    assert [*world.there] == ["c-headgroup-0"]
    found = world.turn()
    assert [type(each) for each in found.actions] == [StartMachine] * 5
    assert world.memory.state is RayClusterState.STARTING
    world.now += BOOT_S
    world.turn()
    assert world.memory.state is RayClusterState.READY
    assert len(world.names("small", READY)) == 3
    assert len(world.names("large", READY)) == 2


def test_a_machine_that_is_wanted_is_remembered_before_it_starts() -> None:
    world = MachineWorld(declared=declared(group("small", 2)))
    world.turn(crash=1)  # after it was kept, before it was started
    assert not world.there
    assert world.names(HEAD, STARTING) == ["c-headgroup-0"]
    world.settle()
    assert world.started == ["c-headgroup-0", "c-small-1", "c-small-2"]


def test_a_dead_worker_is_replaced_in_the_same_turn() -> None:
    world = ready(group("small", 3))
    world.now += 100
    world.vanish(MachineName("c-small-2"))
    found = world.turn()
    assert [each.machine.name for each in found.actions] == ["c-small-4"]
    assert world.memory.state is RayClusterState.SCALING
    world.settle()
    assert world.memory.state is RayClusterState.READY


def test_a_worker_that_ray_has_declared_dead_is_ended_and_replaced() -> None:
    world = ready(group("small", 1))
    world.kill(MachineName("c-small-1"))
    world.settle()
    assert [*world.there] == ["c-headgroup-0", "c-small-2"]


def test_a_worker_whose_processes_end_before_it_joins_is_replaced_under_another_name() -> None:
    world = ready()
    world.change(workers=(group("small", 1),))
    world.turn()
    world.kill(MachineName("c-small-1"))
    world.settle()
    assert [*world.there] == ["c-headgroup-0", "c-small-2"]


def test_without_fault_tolerance_the_workers_of_a_dead_head_start_anew() -> None:
    world = ready(group("small", 2))
    world.kill(MachineName("c-headgroup-0"))
    world.turn()
    assert world.memory.state is RayClusterState.RECOVERING
    assert world.names("small", *LIVE) == []
    world.settle()
    assert [*world.there] == ["c-headgroup-3", "c-small-4", "c-small-5"]
    assert world.memory.state is RayClusterState.READY


def test_with_fault_tolerance_the_workers_of_a_dead_head_stay() -> None:
    world = ready(group("small", 2), fault_tolerance=FAULT_TOLERANT)
    world.kill(MachineName("c-headgroup-0"))
    world.settle()
    assert [*world.there] == ["c-small-1", "c-small-2", "c-headgroup-3"]
    assert {each.head for each in world.memory.machines} == {"c-headgroup-3"}


def test_no_head_starts_while_it_could_not_keep_its_state() -> None:
    world = ready(group("small", 1), fault_tolerance=FAULT_TOLERANT)
    world.head_waits = "the Redis is away"
    world.run(5)
    assert world.last is not None
    assert world.last.reasons[HEAD] == "it cannot keep its state: the Redis is away"
    assert world.memory.state is RayClusterState.READY
    world.kill(MachineName("c-headgroup-0"))
    world.run(1000)
    assert world.last.reasons[HEAD] == "a head has to wait: the Redis is away"
    assert [*world.there] == ["c-small-1"]
    assert not world.last.given_up
    world.head_waits = ""
    world.settle()
    assert [*world.there] == ["c-small-1", "c-headgroup-2"]


def test_the_machines_of_a_host_that_is_gone_start_on_another() -> None:
    hosts = ("a", "b")
    head = MachineGroup(name=HEAD, least=1, hosts=hosts)
    world = ready(group("small", 2, hosts=hosts), head=head, fault_tolerance=FAULT_TOLERANT)
    assert [each.host for each in world.memory.machines] == ["a", "a", "b"]
    world.hosts_down = frozenset({"a"})
    world.run(20)
    alive = [each for each in world.memory.machines if each.live]
    assert [each.host for each in alive] == ["b", "b", "b"]
    assert world.memory.state is RayClusterState.READY
    world.hosts_down = frozenset()
    world.settle()
    assert sorted(world.there) == sorted(each.name for each in alive)  # what was left has ended


def test_a_head_that_moves_to_another_host_ends_before_the_next_one_starts() -> None:
    world = ready(head=MachineGroup(name=HEAD, least=1, hosts=("a",)))
    world.declared = declared(head=MachineGroup(name=HEAD, least=1, hosts=("b",)))
    heads = []
    for _ in range(200):
        heads.append(sum(each.group == HEAD for each in world.there.values()))
        world.turn()
        world.now += 0.1
    assert max(heads) == 1
    assert [each.host for each in world.memory.machines] == ["b"]


def test_no_head_starts_where_something_of_an_earlier_one_is_left() -> None:
    world = ready(head=MachineGroup(name=HEAD, least=1, hosts=("a",)))
    world.memory = RayClusterMemory(next_number=9)
    world.turn()
    assert world.last is not None
    assert world.last.reasons[HEAD] == "c-headgroup-0 has to end before the next head starts"
    world.settle()
    assert [*world.there] == ["c-headgroup-9"]


def test_a_head_does_not_move_because_its_host_blinks() -> None:
    hosts = ("a", "b")
    world = ready(head=MachineGroup(name=HEAD, least=1, hosts=hosts))
    world.hosts_blink = frozenset({"a"})
    world.there[MachineName("c-headgroup-0")].dead = True
    world.run(10)
    assert world.last is not None
    assert world.last.reasons[HEAD] == "its host a does not answer for now"
    world.hosts_blink = frozenset()
    world.settle()
    assert [each.host for each in world.memory.machines] == ["a"]


def test_workers_start_where_hosts_answer() -> None:
    world = MachineWorld(declared=declared(group("small", 2, hosts=("a", "b"))))
    world.hosts_blink = frozenset({"a"})
    world.settle()
    assert [each.host for each in world.memory.machines if each.group == "small"] == ["b", "b"]


def test_without_any_host_the_group_says_so_and_the_rest_goes_on() -> None:
    world = MachineWorld(
        declared=declared(group("far", 1, hosts=("a",)), group("near", 1)),
        hosts_down=frozenset({"a"}),
    )
    world.run(20)
    assert world.last is not None
    assert world.last.reasons == {"far": "none of its hosts answers: a"}
    assert len(world.names("near", READY)) == 1


def test_fewer_replicas_take_the_idle_machine_not_the_one_in_use() -> None:
    world = ready(group("small", 3))
    world.there[MachineName("c-small-1")].work = 5.0
    world.there[MachineName("c-small-3")].work = 1.0
    world.scale("small", 2)
    world.settle()
    assert world.names("small") == ["c-small-1", "c-small-3"]
    world.scale("small", 1)
    world.settle()
    assert world.names("small") == ["c-small-1"]  # the other had less to lose


def test_a_machine_in_use_leaves_after_its_notice_only() -> None:
    world = ready(group("small", 1, drain_s=30.0))
    stubborn = world.there[MachineName("c-small-1")]
    stubborn.work = 1.0
    world.scale("small", 0)
    for _ in range(29):
        world.turn()
        stubborn.work = 1.0  # it does not leave
        world.now += 1
    assert world.names("small", MachineState.DRAINING) == ["c-small-1"]
    world.now += 1
    world.turn()
    assert world.names("small", STOPPING) == ["c-small-1"]


def test_a_named_machine_leaves_and_the_minimum_stays() -> None:
    world = ready(group("small", 2, least=2))
    world.scale("small", 2, leaving=[MachineName("c-small-1")])
    world.turn()
    assert len(world.names("small", READY)) == 2
    assert world.names("small", STARTING) == ["c-small-3"]
    world.settle()
    assert world.names("small", READY) == ["c-small-2", "c-small-3"]


def test_replicas_stay_between_minimum_and_maximum() -> None:
    world = ready(group("small", 3, least=2))
    world.scale("small", 0)
    world.settle()
    assert len(world.names("small")) == 2
    world.scale("small", 99)
    world.settle()
    assert len(world.names("small")) == 10


@pytest.mark.parametrize("most", [1, 2, 0])
def test_a_new_template_rolls_through_the_workers(most: int) -> None:
    world = ready(group("small", 3), max_unavailable=most)
    old = world.names("small")
    world.change(workers=(group("small", 3, template=template(2)),))
    fewest = 3
    for _ in range(60):
        world.turn()
        world.now += 1
        fewest = min(fewest, len(world.names("small", READY)))
    assert fewest == 3 - most
    assert not {*old} & {*world.names("small")}
    assert len(world.names("small", READY)) == 3
    assert world.names(HEAD, READY) == ["c-headgroup-0"]


def test_a_new_template_of_the_head_comes_last() -> None:
    world = ready(group("small", 2))
    head = MachineGroup(name=HEAD, least=1, template=template(2))
    world.change(head=head, workers=(group("small", 2, template=template(2)),))
    while world.names(HEAD, READY) == ["c-headgroup-0"]:
        assert world.last is not None
        before = [each.template for each in world.memory.machines if each.group == "small"]
        world.turn()
        world.now += 1
    assert before == [template(2).digest] * 2
    world.settle()
    assert world.memory.state is RayClusterState.READY


def test_a_group_that_keeps_dying_waits_longer_each_time_and_then_gives_up() -> None:
    world = ready(group("small", 1), group("good", 1))
    starts = []
    for _ in range(400):
        count = len(world.started)
        for name in world.names("small", READY):
            world.kill(name)
        world.turn()
        if len(world.started) > count:
            starts.append(world.now)
        world.now += 1
    waits = [after - before for before, after in pairwise(starts)]
    assert waits == sorted(waits)
    assert len(starts) == 4
    assert world.last is not None
    reason = world.last.reasons[group("small").name]
    assert reason.startswith("its machines died soon after they had joined 5 times in a row")
    assert world.names("good", READY)
    world.change(workers=(group("small", 1, template=template(2)), group("good", 1)))
    world.settle()
    assert world.names("small", READY)


def test_many_machines_that_fail_together_are_one_attempt() -> None:
    world = ready(group("small", 8))
    for name in world.names("small"):
        world.kill(name)
    world.turn()
    assert len(world.names("small", STARTING)) == 8


def test_a_machine_that_does_not_join_is_ended_and_tried_again() -> None:
    world = ready()
    world.joins = False
    world.change(workers=(group("small", 1),))
    world.run(200)
    assert world.names("small", STARTING) != ["c-small-1"]
    world.joins = True
    world.settle()
    assert len(world.names("small", READY)) == 1
    assert [*world.there] == ["c-headgroup-0", *world.names("small")]


def test_a_group_that_is_suspended_has_no_machines_and_comes_back() -> None:
    world = ready(group("small", 2, least=1))
    world.change(workers=(group("small", 2, least=1, suspended=True),))
    world.settle()
    assert world.names("small") == []
    world.change(workers=(group("small", 2, least=1),))
    world.settle()
    assert len(world.names("small", READY)) == 2


def test_a_suspended_cluster_has_nothing_and_comes_back() -> None:
    world = ready(group("small", 2))
    world.change(suspended=True)
    world.settle()
    assert not world.there
    assert world.memory.state is RayClusterState.SUSPENDED
    world.change(suspended=False)
    world.settle()
    assert world.memory.state is RayClusterState.READY


def test_a_deleted_cluster_ends_its_workers_then_its_head_and_is_finished() -> None:
    world = ready(group("small", 2))
    world.deleted = True
    while world.names("small"):
        assert world.names(HEAD, READY) == ["c-headgroup-0"]
        world.turn()
        world.now += 1
    world.settle()
    assert not world.there
    assert world.last is not None
    assert world.last.finished


def test_machines_of_a_group_that_is_not_declared_any_more_leave() -> None:
    world = ready(group("small", 2), group("large", 1))
    world.change(workers=(group("large", 1),))
    world.settle()
    assert world.names("small") == []
    assert len(world.names("large", READY)) == 1
