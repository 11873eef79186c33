"""What sites add to a round is measured as it is defined, and judged by the limits alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.federated_data.declarations import Exactness
from fedpilot.federated.core.state import Roles, State, TensorRole
from fedpilot.federated.core.sums.contributions import (
    Contribution,
    ContributionLimits,
    contributions,
    moved_most,
    norm_of,
    norm_problem,
    outliers,
    reach_of,
    too_much,
)
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally

ROLES: Roles = {"w": TensorRole.TRAINED, "b": TensorRole.TRAINED}
MODEL: State = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, "f4")}


def added(*clients: tuple[int, int], updates: bool = False) -> Partial:
    """The sum, or the union, of clients: a seed and samples each."""
    reference = Reference.of(MODEL, ROLES)
    partial = Partial.keeping_updates() if updates else Partial(reference.exponents)
    for seed, samples in clients:
        moved = {n: a + move for (n, a), move in zip(MODEL.items(), moves(seed), strict=True)}
        tally = Tally().add(samples, 0, 1.0)
        assert partial.add(f"c{seed}", moved, samples, tally, reference)
    return partial


def moves(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=a.shape).astype("f4") for a in MODEL.values()]


def flat(*clients: tuple[int, int]) -> Any:
    """The weighted mean move of clients."""
    rows = [np.concatenate([m.ravel() for m in moves(seed)]).astype("f8") for seed, _ in clients]
    return np.average(rows, axis=0, weights=[samples for _, samples in clients])


@given(st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=3), min_size=1, max_size=4))
def test_norm_share_and_cosine_are_those_of_the_mean_updates(samples: list[list[int]]) -> None:
    sites = [
        [(100 * place + i, count) for i, count in enumerate(counts)]
        for place, counts in enumerate(samples)
    ]
    # One site answers twice.
    answers = [(f"s{place}", added(*clients)) for place, clients in enumerate(sites)]
    answers.append(("s0", added((999, 7))))
    sites[0].append((999, 7))
    whole = sum(count for clients in sites for _, count in clients)
    for place, each in enumerate(contributions(answers)):
        mean = flat(*sites[place])
        assert each.site == f"s{place}"
        assert each.clients == len(sites[place])
        assert each.share == pytest.approx(sum(count for _, count in sites[place]) / whole)
        assert each.norm == pytest.approx(float(np.linalg.norm(mean)), rel=1e-5)
        others = [client for at, its in enumerate(sites) if at != place for client in its]
        if not others:
            assert each.cosine is None
            continue
        rest = flat(*others)
        expected = mean @ rest / np.linalg.norm(mean) / np.linalg.norm(rest)
        assert each.cosine == pytest.approx(expected, abs=1e-5)


def test_where_each_client_counts_the_same_so_do_shares() -> None:
    few, many = added((1, 500), updates=True), added((2, 5), (3, 5), (4, 5), updates=True)
    found = contributions([("few", few), ("many", many)])
    assert [each.share for each in found] == [0.25, 0.75]
    assert found[0].norm == pytest.approx(float(np.linalg.norm(flat((1, 1)))), rel=1e-6)


def test_the_partials_stay_as_they_were() -> None:
    one, other = added((1, 5)), added((2, 5))
    before = {name: array.copy() for name, array in one.sums.items()}
    contributions([("a", one), ("a", other), ("b", other)])
    assert all((one.sums[name] == before[name]).all() for name in before)
    assert one.clients == 1


def test_who_has_nobody_has_added_nothing() -> None:
    nobody, somebody = contributions([("a", added()), ("b", added((1, 5)))])
    assert (nobody.share, nobody.norm, nobody.cosine) == (0.0, 0.0, None)
    assert (somebody.share, somebody.cosine) == (1.0, None)
    assert contributions([("a", added())])[0].share == 0.0


def test_a_bound_tells_how_far_clients_moved_where_the_sum_does_not() -> None:
    partial = added((1, 5), (2, 9))
    largest = [max(float(np.abs(m).max()) for m in moves(seed)) for seed in (1, 2)]
    assert reach_of(partial) <= max(largest) + 1e-6
    assert norm_of(partial) <= reach_of(partial) * math.sqrt(8)
    partial.bounds["w"] = 1 << 63
    assert reach_of(partial) > 1e7
    partial.bounds["w"] = 1 << 2000
    assert reach_of(partial) == math.inf
    assert reach_of(added()) == 0.0


# -- what is judged ---------------------------------------------------------------------------


def part(site: str, share: float, norm: float = 1.0) -> Contribution:
    return Contribution(site=site, clients=3, share=share, norm=norm, cosine=0.5)


@pytest.mark.parametrize(
    ("shares", "most", "left_out"),
    [
        pytest.param([0.4, 0.3, 0.3], None, [], id="no limit"),
        pytest.param([0.4, 0.3, 0.3], 0.5, [], id="below it"),
        pytest.param([0.6, 0.3, 0.1], 0.5, ["a"], id="above it"),
        pytest.param([1 / 3, 1 / 3, 1 / 3], 1 / 3, [], id="just it"),
        pytest.param([0.6, 0.4], 0.4, [], id="so few sites cannot keep it"),
        pytest.param([0.6, 0.4, 0.0], 0.4, [], id="nor with one that has added nobody"),
    ],
)
def test_a_limit_on_shares(shares: list[float], most: float | None, left_out: list[str]) -> None:
    found = [part(site, share) for site, share in zip("abc", shares, strict=False)]
    assert list(too_much(found, ContributionLimits(share=most))) == left_out


@pytest.mark.parametrize(
    ("norm", "most", "fine"),
    [(5.0, None, True), (5.0, 5.0, True), (5.1, 5.0, False), (math.inf, 5.0, False)],
)
def test_a_limit_on_norms(norm: float, most: float | None, fine: bool) -> None:
    assert (norm_problem(norm, ContributionLimits(norm=most)) == "") is fine


@pytest.mark.parametrize(
    ("found", "limits", "by"),
    [
        pytest.param([part("a", 1.0, 1e9)], ContributionLimits(), [], id="nobody to compare with"),
        pytest.param([part("a", 0.5), part("b", 0.5)], ContributionLimits(), [], id="alike"),
        pytest.param(
            [part("a", 0.5, 11.0), part("b", 0.5)], ContributionLimits(), [("a", "norm")], id="far"
        ),
        pytest.param(
            [part("a", 0.5, 11.0), part("b", 0.5)], ContributionLimits(norm=20.0), [], id="allowed"
        ),
        pytest.param(
            [part("a", 0.95), part("b", 0.05)], ContributionLimits(), [("a", "share")], id="large"
        ),
        pytest.param(
            [part("a", 0.8), part("b", 0.2)], ContributionLimits(), [], id="the larger of two"
        ),
        pytest.param(
            [part("a", 0.6), *(part(site, 0.1) for site in "bcde")],
            ContributionLimits(),
            [],
            id="just three times an equal share",
        ),
        pytest.param(
            [part("a", 0.65), *(part(site, 0.05) for site in "bcdefgh")],
            ContributionLimits(),
            [("a", "share")],
            id="much more than an equal share",
        ),
    ],
)
def test_who_stands_out_is_named_where_there_is_no_limit(
    found: list[Contribution], limits: ContributionLimits, by: list[tuple[str, str]]
) -> None:
    assert [(each.site, each.by) for each in outliers(found, limits)] == by


def test_who_moved_the_model_most() -> None:
    assert moved_most([part("a", 0.9, 1.0), part("b", 0.1, 10.0)]) == part("b", 0.1, 10.0)
    assert moved_most([part("a", 0.0, 9.0)]) is None


@pytest.mark.parametrize(
    ("told", "share"),
    [(Exactness.EXACT, 0.1235), (Exactness.ABOUT, 0.1), (Exactness.NONE, None)],
)
def test_a_share_is_shown_as_samples_are_told(told: Exactness, share: float | None) -> None:
    shown = Contribution(site="a", clients=2, share=0.123456, norm=math.inf).shown(told)
    assert shown == {"clients": 2, "share": share, "norm": None, "cosine": None}
