"""A share of a GPU comes from one GPU, in every decision about places."""

from __future__ import annotations

from hypothesis import given, strategies as st

from fedpilot.fabric import Bundle, MachineId, Resources, VNodeId
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.admission import decide
from fedpilot.fabric.core.places.borrowing import Growth, Step, Unmet, borrow, find_growth
from fedpilot.fabric.core.places.gpus import free_gpus
from fedpilot.fabric.core.places.nomination import Admit, DoesNotFit, apply, place
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import ROOT, BundleGroup, ClusterId, PlacedCluster
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.testing.fake_cluster import fake_machine
from ledgers import NEVER, PACK, admit, told


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
        assert isinstance(found, DoesNotFit)
        assert found.reason == "one node needs 1 GPU, and the GPUs are free in parts only"
        assert isinstance(place(ledger, self.asks("flexible", least=1)), DoesNotFit)
        admit(ledger, self.asks("parts", 0.4, 0.4, 0.4))

    def test_shares_lie_on_as_few_as_they_can(self) -> None:
        ledger = Ledger([fake_machine("a", GPU=2)])
        admit(ledger, self.asks("job", 0.5, 0.5), self.asks("whole", 1))
        assert free_gpus(ledger, ["a"]) == {"a": ()}

    def test_on_a_loose_machine_they_lie_on_as_many_as_they_can(self) -> None:
        ledger = Ledger([fake_machine("a", GPU=2), fake_machine("b", GPU=1)])
        admit(ledger, self.asks("job", 0.5, 0.5))
        fragmented = {MachineId("a")}
        assert free_gpus(ledger, ["a"], fragmented) == {"a": (5000, 5000)}
        for where, machine in ((frozenset[MachineId](), "a"), (fragmented, "b")):
            (found,) = decide(ledger, [self.asks("whole", 1)], 0.0, fragmented=where)
            assert isinstance(found, Admit)
            assert [each.machine for each in found.vnodes] == [machine]
        waiting = [self.asks("wholes", 1, 1), self.asks("whole", 1)]
        assert told(decide(ledger, waiting, 0.0, fragmented=fragmented)) == [
            "wait wholes 1",
            "wait whole 2",
        ]

    def test_the_same_holds_inside_a_virtual_cluster(self) -> None:
        ledger = Ledger([fake_machine("a", GPU=2)])
        admit(ledger, self.asks("job", 2), self.asks("parts", 0.6, 0.6, inside="job"))
        assert isinstance(place(ledger, self.asks("half", 0.5, inside="job")), DoesNotFit)
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
            ledger.begin(PlacedCluster(id=ClusterId("default"), parent=ROOT), ())
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
