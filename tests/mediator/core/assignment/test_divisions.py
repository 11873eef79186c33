"""What an own strategy answers: each movable client at one site, in shares of few ranges."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from fedpilot.mediator.core.assignment import AssignmentProblem, Division, SiteCapacity
from fedpilot.mediator.core.assignment.divisions import checked
from fedpilot.mediator.core.assignment.shares import members, share_of

SITES = [SiteCapacity(name, 1) for name in ("a", "b", "c")]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.sets(st.integers(0, 29)))
def test_a_division_of_any_form_keeps_its_clients(places: list[str], pinned: set[int]) -> None:
    free = np.array([c for c in range(len(places)) if c not in pinned], dtype=np.int64)
    problem = AssignmentProblem(clients=share_of(free), sites=SITES)
    single = {
        site: tuple(range(c, c + 1) for c in reversed(free.tolist()) if places[c] == site)
        for site in "abc"
    }
    found = checked(Division(shares=single, reason="why"), problem)
    assert found.reason == "why"
    for site in "abc":
        mine = [c for c in free.tolist() if places[c] == site]
        assert members(found.shares[site]).tolist() == mine
        assert len(found.shares[site]) <= max(1, len(mine))


def test_a_site_that_is_left_out_gets_no_client() -> None:
    problem = AssignmentProblem(clients=(range(4),), sites=SITES)
    found = checked(Division(shares={"b": (range(4),)}), problem)
    assert found.shares == {"a": (), "b": (range(4),), "c": ()}
