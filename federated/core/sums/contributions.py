"""Measures what each site adds to a round, and finds the sites that stand out or exceed a limit.

A site's share is its part of the samples where updates are summed, and its part of the clients
where an algorithm uses each update. Its norm is the length of its mean update. Its cosine is the
cosine of the angle between its mean update and the mean of the others. The coordinator measures
them once per round, on checked answers; they never change the model.

Limits apply to the answers of all sites together. The limit on shares does not apply when so few
sites are left that they cannot all keep it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..population.federated_data.declarations import Exactness
from ..state import Array
from .partial import Partial

OUTLYING_NORM = 10.0
"""A site stands out above this multiple of the median of the others' norms."""
LARGE_SHARE, LARGEST_SHARE = 3.0, 0.9
"""A site stands out above this multiple of an equal share, capped at the second share."""
LEAST_LARGE = 0.5
DIGITS = 4
_ROUNDING = 1e-9
"""Allows each of three equal sites a third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionLimits:
    """The most that one site may add to a round; None for no limit."""

    share: float | None = None
    norm: float | None = None


@dataclass(frozen=True, slots=True)
class Outlier:
    """A site that stands out."""

    site: str
    by: str
    """`norm` or `share`."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one site added to a round."""

    site: str
    clients: int
    share: float
    norm: float
    """Norm of its mean update; 0 without clients."""
    cosine: float | None = None
    """Cosine between its mean update and that of all others; None where either is zero."""

    def shown(self, told: Exactness) -> dict[str, float | int | None]:
        """The JSON values that may be shown."""
        shares = {
            Exactness.EXACT: round(self.share, DIGITS),
            Exactness.ABOUT: round(self.share, 1),
        }
        return {
            "clients": self.clients,
            "share": shares.get(told),
            "norm": _significant(self.norm) if math.isfinite(self.norm) else None,
            "cosine": None if self.cosine is None else round(self.cosine, DIGITS),
        }


def contributions(answers: Iterable[tuple[str, Partial]]) -> list[Contribution]:
    """Measure each site's part in a round; no answer may have overflowed, and none is changed."""
    parts: dict[str, Partial] = {}
    for site, partial in answers:
        before = parts.get(site)
        parts[site] = partial if before is None else before.emptied().merge(before).merge(partial)
    sites = sorted(parts)
    weights = np.array([_weight(parts[site]) for site in sites], dtype=np.float64)
    products = _products([_mean(parts[site]) for site in sites])
    whole = float(weights.sum())
    return [
        Contribution(
            site=site,
            clients=parts[site].clients,
            share=float(weights[at]) / whole if whole else 0.0,
            norm=_root(float(products[at, at])),
            cosine=_cosine(at, weights, products),
        )
        for at, site in enumerate(sites)
    ]


def norm_of(partial: Partial) -> float:
    """Norm of the mean update; 0 without clients."""
    return _root(float(_products([_mean(partial)])[0, 0]))


def reach_of(partial: Partial) -> float:
    """The furthest that clients moved a number of a tensor in the mean; also for an overflowed sum.

    From the bounds; a mean update's norm is at most this times the root of the tensor's size.
    """
    if not partial.weight:
        return 0.0
    return max(
        (
            _ratio(bound, partial.weight, -partial.exponents[name])
            for name, bound in partial.bounds.items()
        ),
        default=0.0,
    )


def too_much(found: Sequence[Contribution], limits: ContributionLimits) -> dict[str, str]:
    """The sites above the limit on shares, each with a reason that names no site's numbers."""
    most = limits.share
    there = [each for each in found if each.share]
    if most is None or len(there) * most < 1.0 - _ROUNDING:
        return {}
    return {
        each.site: "its share of the round is more than `robustness.max_site_share` "
        f"({most:g}) of it"
        for each in there
        if each.share > most + _ROUNDING
    }


def norm_problem(norm: float, limits: ContributionLimits) -> str:
    """Why a mean update of that length is too long; empty if it is not."""
    if limits.norm is None or norm <= limits.norm:
        return ""
    return (
        f"the norm of its update is {_significant(norm):g}, more than "
        f"`robustness.max_update_norm` ({limits.norm:g})"
    )


def outliers(found: Sequence[Contribution], limits: ContributionLimits) -> list[Outlier]:
    """The sites that stand out in measures without a configured limit."""
    told: list[Outlier] = []
    large = max(LEAST_LARGE, min(LARGEST_SHARE, LARGE_SHARE / max(1, len(found))))
    for each in found:
        others = [other.norm for other in found if other.site != each.site and other.norm]
        if not others:
            continue
        usual = median(others)
        if limits.norm is None and each.norm > OUTLYING_NORM * usual:
            reason = (
                f"the norm of its update is {_significant(each.norm):g}, the others' "
                f"{_significant(usual):g}; `robustness.max_update_norm` sets a limit"
            )
            told.append(Outlier(each.site, "norm", reason))
        if limits.share is None and each.share > large:
            reason = (
                f"most of the round is its own, of {len(found)} sites; "
                "`robustness.max_site_share` sets a limit"
            )
            told.append(Outlier(each.site, "share", reason))
    return told


def moved_most(found: Sequence[Contribution]) -> Contribution | None:
    """The site that moved the model most, if any did."""
    parts = [each for each in found if each.share]
    return max(parts, key=lambda each: (each.share * each.norm, each.site), default=None)


def _weight(partial: Partial) -> int:
    return partial.weight if partial.updates is None else len(partial.updates)


def _mean(partial: Partial) -> Mapping[str, Array]:
    """float64 mean update by tensor, with the algorithm's weights; empty without clients."""
    if not _weight(partial):
        return {}
    if partial.updates is None:
        return partial.mean()
    total: dict[str, Array] = {}
    for _, update in partial.updates:
        for name, moved in update.moved.items():
            total[name] = total.get(name, 0.0) + moved.astype(np.float64)
    return {name: array / len(partial.updates) for name, array in total.items()}


def _products(means: Sequence[Mapping[str, Array]]) -> Array:
    products = np.zeros((len(means), len(means)))
    for name in next((mean for mean in means if mean), {}):
        size = next(mean[name].size for mean in means if mean)
        rows = np.stack(
            [mean[name].reshape(-1) if mean else np.zeros(size) for mean in means]
        ).astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            products += rows @ rows.T
    return products


def _cosine(at: int, weights: Array, products: Array) -> float | None:
    """Cosine between one mean update and the weighted mean of all others."""
    rest = weights.copy()
    rest[at] = 0.0
    if not rest.any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        rest /= rest.sum()
        length = _root(float(products[at, at])) * _root(float(rest @ products @ rest))
        along = float(rest @ products[at])
    if not (length and math.isfinite(length) and math.isfinite(along)):
        return None
    return max(-1.0, min(1.0, along / length))


def _root(square: float) -> float:
    return math.sqrt(square) if math.isfinite(square) else math.inf


def _ratio(bound: int, weight: int, exponent: int) -> float:
    """bound / weight * 2**exponent; infinite where that overflows."""
    try:
        return math.ldexp(bound / weight, exponent)
    except OverflowError:
        return math.inf


def _significant(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
