"""How far a virtual cluster may grow, how it borrows, and when that goes back."""

from __future__ import annotations

import pytest

from fedpilot.fabric import MachineId, Resources, VNodeId
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.borrowing import (
    Growth,
    Unmet,
    borrow,
    capacity,
    find_growth,
    give_back,
    obtainable,
)
from fedpilot.fabric.core.records import ROOT, ClusterId, PlacedCluster, Use, WorkId
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.testing.fake_cluster import fake_machine
from ledgers import admit, asks, cpus, machines, table

A = MachineId("a")


def tree(**limits: dict[str, int]) -> Ledger:
    """Clusters, each inside the one before it, on a machine of 8 CPUs and 1 GiB."""
    ledger = Ledger([fake_machine("a", CPU=8, memory=1 << 30)])
    parent = ROOT
    for name, most in limits.items():
        id = ClusterId(name)
        units = {resource: amount * UNIT for resource, amount in most.items()}
        ledger.begin(PlacedCluster(id=id, parent=parent, limits=units, flexible=True), ())
        parent = id
    return ledger


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        pytest.param({"top": {}}, {"CPU": 8, "memory": 1 << 30}, id="no limit: what is free"),
        pytest.param({"top": {"CPU": 3}}, {"CPU": 3, "memory": 1 << 30}, id="one resource"),
        pytest.param(
            {"top": {"CPU": 3, "memory": 1 << 20}},
            {"CPU": 3, "memory": 1 << 20},
            id="two resources: each has its own limit",
        ),
        pytest.param(
            {"top": {"CPU": 5}, "low": {"CPU": 2}}, {"CPU": 2, "memory": 1 << 30}, id="its own"
        ),
        pytest.param(
            {"top": {"CPU": 2}, "low": {"CPU": 5}},
            {"CPU": 2, "memory": 1 << 30},
            id="the limit of what it is in",
        ),
        pytest.param(
            {"top": {"CPU": 2}, "low": {"memory": 1 << 20}},
            {"CPU": 2, "memory": 1 << 20},
            id="one limit of its own, one of its parent's",
        ),
    ],
)
def test_the_most_that_it_can_have(
    limits: dict[str, dict[str, int]], most: dict[str, float]
) -> None:
    ledger, low = tree(**limits), ClusterId(list(limits)[-1])
    assert obtainable(ledger, low, A) == capacity(ledger, low) == Resources.of(most)
    assert isinstance(find_growth(ledger, low, Resources.of(most)), Growth)
    for name in most:
        above = Resources.of({**most, name: most[name] + 1})
        assert not isinstance(find_growth(ledger, low, above), Growth)


def test_what_is_held_counts_towards_the_limit() -> None:
    ledger = tree(top={"CPU": 3, "memory": 1 << 20})
    held = find_growth(ledger, ClusterId("top"), Resources.of({"CPU": 2}))
    assert isinstance(held, Growth)
    borrow(ledger, held, until=10.0)
    assert obtainable(ledger, ClusterId("top"), A) == Resources.of({"CPU": 3, "memory": 1 << 20})
    assert capacity(ledger, ClusterId("top")) == Resources.of({"CPU": 3, "memory": 1 << 20})


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
