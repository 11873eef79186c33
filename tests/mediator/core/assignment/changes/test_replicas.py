"""Which site holds whose replica."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator import SiteCapacity
from fedpilot.mediator.core.assignment import ReplicaSite, holders
from fedpilot.mediator.core.links import LinkSpeed

MB = 1_000_000


def site(
    name: str, nbytes: int = MB, room: int | None = None, down: float | None = None
) -> ReplicaSite:
    link = LinkSpeed() if down is None else LinkSpeed(up=down, down=down)
    return ReplicaSite(capacity=SiteCapacity(name, 1, link=link), nbytes=nbytes, room=room)


@pytest.mark.parametrize(
    ("sites", "found"),
    [
        pytest.param(
            [site("a"), site("b"), site("c")],
            {"a": "b", "b": "c", "c": "a"},
            id="of equal sites the next one by name",
        ),
        pytest.param(
            [site("a", down=8 * MB), site("b", down=1 * MB), site("c", down=9 * MB)],
            {"a": "c", "b": "a", "c": "a"},
            id="the cheapest link, and what a site already gets counts",
        ),
        pytest.param(
            [site("a", room=9 * MB), site("b", room=MB - 1), site("c", room=9 * MB)],
            {"a": "c", "b": "a", "c": "a"},
            id="a site without room holds none",
        ),
        pytest.param(
            [site("a", 3 * MB, room=0), site("b", room=3 * MB), site("c", room=0)],
            {"a": "b", "b": None, "c": None},
            id="the largest chooses first, and fills the room",
        ),
        pytest.param([site("a"), site("b", 0)], {"a": "b"}, id="a site without clients holds some"),
        pytest.param([site("a")], {"a": None}, id="one site has no other"),
    ],
)
def test_the_holders(sites: list[ReplicaSite], found: dict[str, str | None]) -> None:
    chosen = holders(sites)
    assert {name: each.site for name, each in chosen.items()} == found
    assert all(each.reason for each in chosen.values())


def test_a_refusal_says_what_is_left() -> None:
    chosen = holders([site("a", 5 * MB), site("b", room=2 * MB), site("c", room=MB)])
    assert chosen["a"].reason == "no site has room for 5 MB; left are b 2 MB and c 1 MB"


sizes = st.integers(0, 9)


@settings(max_examples=settings().max_examples // 3)
@given(
    st.lists(
        st.builds(
            site,
            st.text("abcdef", min_size=1, max_size=3),
            sizes,
            st.none() | sizes,
            st.none() | st.floats(0.1, 9),
        ),
        max_size=6,
        unique_by=lambda each: each.capacity.name,
    ),
    st.randoms(use_true_random=False),
)
def test_nobody_holds_its_own_or_more_than_it_has_room_for(
    sites: list[ReplicaSite], chance: random.Random
) -> None:
    chosen = holders(sites)
    assert chosen.keys() == {each.capacity.name for each in sites if each.nbytes}
    for each in sites:
        name = each.capacity.name
        held = [found.nbytes for found in chosen.values() if found.site == name]
        assert each.room is None or sum(held) <= each.room
        assert name not in chosen or chosen[name].site != name
    mixed = list(sites)
    chance.shuffle(mixed)
    assert holders(mixed) == chosen
