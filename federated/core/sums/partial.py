"""Exact sums of client updates: the same bits in any order, grouping and number of workers.

An update (how far a client's tensors moved from the round's global model, in their own type) is
rounded once onto a fixed-point grid and summed in int64, weighted by the client's samples. Integer
addition commutes and associates, so Partials of chunks, workers and sites merge in any order, and a
chunk lost with its worker can be trained again elsewhere. Rules:

* The grid of a tensor comes from the round's global model only, never from the updates.
* A bound on the largest sum travels with the sum. When it leaves the range of int64 the Partial is
  `overflowed` in every grouping, and the round is repeated on a coarser grid.
* An update that is not finite is refused as a whole, counted and named.
* For an algorithm that needs every update, a Partial keeps them (`updates`) instead of a sum.

docs/decisions/0004-exact-partials.md has the costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..state import Array, Roles, State, averaged, counters, under
from .updates import Update, Updates

FRACTION_BITS = 32
"""Bits below the size of a tensor's largest weight; float32 has 24."""
SMALLEST_EXPONENT = -4
"""Tensors smaller than 2**-4 (zero biases) share the grid of that size."""
RANGE_BITS = 62
"""Sums must stay below 2**62, so that they and their merges fit int64."""
METRIC_BITS = 32
"""Metrics are summed in units of 2**-32."""
COARSER_STEP = 8
"""Bits that the next coarser grid drops."""
COARSEST = 56
"""The most bits that a grid drops; beyond it, updates lose their meaning."""


def grid(reference: State, roles: Roles, coarser: int = 0) -> dict[str, int]:
    """Exponent e of each averaged tensor's grid, whose unit is 2**-e. `coarser` drops bits."""
    exponents = {}
    for name in averaged(roles):
        array = reference[name]
        largest = max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))
        if largest == 0.0:
            size = SMALLEST_EXPONENT
        else:
            size = math.frexp(largest)[1] if math.isfinite(largest) else 0
        exponents[name] = FRACTION_BITS - max(size, SMALLEST_EXPONENT) - coarser
    return exponents


def exact(value: float) -> int:
    """A finite metric in units of 2**-32, as an exact integer."""
    try:
        return round(math.ldexp(value, METRIC_BITS))
    except OverflowError:  # so large that it is a whole number
        return int(value) << METRIC_BITS


@dataclass(slots=True)
class Tally:
    """Exact sums of metrics over samples."""

    samples: int = 0
    correct: int = 0
    loss: int = 0
    """Sum of the losses, in units of 2**-32."""
    not_finite: int = 0
    untold: int = 0
    """Samples without a loss, which a `client_update` may omit."""

    def add(self, samples: int, correct: int, loss_sum: float, *, told: bool = True) -> Self:
        """Count `samples` more, `correct` of them right; `loss_sum` counts only if `told`."""
        self.samples += samples
        self.correct += correct
        if not told:
            self.untold += samples
        elif math.isfinite(loss_sum):
            self.loss += exact(loss_sum)
        else:
            self.not_finite += samples
        return self

    def merge(self, other: Tally) -> Self:
        """Add another tally; exact, so the order does not matter."""
        self.samples += other.samples
        self.correct += other.correct
        self.loss += other.loss
        self.not_finite += other.not_finite
        self.untold += other.untold
        return self

    def add_clients(
        self,
        samples: npt.NDArray[np.int64],
        loss_sums: npt.NDArray[np.float64],
        *,
        told: bool = True,
    ) -> Self:
        """Count trained clients: samples and finite sums of losses, (k,), which count if `told`."""
        count = int(samples.sum())
        self.samples += count
        if told:
            self.loss += sum(map(exact, loss_sums.tolist()))
        else:
            self.untold += count
        return self

    @property
    def mean_loss(self) -> float:
        """Mean loss per sample with a loss; NaN if there is none or any was not finite."""
        told = self.samples - self.untold
        if not told or self.not_finite:
            return math.nan
        return self.loss / (told << METRIC_BITS)

    @property
    def accuracy(self) -> float:
        """Share of samples classified right; NaN without samples."""
        return self.correct / self.samples if self.samples else math.nan

    def to_json(self) -> list[int]:
        """The sums; the last one only where it is not 0."""
        untold = [self.untold] if self.untold else []
        return [self.samples, self.correct, self.loss, self.not_finite, *untold]

    @classmethod
    def from_json(cls, sums: list[int]) -> Self:
        return cls(*sums)


@dataclass(frozen=True, slots=True)
class Reference:
    """A round's global model, as the origin of updates."""

    exponents: Mapping[str, int]
    values: Mapping[str, Array]
    """The averaged tensors; half-precision ones as float32."""
    counters: tuple[str, ...]

    @classmethod
    def of(cls, state: State, roles: Roles, coarser: int = 0) -> Self:
        """Prepare a global model, once per round."""
        exponents = grid(state, roles, coarser)
        values = {name: _wide(state[name]) for name in exponents}
        return cls(exponents, values, counters(roles))


def _wide(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _rounded(update: State, reference: Reference) -> dict[str, tuple[Array, float]] | None:
    """Each tensor's move in whole grid units, and its largest; None if one is not finite.

    It is computed in the tensor's own type, where scaling by a power of two and rounding are exact.
    The largest is a float64: it exceeds its bound where units leave the tensor's type.
    """
    rounded = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for name, exponent in reference.exponents.items():
            moved = np.asarray(np.subtract(_wide(update[name]), reference.values[name]))
            size = max(float(moved.max(initial=0.0)), -float(moved.min(initial=0.0)))
            size = float(np.rint(np.ldexp(size, exponent)))
            if not math.isfinite(size):
                return None
            np.multiply(moved, moved.dtype.type(math.ldexp(1.0, exponent)), out=moved)
            np.rint(moved, out=moved)
            rounded[name] = moved, size
    return rounded


def _moves(update: State, reference: Reference) -> dict[str, Array]:
    """How far each tensor moved, in its own type."""
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            name: np.asarray(np.subtract(_wide(update[name]), value))
            for name, value in reference.values.items()
        }


@dataclass(slots=True)
class Partial:
    """What a chunk, a worker or a site hands up: one exact sum over its clients' updates.

    Or the updates themselves, where an algorithm needs each; metrics are sums either way.
    """

    exponents: Mapping[str, int]
    """The grid of every summed tensor."""
    sums: dict[str, Array] = field(default_factory=dict)
    """int64, shaped as the tensors: sum over clients of weight x update, in grid units."""
    bounds: dict[str, int] = field(default_factory=dict)
    """Upper limit of every element of a tensor's sum and of any part of the sum."""
    largest: dict[str, Array] = field(default_factory=dict)
    """Elementwise maxima of the counters."""
    weight: int = 0
    """Sum of the clients' weights (samples)."""
    clients: int = 0
    earlier: dict[int, int] = field(default_factory=dict)
    """By step, for groups that train in several: updates added in earlier steps."""
    refused: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    updates: Updates | None = None
    """Every update, unsummed; None where there is a sum."""

    @classmethod
    def keeping_updates(cls) -> Self:
        """An empty Partial that keeps its clients' updates."""
        return cls({}, updates=Updates())

    def add(
        self, client_id: str, update: State, weight: int, tally: Tally, reference: Reference
    ) -> bool:
        """Add a client's trained tensors; return False for a refusal, if any is not finite.

        `update` holds the client's tensors after training (not their difference), `weight` its
        samples. Nothing is added unless everything is finite.
        """
        if self.updates is not None:
            kept = self.keep(client_id, _moves(update, reference), weight, tally)
            if kept:
                self.count({name: update[name] for name in reference.counters})
            return kept
        rounded = None if tally.not_finite else _rounded(update, reference)
        if rounded is None:
            self.refused.append(client_id)
            return False
        for name, (moved, size) in rounded.items():
            self.bounds[name] = self.bounds.get(name, 0) + int(size) * weight
            if self.bounds[name] >= 1 << RANGE_BITS:
                continue  # overflowed: this sum is never used
            units = moved.astype(np.int64) if weight else np.zeros(moved.shape, dtype=np.int64)
            units *= weight
            if name in self.sums:
                self.sums[name] += units
            else:
                self.sums[name] = units
        self.count({name: update[name] for name in reference.counters})
        self.weight += weight
        self.clients += 1
        self.tally.merge(tally)
        return True

    def keep(self, client_id: str, moved: Mapping[str, Array], weight: int, tally: Tally) -> bool:
        """Keep how far a client's tensors moved; return False for a refusal, if any is not finite.

        The arrays must not be written to afterwards.
        """
        finite = not tally.not_finite and all(np.isfinite(a).all() for a in moved.values())
        if finite:
            update = Update(moved, weight, tuple(tally.to_json()))
            self._unite(Updates({client_id: update}), [])
        else:
            self._unite(Updates(), [client_id])
        return finite

    def _unite(self, others: Updates, refused: Sequence[str]) -> None:
        """Add these updates and count the new ones."""
        if self.updates is None:
            raise ValueError("this partial is a sum and keeps no updates")
        both = others.by_client.keys() & set(self.refused)
        both |= self.updates.by_client.keys() & set(refused)
        if both:
            raise ValueError(f"{min(both)} was refused and not refused in one round")
        new = self.updates.new_in(others)
        self.updates.by_client.update(new)
        for update in new.values():
            self.weight += update.weight
            self.clients += 1
            self.tally.merge(Tally(*update.measured))
        self.refused.extend(sorted(set(refused) - set(self.refused)))

    def merge(self, other: Partial) -> Self:
        """Add another Partial of the same round and grid; exact, in any order."""
        if dict(self.exponents) != dict(other.exponents):
            raise ValueError("partials of different grids cannot be merged")
        if (self.updates is None) != (other.updates is None):
            raise ValueError("a sum and a union of updates cannot be merged")
        for step, clients in other.earlier.items():
            self.earlier[step] = self.earlier.get(step, 0) + clients
        if other.updates is not None:
            self._unite(other.updates, other.refused)
            self.count(other.largest)
            return self
        for name, bound in other.bounds.items():
            self.bounds[name] = self.bounds.get(name, 0) + bound
            if self.bounds[name] >= 1 << RANGE_BITS:
                continue
            mine = self.sums.get(name)
            if mine is None:
                self.sums[name] = other.sums[name].copy()
            elif mine.flags.writeable:
                mine += other.sums[name]
            else:  # read-only: it came over a wire
                self.sums[name] = mine + other.sums[name]
        self.count(other.largest)
        self.weight += other.weight
        self.clients += other.clients
        self.refused.extend(other.refused)
        self.tally.merge(other.tally)
        return self

    def emptied(self) -> Self:
        """An empty Partial of the same kind and grid."""
        updates = None if self.updates is None else Updates()
        return type(self)(self.exponents, updates=updates)

    @property
    def fewest(self) -> int:
        """The fewest clients in any of its steps; 0 if no client was added."""
        return min(filter(None, (self.clients, *self.earlier.values())), default=0)

    @property
    def overflowed(self) -> tuple[str, ...]:
        """Tensors whose sum may have left int64; none of the sums may be used then."""
        return tuple(sorted(n for n, bound in self.bounds.items() if bound >= 1 << RANGE_BITS))

    def mean(self) -> dict[str, Array]:
        """float64 mean update of each tensor; call once, at the end of a round."""
        if self.updates is not None:
            raise ValueError("the updates were kept and not summed")
        if self.overflowed:
            raise OverflowError(f"sums out of range: {', '.join(self.overflowed)}")
        return {
            name: np.ldexp(total / float(self.weight), -self.exponents[name])
            for name, total in self.sums.items()
        }

    def count(self, values: Mapping[str, Array]) -> None:
        """Include some clients' counters."""
        for name, value in values.items():
            mine = self.largest.get(name)
            self.largest[name] = value.copy() if mine is None else np.maximum(mine, value)

    def to_wire(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """(header that JSON can hold, tensors), for the journal and for transfer between sites."""
        header = {
            "exponents": dict(self.exponents),
            "bounds": {name: str(bound) for name, bound in self.bounds.items()},
            "weight": self.weight,
            "clients": self.clients,
            "refused": sorted(self.refused),
            "tally": self.tally.to_json(),
        }
        tensors = {f"sum/{name}": value for name, value in self.sums.items()}
        tensors |= {f"max/{name}": np.asarray(value) for name, value in self.largest.items()}
        if self.updates is not None:
            header["updates"], stacked = self.updates.to_wire()
            tensors |= {f"all/{name}": value for name, value in stacked.items()}
        return header, tensors

    @classmethod
    def from_wire(cls, header: Mapping[str, Any], tensors: Mapping[str, Array]) -> Self:
        told = header.get("updates")
        updates = None if told is None else Updates.from_wire(told, under("all/", tensors))
        return cls(
            exponents=dict(header["exponents"]),
            sums=under("sum/", tensors),
            bounds={name: int(bound) for name, bound in header["bounds"].items()},
            largest=under("max/", tensors),
            weight=header["weight"],
            clients=header["clients"],
            refused=list(header["refused"]),
            tally=Tally.from_json(header["tally"]),
            updates=updates,
        )
