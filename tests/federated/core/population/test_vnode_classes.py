"""Each client is in one vnode class, the same one on every machine, whichever others are there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.federated_data.site_partitions import SiteClients
from fedpilot.federated.core.population.partitions.bootstrap import bootstrap
from fedpilot.federated.core.population.partitions.disjoint import natural
from fedpilot.federated.core.population.vnode_classes import (
    NOWHERE,
    ClassRule,
    ClientClasses,
    by_class,
)

REST = ClassRule(name="rest")


def classes(
    count: int, *rules: ClassRule, seed: int = 3, columns: dict[str, Any] | None = None
) -> ClientClasses:
    """Classes of the clients `c00`, `c01`, ..., each with one sample."""
    people = natural(np.array([f"c{i:02}" for i in range(count)]))
    return ClientClasses(rules, people, columns or {}, seed, range(count))


def everybody(count: int) -> Any:
    return np.arange(count, dtype=np.int64)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param([REST], ["rest"] * 4, id="one class takes all"),
        pytest.param(
            [ClassRule(name="a", ids=("c0[12]",)), REST],
            ["rest", "a", "a", "rest"],
            id="a pattern takes its clients, and the rest goes elsewhere",
        ),
        pytest.param(
            [REST, ClassRule(name="a", ids=("c00", "*3"))],
            ["a", "rest", "rest", "a"],
            id="a class takes what is left wherever it stands",
        ),
        pytest.param(
            [ClassRule(name="a", ids=("c0?",)), ClassRule(name="b", ids=("*",))],
            ["a"] * 4,
            id="the first pattern that matches counts",
        ),
        pytest.param(
            [ClassRule(name="a", share=1.0), ClassRule(name="b", ids=("c03",))],
            ["a", "a", "a", "b"],
            id="shares are of clients that no pattern takes",
        ),
        pytest.param(
            [
                ClassRule(name="a", column="ward", values=("n*", "east")),
                ClassRule(name="b", column="ward", values=("*",)),
            ],
            ["a", "b", "a", "a"],
            id="a column's values are patterns",
        ),
    ],
)
def test_a_client_is_in_the_class_that_takes_it(
    rules: list[ClassRule], expected: list[str]
) -> None:
    ward = np.array(["north", "west", "east", "nowhere"])
    found = classes(4, *rules, columns={"ward": ward})
    assert [found.name_of(client) for client in range(4)] == expected


def test_most_of_a_clients_samples_decide_by_a_column() -> None:
    people = natural(np.array(["a", "a", "a", "b", "b"]))
    ward = np.array(["west", "north", "north", "west", "north"])
    rules = [ClassRule(name="n", column="ward", values=("north",)), REST]
    found = ClientClasses(rules, people, {"ward": ward}, 0, range(2))
    assert [found.name_of(0), found.name_of(1)] == ["n", "n"], "the first value in a tie"


@given(
    seed=st.integers(0, 1 << 40),
    share=st.floats(0.01, 0.99),
    asked=st.lists(st.integers(0, 59), min_size=1, max_size=30),
)
def test_a_draw_depends_on_the_seed_and_the_id_alone(
    seed: int, share: float, asked: list[int]
) -> None:
    rules = (ClassRule(name="a", share=share), REST)
    whole = classes(60, *rules, seed=seed)
    some = whole.of(np.array(asked))
    again = classes(60, *rules, seed=seed).of(everybody(60))
    assert (some == again[asked]).all(), "in any order of asking"
    fewer = classes(40, *rules, seed=seed).of(everybody(40))
    assert (fewer == again[:40]).all(), "with fewer clients"


def test_a_site_finds_the_classes_of_its_clients_as_all_others_do() -> None:
    rules = (ClassRule(name="a", share=0.5), ClassRule(name="b", ids=("c1*",)), REST)
    own = natural(np.array([f"c{i:02}" for i in range(10, 16)]))
    site = ClientClasses(rules, SiteClients(10, 30, own), {}, 3, range(10, 16))
    assert (site.of(np.arange(10, 16)) == classes(30, *rules).of(np.arange(10, 16))).all()


def test_shares_are_about_kept_and_thirds_leave_nobody_out() -> None:
    thirds = [ClassRule(name=name, share=0.3333333333) for name in "abc"]
    many = bootstrap(np.zeros(10, dtype=np.int64), 3000, 1, 0)
    found = ClientClasses(thirds, many, {}, 1, range(3000)).of(everybody(3000))
    counts = Counter(found.tolist())
    assert NOWHERE not in counts
    assert all(900 < count < 1100 for count in counts.values())
    small = [ClassRule(name="a", share=0.1), REST]
    counts = Counter(ClientClasses(small, many, {}, 1, range(3000)).of(everybody(3000)).tolist())
    assert 240 < counts[0] < 360


def test_clients_that_no_class_takes_are_found() -> None:
    lost = classes(4, ClassRule(name="a", ids=("c0[013]",)))
    assert lost.first_left_out() == 2
    assert classes(4, ClassRule(name="a", ids=("c0[013]",)), REST).first_left_out() is None
    assert classes(4, ClassRule(name="a", ids=("*",))).first_left_out() is None
    assert classes(4, ClassRule(name="a", share=1.0)).first_left_out() is None


def test_classes_without_clients_are_found() -> None:
    rules = (ClassRule(name="a", ids=("d*",)), ClassRule(name="b", ids=("*",)), REST)
    assert classes(4, *rules).without_clients() == ("a", "rest")
    assert classes(4, *rules[1:2]).without_clients() == ()


def test_clients_are_divided_by_their_classes() -> None:
    found = classes(6, ClassRule(name="a", ids=("c0[135]",)), REST)
    asked = np.array([5, 0, 1])
    parts = [(name, asked[at].tolist()) for name, at in by_class(found, asked)]
    assert parts == [("a", [5, 1]), ("rest", [0])]
    assert [(name, at.tolist()) for name, at in by_class(found, asked[:1])] == [("a", [0])]
    assert [(name, at.tolist()) for name, at in by_class(None, asked)] == [(None, [0, 1, 2])]
    assert by_class(None, asked[:0]) == by_class(found, asked[:0]) == []
