"""A virtual cluster gets all its places or none; only what is proven too large is refused."""

from __future__ import annotations

from fedpilot.fabric import MachineId, Resources, VNodeId
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.nomination import Admit, DoesNotFit, apply, never, place, refill
from fedpilot.fabric.core.records import ROOT, ClusterId
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.testing.fake_cluster import fake_machine
from ledgers import NEVER, PACK, STRICT_SPREAD, admit, asks, cpus, group, machines, table


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
        assert isinstance(found, DoesNotFit)
        assert "no more than nothing of the 2 CPU" in found.reason or "1 CPU" in found.reason
        assert table(ledger) == {"a": (ROOT, 4, 4)}

    def test_policies_of_a_nested_cluster_are_about_the_vnodes_of_its_parent(self) -> None:
        ledger = machines(a=8)
        admit(ledger, asks("job", group(2, 2, policy=PACK), flexible=False))
        admit(ledger, asks("part", group(1, 1, policy=STRICT_SPREAD), inside="job"))
        assert {each.parent for each in ledger.of(ClusterId("part"))} == {"job/0", "job/1"}
        found = place(ledger, asks("more", group(1, 1, 1, policy=STRICT_SPREAD), inside="job"))
        assert isinstance(found, DoesNotFit)
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
        assert isinstance(found, DoesNotFit)

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
        assert isinstance(refill(ledger, request, (), lost), DoesNotFit)  # there is one in job/1
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


class TestWhatIsNeverRefused:
    """Only what is proven to be too large is refused; whatever else was not found waits."""

    HARD = group(*(0.3 + 0.6 * ((n * 37) % 97) / 97 for n in range(36)))

    def test_a_search_that_gave_up_is_no_proof(self) -> None:
        amount = sum(bundle.resources["CPU"] for bundle in self.HARD.bundles) / UNIT / 12
        ledger = machines(**{f"m{n:02}": amount * 1.0005 for n in range(12)})
        found = place(ledger, asks("hard", self.HARD))
        assert isinstance(found, DoesNotFit)
        assert not found.proven
        assert "no places were found for more than" in found.reason
        assert never(ledger, asks("hard", self.HARD)) is None

    def test_one_arrangement_that_leaves_too_little_is_no_proof(self) -> None:
        ledger = machines(a=1, b=1.5)
        request = asks("job", group(0.5), least=2)
        assert isinstance(place(ledger, request), DoesNotFit)
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


def test_a_parent_does_not_borrow_for_a_child_while_it_has_room() -> None:
    ledger = machines(a=4, b=4)
    admit(ledger, asks("job", least=2, most=4))
    (there,) = ledger.of(ClusterId("job"))
    other = MachineId("a" if there.machine == "b" else "b")
    admit(ledger, asks("in", group(1), inside="job"))
    assert [each.parent for each in ledger.of(ClusterId("in"))] == [there.id]
    assert ledger.flexible(ClusterId("job"), other) is None
    assert not ledger.loans()
