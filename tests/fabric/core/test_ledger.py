"""The tree of virtual clusters adds up after any history, and says why somebody waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import Bundle as Names, RuleBasedStateMachine, invariant, multiple, rule

from fedpilot.fabric import Bundle, Machine, MachineId, Resources, SchedulingPolicy, VNodeId
from fedpilot.fabric.core.books import Books, Entry
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.core.ledger import Ledger, LedgerError
from fedpilot.fabric.core.places.admission import Decision, Expire, QueuePolicy, Wait, decide
from fedpilot.fabric.core.places.borrowing import (
    Growth,
    Step,
    Unmet,
    borrow,
    find_growth,
    give_back,
)
from fedpilot.fabric.core.places.gpus import free_gpus
from fedpilot.fabric.core.places.groups import GroupId, Recut, groups_for, recut
from fedpilot.fabric.core.places.nomination import Admit, NoRoom, apply, never, place, refill
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import (
    ROOT,
    BundleGroup,
    Cluster,
    ClusterId,
    Use,
    VNode,
    VNodeKind,
    WorkId,
    flexible_id,
)
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.core.selectors import In
from fedpilot.fabric.manager.ledger_file import LedgerFile
from fedpilot.fabric.testing.fake_cluster import fake_machine

PACK, SPREAD = SchedulingPolicy.PACK, SchedulingPolicy.SPREAD
STRICT_PACK, STRICT_SPREAD = SchedulingPolicy.STRICT_PACK, SchedulingPolicy.STRICT_SPREAD
NEVER = float("inf")


def cpus(amount: float) -> Resources:
    return Resources.of({"CPU": amount})


def group(*amounts: float, policy: SchedulingPolicy = PACK, **selector: str) -> BundleGroup:
    asked = {label: In(value) for label, value in selector.items()}
    bundles = tuple(Bundle(resources=cpus(amount), selector=asked) for amount in amounts)
    return BundleGroup(bundles=bundles, policy=policy)


def asks(
    name: str,
    *groups: BundleGroup,
    least: float = 0,
    most: float | None = None,
    inside: str = ROOT,
    **more: Any,
) -> Request:
    limits = {} if most is None else {"CPU": round(most * UNIT)}
    return Request(
        id=ClusterId(name),
        parent=ClusterId(inside),
        groups=groups,
        least=cpus(least),
        limits=limits,
        **more,
    )


def machines(**amounts: float) -> Ledger:
    return Ledger(fake_machine(name, CPU=amount) for name, amount in amounts.items())


def admit(ledger: Ledger, *requests: Request) -> None:
    for request in requests:
        found = place(ledger, request)
        assert isinstance(found, Admit), found
        apply(ledger, found, NEVER)


def table(ledger: Ledger) -> dict[str, tuple[str, float, float]]:
    """The node tables of the seed: (cluster, total CPU, available CPU) by node."""
    told = {}
    for machine in ledger.machines:
        told[str(machine)] = (
            str(ROOT),
            ledger.total(machine)["CPU"] / UNIT,
            ledger.free(machine)["CPU"] / UNIT,
        )
    for id, each in ledger.vnodes.items():
        told[str(id)] = (
            str(each.cluster),
            each.resources["CPU"] / UNIT,
            ledger.free(id)["CPU"] / UNIT,
        )
    return told


def run(ledger: Ledger, cluster: str, work: str, amount: float = 1) -> VNodeId | Unmet:
    """Let work begin where there is room for it, borrowing if there is none."""
    id = ClusterId(cluster)
    for each in ledger.of(id):
        if cpus(amount).fits(ledger.free(each.id)):
            ledger.start(WorkId(work), Use(vnode=each.id, resources=cpus(amount)))
            return each.id
    found = find_growth(ledger, id, cpus(amount))
    if isinstance(found, Unmet):
        return found
    borrow(ledger, found, NEVER)
    vnode = flexible_id(id, found.machine)
    ledger.start(WorkId(work), Use(vnode=vnode, resources=cpus(amount)))
    return vnode


class TestTheWalkThroughsOfTheSeed:
    def test_scheduling(self) -> None:
        ledger = machines(raylet1=4, raylet2=4)
        assert table(ledger) == {"raylet1": (ROOT, 4, 4), "raylet2": (ROOT, 4, 4)}
        admit(ledger, asks("job", group(1, 1, policy=STRICT_SPREAD), flexible=False))
        assert table(ledger) == {
            "raylet1": (ROOT, 4, 3),
            "raylet2": (ROOT, 4, 3),
            "job/0": ("job", 1, 1),
            "job/1": ("job", 1, 1),
        }
        assert run(ledger, "job", "task1") == "job/0"
        assert table(ledger)["job/0"] == ("job", 1, 0)
        assert run(ledger, "job", "task2") == "job/1"
        assert table(ledger)["job/1"] == ("job", 1, 0)
        waits = run(ledger, "job", "task3")
        assert isinstance(waits, Unmet)
        assert "job may not hold 1 CPU more" in waits.reason
        assert not waits.physical
        ledger.stop(WorkId("task1"))
        assert run(ledger, "job", "task3") == "job/0"
        ledger.end(ClusterId("job"))
        assert table(ledger) == {"raylet1": (ROOT, 4, 4), "raylet2": (ROOT, 4, 4)}

    def test_autoscaling(self) -> None:
        ledger = machines(raylet1=2)
        admit(ledger, asks("job", least=1))
        assert table(ledger) == {"raylet1": (ROOT, 2, 1), "job@raylet1": ("job", 1, 1)}
        run(ledger, "job", "task1")
        assert table(ledger) == {"raylet1": (ROOT, 2, 1), "job@raylet1": ("job", 1, 0)}
        run(ledger, "job", "task2")
        assert table(ledger) == {"raylet1": (ROOT, 2, 0), "job@raylet1": ("job", 2, 0)}
        waits = run(ledger, "job", "task3")
        assert isinstance(waits, Unmet)
        assert waits.physical
        ledger.machine_up(fake_machine("raylet2", CPU=2))
        run(ledger, "job", "task3")
        assert table(ledger) == {
            "raylet1": (ROOT, 2, 0),
            "job@raylet1": ("job", 2, 0),
            "raylet2": (ROOT, 2, 1),
            "job@raylet2": ("job", 1, 0),
        }
        ledger.end(ClusterId("job"))
        ledger.machine_down(MachineId("raylet2"))
        assert table(ledger) == {"raylet1": (ROOT, 2, 2)}


class TestPlaces:
    def test_flexible_resources_lie_in_as_few_vnodes_as_they_fit(self) -> None:
        ledger = machines(a=2, b=8, c=4)
        admit(ledger, asks("job", least=11))
        assert {id: each.resources for id, each in ledger.vnodes.items()} == {
            "job@b": cpus(8),
            "job@c": cpus(3),
        }

    def test_all_or_nothing(self) -> None:
        ledger = machines(a=4)
        found = place(ledger, asks("job", group(3), least=2))
        assert isinstance(found, NoRoom)
        assert "no more than nothing of the 2 CPU" in found.reason or "1 CPU" in found.reason
        assert table(ledger) == {"a": (ROOT, 4, 4)}

    def test_policies_of_a_nested_cluster_are_about_the_vnodes_of_its_parent(self) -> None:
        ledger = machines(a=8)
        admit(ledger, asks("job", group(2, 2, policy=PACK), flexible=False))
        admit(ledger, asks("part", group(1, 1, policy=STRICT_SPREAD), inside="job"))
        assert {each.parent for each in ledger.of(ClusterId("part"))} == {"job/0", "job/1"}
        found = place(ledger, asks("more", group(1, 1, 1, policy=STRICT_SPREAD), inside="job"))
        assert isinstance(found, NoRoom)
        assert found.most == 2

    def test_labels_are_inherited_and_chosen_by(self) -> None:
        ledger = Ledger([fake_machine("a", CPU=4, labels={"zone": "z1"})])
        bundles = group(1, 1)
        admit(ledger, asks("job", bundles, labels=({"rank": "0"}, {"rank": "1"}), flexible=False))
        assert ledger.labels(VNodeId("job/1")) == {"zone": "z1", "rank": "1"}
        admit(ledger, asks("part", group(1, rank="1", zone="z1"), inside="job"))
        assert ledger.of(ClusterId("part"))[0].parent == "job/1"

    def test_a_nested_cluster_lets_its_parents_grow(self) -> None:
        ledger = machines(a=4)
        admit(ledger, asks("job", least=1, most=3), asks("part", least=1, inside="job"))
        assert table(ledger) == {
            "a": (ROOT, 4, 3),
            "job@a": ("job", 1, 0),
            "part@a": ("part", 1, 1),
        }
        admit(ledger, asks("pg", group(2), inside="job"))
        assert table(ledger)["job@a"] == ("job", 3, 0)
        found = place(ledger, asks("more", group(1), inside="job"))
        assert isinstance(found, NoRoom)

    def test_what_was_lost_is_looked_for_where_the_rest_can_grow(self) -> None:
        ledger = machines(a=8, b=4)
        request = asks("in", least=5, inside="job")
        admit(ledger, asks("job", group(3, 3, 3), flexible=False), request)
        assert {each.id: each.parent for each in ledger.of(ClusterId("in"))} == {
            "in@a": "job/1",
            "in@b": "job/2",
        }
        ledger.machine_down(MachineId("b"))
        lost = cpus(3)
        assert isinstance(refill(ledger, request, (), lost), NoRoom)  # there is one in job/1
        ledger.machine_up(fake_machine("c", CPU=3))
        found = refill(ledger, asks("job", group(3, 3, 3), flexible=False), [2], Resources())
        assert isinstance(found, Admit)
        apply(ledger, found, NEVER)
        found = refill(ledger, request, (), lost)
        assert isinstance(found, Admit)
        assert [(each.id, each.parent) for each in found.vnodes] == [("in@c", "job/2")]

    def test_what_ends_takes_all_below_it_along(self) -> None:
        ledger = machines(a=8)
        admit(
            ledger,
            asks("job", group(4)),
            asks("part", group(2), inside="job"),
            asks("piece", group(1), inside="part"),
        )
        assert ledger.end(ClusterId("job")) == ("piece", "part", "job")
        assert table(ledger) == {"a": (ROOT, 8, 8)}


class TestTheQueue:
    def test_the_first_that_does_not_fit_holds_up_the_rest(self) -> None:
        ledger = machines(a=4)
        decisions = decide(
            ledger, [asks("one", group(3)), asks("two", group(2)), asks("three", group(1))], 0.0
        )
        assert told(decisions) == ["admit one", "wait two 1", "wait three 2"]
        assert "the most free on one machine is 1 CPU" in reasons(decisions)[1]
        assert "two is before it" in reasons(decisions)[2]

    def test_higher_priority_goes_first(self) -> None:
        ledger = machines(a=4)
        waiting = [asks("one", group(3)), asks("two", group(3), priority=5)]
        assert told(decide(ledger, waiting, 0.0, QueuePolicy.PRIORITY)) == [
            "admit two",
            "wait one 1",
        ]

    def test_those_inside_a_cluster_have_a_queue_of_their_own(self) -> None:
        ledger = machines(a=4)
        admit(ledger, asks("job", group(2), flexible=False))
        waiting = [asks("one", group(4)), asks("part", group(2), inside="job")]
        assert told(decide(ledger, waiting, 0.0)) == ["wait one 1", "admit part"]

    def test_a_deadline_ends_the_wait(self) -> None:
        ledger = machines(a=4)
        admit(ledger, asks("job", group(3)))
        waiting = [asks("one", group(2), deadline=5.0), asks("two", group(1))]
        assert told(decide(ledger, waiting, 4.9)) == ["wait one 1", "wait two 2"]
        assert told(decide(ledger, waiting, 5.0)) == ["expire one", "admit two"]

    def test_what_could_never_be_met_is_told_from_what_must_wait(self) -> None:
        ledger = machines(a=4, b=2)
        admit(ledger, asks("job", group(4, 2)))
        assert never(ledger, asks("one", group(4))) is None
        refused = never(ledger, asks("two", group(4, 4)))
        assert refused is not None
        assert refused.most == 1
        assert never(ledger, asks("part", group(4), inside="job")) is None
        assert never(ledger, asks("part", group(4, 4), inside="job")) is not None


class TestWhatIsNeverRefused:
    """Only what is proven to be too large is refused; whatever else was not found waits."""

    HARD = group(*(0.3 + 0.6 * ((n * 37) % 97) / 97 for n in range(36)))

    def test_a_search_that_gave_up_is_no_proof(self) -> None:
        amount = sum(bundle.resources["CPU"] for bundle in self.HARD.bundles) / UNIT / 12
        ledger = machines(**{f"m{n:02}": amount * 1.0005 for n in range(12)})
        found = place(ledger, asks("hard", self.HARD))
        assert isinstance(found, NoRoom)
        assert not found.proven
        assert "no places were found for more than" in found.reason
        assert never(ledger, asks("hard", self.HARD)) is None

    def test_one_arrangement_that_leaves_too_little_is_no_proof(self) -> None:
        ledger = machines(a=1, b=1.5)
        request = asks("job", group(0.5), least=2)
        assert isinstance(place(ledger, request), NoRoom)
        assert never(ledger, request) is None

    def test_more_than_there_is_in_all_is_proof(self) -> None:
        ledger = machines(a=2, b=2)
        assert never(ledger, asks("job", least=5)) is not None
        assert never(ledger, asks("job", group(1, 1), least=3)) is not None

    def test_more_than_a_limit_above_allows_is_proof(self) -> None:
        ledger = machines(a=8, b=8)
        admit(ledger, asks("top", group(1), most=4), asks("mid", inside="top"))
        assert never(ledger, asks("low", least=5, inside="mid")) is None
        assert never(ledger, asks("low", least=6, inside="mid")) is not None
        assert never(ledger, asks("low", group(2, 2, 2), inside="mid")) is not None

    def test_more_than_nodes_of_one_size_have_on_a_machine_is_proof(self) -> None:
        ledger = machines(a=8)
        admit(ledger, asks("job", group(2, 2), flexible=False))
        assert never(ledger, asks("part", least=2, inside="job")) is None
        assert never(ledger, asks("part", least=3, inside="job")) is not None


class TestGpus:
    """A share comes from one GPU, so what is left of several is not a whole one."""

    @staticmethod
    def asks(name: str, *nodes: float, least: float = 0, inside: str = ROOT) -> Request:
        bundles = tuple(Bundle(resources=Resources.of({"GPU": gpu})) for gpu in nodes)
        groups = (BundleGroup(bundles=bundles, policy=PACK),) if nodes else ()
        return Request(
            id=ClusterId(name),
            parent=ClusterId(inside),
            groups=groups,
            least=Resources.of({"GPU": least}),
            flexible=bool(least) or not nodes,
        )

    def test_what_is_left_of_three_is_no_whole_one(self) -> None:
        ledger = Ledger([fake_machine("a", GPU=3)])
        admit(ledger, self.asks("job", 0.6, 0.6, 0.6))
        assert free_gpus(ledger, ["a"]) == {"a": (4000, 4000, 4000)}
        found = place(ledger, self.asks("whole", 1))
        assert isinstance(found, NoRoom)
        assert found.reason == "one node needs 1 GPU, and the GPUs are free in parts only"
        assert isinstance(place(ledger, self.asks("flexible", least=1)), NoRoom)
        admit(ledger, self.asks("parts", 0.4, 0.4, 0.4))

    def test_shares_lie_on_as_few_as_they_can(self) -> None:
        ledger = Ledger([fake_machine("a", GPU=2)])
        admit(ledger, self.asks("job", 0.5, 0.5), self.asks("whole", 1))
        assert free_gpus(ledger, ["a"]) == {"a": ()}

    def test_on_a_loose_machine_they_lie_on_as_many_as_they_can(self) -> None:
        ledger = Ledger([fake_machine("a", GPU=2), fake_machine("b", GPU=1)])
        admit(ledger, self.asks("job", 0.5, 0.5))
        loose = {MachineId("a")}
        assert free_gpus(ledger, ["a"], loose) == {"a": (5000, 5000)}
        for where, machine in ((frozenset[MachineId](), "a"), (loose, "b")):
            (found,) = decide(ledger, [self.asks("whole", 1)], 0.0, loose=where)
            assert isinstance(found, Admit)
            assert [each.machine for each in found.vnodes] == [machine]
        waiting = [self.asks("wholes", 1, 1), self.asks("whole", 1)]
        assert told(decide(ledger, waiting, 0.0, loose=loose)) == ["wait wholes 1", "wait whole 2"]

    def test_the_same_holds_inside_a_virtual_cluster(self) -> None:
        ledger = Ledger([fake_machine("a", GPU=2)])
        admit(ledger, self.asks("job", 2), self.asks("parts", 0.6, 0.6, inside="job"))
        assert isinstance(place(ledger, self.asks("half", 0.5, inside="job")), NoRoom)
        assert isinstance(place(ledger, self.asks("less", 0.4, 0.4, inside="job")), Admit)

    def test_nobody_grows_by_what_is_in_parts(self) -> None:
        ledger = Ledger([fake_machine("a", GPU=2)])
        admit(ledger, self.asks("parts", 0.6, 0.6), self.asks("job"))
        grown = find_growth(ledger, ClusterId("job"), Resources.of({"GPU": 0.8}))
        assert isinstance(grown, Unmet)
        assert isinstance(find_growth(ledger, ClusterId("job"), Resources.of({"GPU": 0.4})), Growth)

    @given(
        total=st.integers(0, 4),
        asked=st.lists(st.sampled_from([0.1, 0.25, 0.4, 0.5, 0.6, 0.9, 1, 2]), max_size=8),
        gone=st.sets(st.integers(0, 7)),
        others=st.sampled_from([0, 0.3, 0.9, 1.7]),
    )
    def test_the_parts_are_what_is_free_in_all(
        self, total: int, asked: list[float], gone: set[int], others: float
    ) -> None:
        ledger = Ledger([fake_machine("a", GPU=total)])
        for number, gpu in enumerate(asked):
            found = place(ledger, self.asks(f"c{number}", gpu))
            if isinstance(found, Admit):
                apply(ledger, found, NEVER)
        for number in gone:
            if f"c{number}" in ledger.clusters:
                ledger.end(ClusterId(f"c{number}"))
        rest = Resources.of({"GPU": others})
        if others and rest.fits(ledger.free(MachineId("a"))):
            ledger.begin(Cluster(id=ClusterId("default"), parent=ROOT), ())
            borrow(ledger, Growth(MachineId("a"), (_step("default", rest),)), NEVER)
        (parts,) = free_gpus(ledger, [MachineId("a")]).values()
        assert sum(parts) == ledger.free(MachineId("a"))["GPU"]
        assert all(0 < part <= UNIT for part in parts)
        assert len(parts) <= total


def _step(cluster: str, by: Resources) -> Step:
    return Step(
        vnode=VNodeId(f"{cluster}@a"),
        cluster=ClusterId(cluster),
        parent=MachineId("a"),
        machine=MachineId("a"),
        by=by,
        new=True,
    )


requests = st.builds(
    lambda number, amount, inside, priority, patience: asks(
        f"r{number}",
        *([group(amount)] if amount else []),
        inside=inside,
        priority=priority,
        deadline=patience,
    ),
    number=st.just(0),
    amount=st.integers(0, 5),
    inside=st.sampled_from([ROOT, "job", "other"]),
    priority=st.integers(0, 2),
    patience=st.none() | st.integers(0, 2),
)


def one_after_the_other(
    ledger: Ledger, waiting: Sequence[Request], now: float, policy: QueuePolicy
) -> list[Decision]:
    """What `decide` is to answer, found by looking at everybody."""
    trial, made = ledger.copy(), list[Decision]()
    queues: dict[ClusterId, list[ClusterId]] = {}
    if policy is QueuePolicy.PRIORITY:
        waiting = sorted(waiting, key=lambda request: -request.priority)
    for request in waiting:
        queue = queues.setdefault(request.parent, [])
        reason = f"{queue[0]} is before it" if queue else ""
        if not queue:
            found = place(trial, request)
            if isinstance(found, Admit):
                apply(trial, found, now)
                made.append(found)
                continue
            reason = found.reason
        if request.deadline is not None and request.deadline <= now:
            made.append(Expire(request, f"its deadline is over; {reason}"))
        else:
            queue.append(request.id)
            made.append(Wait(request, len(queue), reason))
    return made


@given(
    waiting=st.lists(requests, max_size=12),
    now=st.integers(0, 2),
    policy=st.sampled_from(QueuePolicy),
)
def test_a_queue_is_decided_on_as_if_everybody_in_it_was_looked_at(
    waiting: list[Request], now: int, policy: QueuePolicy
) -> None:
    waiting = [replace(each, id=ClusterId(f"r{n}")) for n, each in enumerate(waiting)]
    ledger = machines(a=6, b=4)
    admit(ledger, asks("job", group(2), most=2), asks("other", group(1), flexible=False))
    before = contents(ledger)
    found = decide(ledger, waiting, now, policy)
    assert list(found) == one_after_the_other(ledger, waiting, now, policy)
    assert len(found) == len(waiting)
    assert contents(ledger) == before


def test_those_behind_the_first_are_not_looked_at_one_by_one() -> None:
    waiting = [asks(f"r{number}", group(1)) for number in range(10_000)]
    found = decide(machines(a=0.5), waiting, 0.0)
    assert list(found.made) == ["r0"]
    assert list(found)[-1] == Wait(waiting[-1], 10_000, "r0 is before it")


def told(decisions: Iterable[Decision]) -> list[str]:
    said = []
    for each in decisions:
        position = f" {each.position}" if isinstance(each, Wait) else ""
        said.append(f"{type(each).__name__.lower()} {each.request.id}{position}")
    return said


def reasons(decisions: Iterable[Decision]) -> list[str]:
    return ["" if isinstance(each, Admit) else each.reason for each in decisions]


class TestBorrowing:
    def test_a_vnode_that_is_there_grows_before_another_is_made(self) -> None:
        ledger = machines(a=4, b=4)
        admit(ledger, asks("job", least=1))
        (first,) = ledger.of(ClusterId("job"))
        found = find_growth(ledger, ClusterId("job"), cpus(3))
        assert isinstance(found, Growth)
        assert [(s.vnode, s.by, s.new) for s in found.steps] == [(first.id, cpus(2), False)]

    def test_demand_climbs_and_everybody_on_the_way_borrows(self) -> None:
        ledger = machines(a=8)
        admit(ledger, asks("top", least=2), asks("mid", least=1, inside="top"))
        admit(ledger, asks("low", inside="mid"))
        found = find_growth(ledger, ClusterId("low"), cpus(4))
        assert isinstance(found, Growth)
        assert [(step.cluster, step.by) for step in found.steps] == [
            ("top", cpus(2)),
            ("mid", cpus(3)),
            ("low", cpus(4)),
        ]
        borrow(ledger, found, until=10.0)
        assert table(ledger) == {
            "a": (ROOT, 8, 4),
            "top@a": ("top", 4, 0),
            "mid@a": ("mid", 4, 0),
            "low@a": ("low", 4, 4),
        }

    def test_a_limit_on_the_way_is_named(self) -> None:
        ledger = machines(a=8)
        admit(ledger, asks("top", most=2), asks("low", inside="top"))
        found = find_growth(ledger, ClusterId("low"), cpus(3))
        assert isinstance(found, Unmet)
        assert found.reason == "top may not hold 3 CPU more flexible resources"

    def test_what_is_due_goes_back_when_its_work_has_ended_and_upwards(self) -> None:
        ledger = machines(a=8)
        admit(ledger, asks("top", least=1), asks("low", inside="top"))
        found = find_growth(ledger, ClusterId("low"), cpus(4))
        assert isinstance(found, Growth)
        borrow(ledger, found, until=10.0)
        ledger.start(WorkId("w"), Use(vnode=VNodeId("low@a"), resources=cpus(4)))
        assert give_back(ledger, 9.0) == give_back(ledger, 11.0) == ()
        ledger.stop(WorkId("w"))
        assert give_back(ledger, 9.0) == ()
        assert [loan.vnode for loan in give_back(ledger, 11.0)] == ["low@a", "top@a"]
        assert table(ledger) == {"a": (ROOT, 8, 7), "top@a": ("top", 1, 1)}


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda ledger: ledger.grow(VNodeId("job/0"), cpus(1)),
        lambda ledger: ledger.grow(VNodeId("job@a"), cpus(2)),
        lambda ledger: ledger.grow(VNodeId("job@a"), cpus(5)),
        lambda ledger: ledger.start(WorkId("w"), Use(vnode=VNodeId("job/0"), resources=cpus(2))),
        lambda ledger: ledger.begin(Cluster(id=ClusterId("job"), parent=ROOT), ()),
        lambda ledger: ledger.begin(Cluster(id=ClusterId("x"), parent=ClusterId("y")), ()),
        lambda ledger: ledger.begin(
            Cluster(id=ClusterId("x"), parent=ROOT),
            [
                VNode(
                    id=VNodeId(f"x/{index}"),
                    cluster=ClusterId("x"),
                    parent=MachineId("a"),
                    machine=MachineId("a"),
                    kind=VNodeKind.FIXED,
                    resources=cpus(1),
                )
                for index in range(3)
            ],
        ),
        lambda ledger: ledger.drop(VNodeId("job/0")),
    ],
)
def test_what_the_rules_forbid_changes_nothing(forbidden: Any) -> None:
    ledger = machines(a=4)
    admit(ledger, asks("job", group(1), least=1, most=2), asks("in", group(1), inside="job"))
    before = table(ledger)
    with pytest.raises(LedgerError):
        forbidden(ledger)
    assert table(ledger) == before
    assert not broken(ledger)


amounts = st.integers(1, 8 * UNIT).map(lambda units: Resources((("CPU", units),)))
several = st.dictionaries(st.sampled_from(["CPU", "disk"]), st.integers(1, 6), min_size=1).map(
    lambda found: Resources.of(found)
)
demands = amounts | several
policies = st.sampled_from(SchedulingPolicy)
groups = st.builds(
    BundleGroup,
    bundles=st.lists(demands.map(lambda each: Bundle(resources=each)), min_size=1, max_size=3).map(
        tuple
    ),
    policy=policies,
)
machine_resources = st.fixed_dictionaries(
    {"CPU": st.integers(0, 8), "disk": st.integers(0, 8)}
).map(lambda found: Resources.of(found))


class Histories(RuleBasedStateMachine):
    """Clusters, work, loans and machines come and go in any order."""

    names = Names("names")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger([fake_machine("m0", CPU=8, disk=4), fake_machine("m1", CPU=4)])
        self.now = 0.0
        self.made = 0
        self.waiting: list[Request] = []
        self.file = LedgerFile(None)
        self.books = Books(self.ledger)
        self.ids = count()

    @rule(
        target=names,
        parent=names | st.just(ROOT),
        asked=st.lists(groups, max_size=2).map(tuple),
        least=demands | st.just(Resources()),
        more=st.none() | st.integers(0, 4 * UNIT),
        priority=st.integers(0, 2),
        patience=st.none() | st.integers(0, 5),
    )
    def ask(
        self,
        parent: ClusterId,
        asked: tuple[BundleGroup, ...],
        least: Resources,
        more: int | None,
        priority: int,
        patience: int | None,
    ) -> Any:
        if parent != ROOT and parent not in self.ledger.clusters:
            return multiple()
        self.made += 1
        request = Request(
            id=ClusterId(f"c{self.made}"),
            parent=parent,
            groups=asked,
            least=least,
            limits={} if more is None else {"CPU": least["CPU"] + more},
            flexible=bool(least) or more is not None,
            priority=priority,
            deadline=None if patience is None else self.now + patience,
        )
        self.waiting.append(request)
        return request.id

    @rule(policy=st.sampled_from(QueuePolicy))
    def admit(self, policy: QueuePolicy) -> None:
        alive = {ROOT, *self.ledger.clusters}
        self.waiting = [each for each in self.waiting if each.parent in alive]
        left = []
        for decision in decide(self.ledger, self.waiting, self.now, policy):
            match decision:
                case Admit(request):
                    apply(self.ledger, decision, self.now + 2)
                    self.holds_what_it_asked(request)
                    for group in groups_for(decision, self.new_id):
                        self.books.groups.put(group)
                case Wait(request):
                    left.append(request)
                case Expire(request):
                    assert request.deadline is not None
        self.waiting = [each for each in self.waiting if each in left]  # as they asked

    def holds_what_it_asked(self, request: Request) -> None:
        mine = self.ledger.of(request.id)
        asked = sorted(b.resources.units for g in request.groups for b in g.bundles)
        fixed = [each for each in mine if each.kind is VNodeKind.FIXED]
        assert sorted(each.resources.units for each in fixed) == asked
        assert self.ledger.flexible_total(request.id) == request.least
        by_id = {each.id: each for each in fixed}
        index = 0
        for each in request.groups:
            ids = [VNodeId(f"{request.id}/{index + i}") for i in range(len(each.bundles))]
            places = {by_id[id].parent for id in ids}
            index += len(ids)
            if each.policy is STRICT_SPREAD:
                assert len(places) == len(ids)
            if each.policy is STRICT_PACK:
                assert len(places) == 1

    @rule(name=names, demand=demands, lease=st.integers(0, 4))
    def work(self, name: ClusterId, demand: Resources, lease: int) -> None:
        if name not in self.ledger.clusters:
            return
        found = find_growth(self.ledger, name, demand)
        if isinstance(found, Growth):
            borrow(self.ledger, found, self.now + lease)
            self.made += 1
            use = Use(vnode=flexible_id(name, found.machine), resources=demand)
            self.ledger.start(WorkId(f"w{self.made}"), use)

    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        if self.ledger.uses:
            self.ledger.stop(data.draw(st.sampled_from(sorted(self.ledger.uses))))

    @rule(name=names)
    def end(self, name: ClusterId) -> None:
        if name in self.ledger.clusters:
            self.ledger.end(name)

    @rule(passed=st.integers(1, 3))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        give_back(self.ledger, self.now)
        for loan in self.ledger.loans():
            idle = loan.resources.fits(self.ledger.free(loan.vnode))
            assert loan.until > self.now or not idle

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if len(self.ledger.machines) > 1:
            lost = data.draw(st.sampled_from(sorted(self.ledger.machines)))
            self.ledger.machine_down(lost)

    @rule(resources=machine_resources)
    def find(self, resources: Resources) -> None:
        self.made += 1
        id = MachineId(f"m{self.made}")
        self.ledger.machine_up(Machine(id=id, hostname=str(id), total=resources))

    @invariant()
    def all_rules_hold(self) -> None:
        assert not broken(self.ledger)

    @invariant()
    def the_groups_carry_the_vnodes(self) -> None:
        ledger, groups = self.ledger, self.books.groups
        known = {vnode for group in groups for vnode in group.vnodes}
        cut = recut(ledger, groups, {*known, *ledger.vnodes}, self.new_id)
        assert isinstance(cut, Recut)
        groups.apply(cut)
        carried: dict[VNodeId, Resources] = {}
        for group in groups:
            for piece in group.pieces:
                assert piece.vnode is not None
                assert group.cluster == ledger.vnodes[piece.vnode].cluster
                there = carried.get(piece.vnode, Resources())
                carried[piece.vnode] = there + piece.resources
        assert carried == {id: own for id in ledger.vnodes if (own := ledger.own(id))}
        again = recut(ledger, groups, ledger.vnodes, self.new_id)
        assert again == Recut((), ())

    def new_id(self, _: ClusterId) -> GroupId:
        return GroupId(f"g{next(self.ids)}")

    @invariant()
    def the_file_says_the_same(self) -> None:
        asked = [each.id for each in self.waiting]
        for request in self.waiting:
            if request.id not in self.books.entries:
                self.books.enter(Entry(request=request))
        for id in list(self.books.entries):
            if id not in asked:
                self.books.strike(id)
        self.file.save(self.books)
        found = self.file.load()
        assert contents(found.ledger) == contents(self.ledger)
        assert found.waiting == self.waiting
        assert {g.id: g for g in found.groups} == {g.id: g for g in self.books.groups}

    def teardown(self) -> None:
        self.file.close()
        ledger = self.ledger
        for cluster in ledger.children(ROOT):
            ledger.end(cluster)
        assert not broken(ledger)
        assert not ledger.clusters
        assert not ledger.vnodes
        assert not ledger.uses
        assert not ledger.loans()
        assert all(ledger.free(id) == machine.total for id, machine in ledger.machines.items())


TestHistories = Histories.TestCase


def contents(ledger: Ledger) -> Mapping[str, Any]:
    return {
        "machines": ledger.machines,
        "vnodes": ledger.vnodes,
        "uses": ledger.uses,
        "loans": sorted(ledger.loans(), key=repr),
        "clusters": ledger.clusters,
        "free": {place: ledger.free(place) for place in [*ledger.machines, *ledger.vnodes]},
    }


@given(data=st.data())
def test_the_order_in_which_things_end_makes_no_difference(data: st.DataObject) -> None:
    ledger = Ledger([fake_machine("a", CPU=16), fake_machine("b", CPU=16)])
    for number in range(5):
        inside = data.draw(st.sampled_from([ROOT, *sorted(ledger.clusters)]))
        request = asks(f"c{number}", group(1), least=1, inside=inside)
        found = place(ledger, request)
        if isinstance(found, Admit):
            apply(ledger, found, 0.0)
    for number in range(5):
        run(ledger, data.draw(st.sampled_from(sorted(ledger.clusters))), f"w{number}")
    ends = data.draw(st.lists(st.sampled_from(sorted(ledger.clusters)), unique=True))
    stops = data.draw(st.lists(st.sampled_from(sorted(ledger.uses)), unique=True))
    events: list[tuple[str, str]] = [("end", id) for id in ends] + [("stop", id) for id in stops]
    found_by_order = []
    for order in (events, data.draw(st.permutations(events))):
        twin = ledger.copy()
        for what, name in order:
            if what == "end" and name in twin.clusters:
                twin.end(ClusterId(name))
            elif what == "stop" and name in twin.uses:
                twin.stop(WorkId(name))
        found_by_order.append(contents(twin))
    assert found_by_order[0] == found_by_order[1]


def test_a_parent_does_not_borrow_for_a_child_while_it_has_room() -> None:
    ledger = machines(a=4, b=4)
    admit(ledger, asks("job", least=2, most=4))
    (there,) = ledger.of(ClusterId("job"))
    other = MachineId("a" if there.machine == "b" else "b")
    admit(ledger, asks("in", group(1), inside="job"))
    assert [each.parent for each in ledger.of(ClusterId("in"))] == [there.id]
    assert ledger.flexible(ClusterId("job"), other) is None
    assert not ledger.loans()
