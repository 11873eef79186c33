"""Late updates count less the later they are, once, and in whichever order they come."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from federations import Log
from fedpilot.federated import Event, RunRefused
from fedpilot.federated.config.schema import Participation
from fedpilot.federated.core.state import Roles, State, TensorRole
from fedpilot.federated.core.sums.amounts import AnswerRefused
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally
from fedpilot.federated.core.sums.partial_check import LimitExceeded
from fedpilot.federated.core.sums.staleness import Late, as_late, weight_of, with_late
from fedpilot.federated.federation.coordinator.gather import Part, Unanswered
from fedpilot.federated.federation.coordinator.late_orders import LateOrders, read_late, write_late
from fedpilot.federated.federation.events import event
from fedpilot.mediator import FederationMediator, Payload, Share

ROLES: Roles = {"w": TensorRole.TRAINED, "steps": TensorRole.COUNTER}
OLD: State = {"w": np.linspace(-1, 1, 6, dtype=np.float32), "steps": np.array(0)}
NEW: State = {"w": np.linspace(-2, 3, 6, dtype=np.float32), "steps": np.array(4)}


def trained(seed: int, samples: int, *, model: State = OLD, name: str = "c") -> Partial:
    """The sum of one client."""
    rng = np.random.default_rng(seed)
    moved = {"w": model["w"] + rng.normal(0, 0.1, 6).astype(np.float32), "steps": np.array(seed)}
    reference = Reference.of(model, ROLES)
    partial = Partial(reference.exponents)
    assert partial.add(name, moved, samples, Tally().add(samples, 0, 1.0), reference)
    return partial


def late(seed: int, samples: int, **facts: Any) -> Late:
    known = {"round_number": 3, "rounds_late": 1, "exponent": 0.5, "sites": ["b", "a"], **facts}
    return as_late(trained(seed, samples), **known)


# -- what they weigh --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "rounds", "exponent", "weight"),
    [
        pytest.param(100, 0, 0.5, 100, id="in time"),
        pytest.param(100, 3, 0.5, 50, id="three rounds late"),
        pytest.param(100, 1, 0.5, 71, id="rounded"),
        pytest.param(100, 1, 0.0, 100, id="lateness does not matter"),
        pytest.param(100, 1, 20.0, 0, id="it matters more than anything"),
    ],
)
def test_what_samples_count_as(samples: int, rounds: int, exponent: float, weight: int) -> None:
    assert weight_of(samples, rounds, exponent) == weight


@given(st.integers(0, 10**9), st.integers(0, 100), st.floats(0.0, 5.0))
def test_later_never_counts_more(samples: int, rounds: int, exponent: float) -> None:
    weight = weight_of(samples, rounds, exponent)
    assert 0 <= weight_of(samples, rounds + 1, exponent) <= weight <= samples


# -- what they add ----------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 500), st.integers(1, 500), st.integers(1, 9))
def test_the_mean_with_a_late_update_is_that_of_two_clients(
    seed: int, samples: int, old_samples: int, rounds: int
) -> None:
    total, before = trained(seed, samples, model=NEW), trained(seed, samples, model=NEW).mean()
    stale = late(seed + 1, old_samples, rounds_late=rounds)
    after = with_late(total, [stale]).mean()
    weight = weight_of(old_samples, rounds, 0.5)
    expected = (samples * before["w"] + weight * stale.mean["w"]) / (samples + weight)
    assert np.abs(after["w"] - expected).max() <= 2.0**-28
    assert (total.clients, total.tally.samples) == (1, samples), "it stands for nobody"
    assert total.weight == samples + weight


def test_its_counters_count_too() -> None:
    total = with_late(trained(4, 10, model=NEW), [late(9, 10)])
    assert total.largest["steps"] == 9


@given(st.permutations([(1, 30), (2, 400), (3, 5)]))
def test_the_order_of_late_updates_does_not_matter(order: Sequence[tuple[int, int]]) -> None:
    def merged(pairs: Sequence[tuple[int, int]]) -> Partial:
        return with_late(trained(0, 77, model=NEW), [late(*pair) for pair in pairs])

    one, other = merged([(1, 30), (2, 400), (3, 5)]), merged(order)
    assert (one.sums["w"] == other.sums["w"]).all()
    assert one.weight == other.weight


def test_an_update_beyond_any_range_makes_the_sum_overflow() -> None:
    huge = late(1, 10)
    wild = Late(
        **{name: getattr(huge, name) for name in ("round_number", "clients", "samples", "sites")},
        weight=7,
        mean={"w": np.full(6, 1e30)},
        largest={},
    )
    assert with_late(trained(0, 5, model=NEW), [wild]).overflowed == ("w",)


# -- kept in the journal ----------------------------------------------------------------------


def test_late_updates_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "late.safetensors"
    written = [late(1, 30), late(2, 40, round_number=2, rounds_late=2)]
    told = write_late(path, written)
    read = read_late(path, told)
    assert [each.to_json() for each in read] == told
    for one, other in zip(written, read, strict=True):
        assert (one.mean["w"] == other.mean["w"]).all()
        assert one.sites == other.sites == ("a", "b")
        assert (one.largest["steps"] == other.largest["steps"]).all()


def test_another_update_than_the_one_that_counted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "late.safetensors"
    told = write_late(path, [late(1, 30)])
    write_late(path, [late(2, 30)])
    with pytest.raises(RunRefused, match="another update of round 3"):
        read_late(path, told)
    path.unlink()
    with pytest.raises(RunRefused, match="cannot be read"):
        read_late(path, told)


def test_where_nothing_was_late_no_file_is_looked_for(tmp_path: Path) -> None:
    assert read_late(tmp_path / "none", ()) == []


# -- orders that are late ---------------------------------------------------------------------


class Asked:
    """A round's question; an answer of the kind `lie` cannot be one."""

    def __init__(self, round_number: int) -> None:
        self.round_number = round_number

    def check(self, share: Share, answer: Payload) -> None:
        if answer.kind == "lie":
            raise AnswerRefused("the sum", "a lie", "the truth")
        if answer.kind == "excess":
            raise LimitExceeded("it is too much")

    def refused(self, site: str, error: Exception) -> bool:
        return not isinstance(error, LimitExceeded)


class Lateness:
    """Orders of round 3 that were late, and what is said of them."""

    def __init__(self, *, most: int = 1, carries: bool = True) -> None:
        self.log = Log()
        self.mediator = FederationMediator([])
        rules = Participation(
            deadline_s=1.0,
            late_updates="carry" if carries else "discard",
            most_rounds_late=most,
        )
        self.orders = LateOrders(rules, self.mediator, self._emit)

    def _emit(self, name: str, **fields: Any) -> None:
        happened: Event = event(name, **fields)
        self.log(happened)

    def expect(self, site: str, round_number: int = 3) -> Future[Payload]:
        answer: Future[Payload] = Future()
        part = Part(site=site, stays=(range(4),))
        self.orders.expect([Unanswered(Asked(round_number), part, answer)])
        return answer

    def reasons(self) -> list[str]:
        return [fields["reason"] for fields in self.log.of("late_discarded")]


def answered(partial: Partial) -> Payload:
    header, tensors = partial.to_wire()
    return Payload(kind="partial", header={"partial": header}, tensors=tensors)


def test_what_came_of_several_sites_is_one_update() -> None:
    lateness = Lateness()
    lateness.expect("b").set_result(answered(trained(1, 30)))
    lateness.expect("a").set_result(answered(trained(2, 50)))
    still = lateness.expect("c")
    (found,) = lateness.orders.take(4)
    both = trained(1, 30).merge(trained(2, 50))
    assert (found.mean["w"] == both.mean()["w"]).all()
    assert (found.clients, found.samples, found.sites) == (2, 80, ("a", "b"))
    assert found.weight == weight_of(80, 1, 0.5)
    assert lateness.orders.sites() == ["c"]
    assert not still.done()
    assert lateness.orders.take(4) == [], "nothing counts twice"
    (counted,) = lateness.log.of("late_counted")
    assert counted == {
        "round": 4, "of_round": 3, "clients": 2, "weight": found.weight, "sites": ["a", "b"]
    }  # fmt: skip


def test_rounds_count_apart() -> None:
    lateness = Lateness(most=2)
    lateness.expect("a", 3).set_result(answered(trained(1, 30)))
    lateness.expect("a", 4).set_result(answered(trained(2, 30)))
    found = lateness.orders.take(5)
    assert [(each.round_number, each.weight) for each in found] == [
        (3, weight_of(30, 2, 0.5)),
        (4, weight_of(30, 1, 0.5)),
    ]


def test_what_is_too_late_is_discarded_whether_it_came_or_not() -> None:
    lateness = Lateness(most=2)
    lateness.expect("a")
    lateness.expect("b").set_result(answered(trained(1, 30)))
    assert lateness.orders.take(6) == []
    assert lateness.reasons() == ["it is too late"] * 2
    assert lateness.orders.sites() == []


def test_without_carry_nothing_is_kept() -> None:
    lateness = Lateness(carries=False)
    lateness.expect("a").set_result(answered(trained(1, 30)))
    assert lateness.orders.take(4) == []
    assert lateness.orders.rounds == 0
    assert not lateness.log


def test_an_answer_that_cannot_be_is_discarded_and_its_site_distrusted() -> None:
    lateness = Lateness()
    lateness.expect("a").set_result(Payload(kind="lie"))
    assert lateness.orders.take(4) == []
    assert "a lie" in lateness.reasons()[0]
    assert "a lie" in lateness.mediator.membership.distrusted["a"]


def test_a_late_answer_that_is_too_much_is_discarded_and_its_site_stays() -> None:
    lateness = Lateness()
    lateness.expect("a").set_result(Payload(kind="excess"))
    assert lateness.orders.take(4) == []
    assert lateness.reasons() == ["it is too much"]
    assert not lateness.mediator.membership.distrusted


@pytest.mark.parametrize("cancelled", [True, False], ids=["given up", "failed"])
def test_an_answer_that_does_not_come_is_discarded(cancelled: bool) -> None:
    lateness = Lateness()
    answer = lateness.expect("a")
    if cancelled:
        answer.cancel()
    else:
        answer.set_exception(ValueError("a client raised"))
    assert lateness.orders.take(4) == []
    wanted = "its site gave it up" if cancelled else "ValueError: a client raised"
    assert lateness.reasons() == [wanted]


def test_a_sum_of_nobody_and_those_who_were_refused() -> None:
    lateness = Lateness()
    nobody = Partial(Reference.of(OLD, ROLES).exponents, refused=["client_7"])
    lateness.expect("a").set_result(answered(nobody))
    assert lateness.orders.take(4) == []
    (refused,) = lateness.log.of("update_refused")
    assert refused == {"round": 3, "client": "client_7", "reason": "not finite"}
