"""How far a virtual cluster may grow: what is free, and every limit on the way up."""

from __future__ import annotations

import pytest

from fedpilot.fabric import MachineId, Resources
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.borrowing import Growth, borrow, capacity, find_growth, obtainable
from fedpilot.fabric.core.records import ROOT, Cluster, ClusterId
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.testing.fake_cluster import fake_machine

A = MachineId("a")


def tree(**limits: dict[str, int]) -> Ledger:
    """Clusters, each inside the one before it, on a machine of 8 CPUs and 1 GiB."""
    ledger = Ledger([fake_machine("a", CPU=8, memory=1 << 30)])
    parent = ROOT
    for name, most in limits.items():
        id = ClusterId(name)
        units = {resource: amount * UNIT for resource, amount in most.items()}
        ledger.begin(Cluster(id=id, parent=parent, limits=units, flexible=True), ())
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
