"""The tree of virtual clusters adds up, and what its rules forbid changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric import MachineId, VNodeId
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.core.ledger import Ledger, LedgerError
from fedpilot.fabric.core.places.borrowing import Unmet
from fedpilot.fabric.core.places.nomination import Admit, apply, place
from fedpilot.fabric.core.records import (
    ROOT,
    ClusterId,
    PlacedCluster,
    Use,
    VNode,
    VNodeKind,
    WorkId,
)
from fedpilot.fabric.testing.fake_cluster import fake_machine
from ledgers import STRICT_SPREAD, admit, asks, contents, cpus, group, machines, run, table


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


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda ledger: ledger.grow(VNodeId("job/0"), cpus(1)),
        lambda ledger: ledger.grow(VNodeId("job@a"), cpus(2)),
        lambda ledger: ledger.grow(VNodeId("job@a"), cpus(5)),
        lambda ledger: ledger.start(WorkId("w"), Use(vnode=VNodeId("job/0"), resources=cpus(2))),
        lambda ledger: ledger.begin(PlacedCluster(id=ClusterId("job"), parent=ROOT), ()),
        lambda ledger: ledger.begin(PlacedCluster(id=ClusterId("x"), parent=ClusterId("y")), ()),
        lambda ledger: ledger.begin(
            PlacedCluster(id=ClusterId("x"), parent=ROOT),
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
