"""Bootstrap partitions: every client draws its samples with replacement, keyed by its id.

Samples are drawn on demand, so memory does not grow with the population, and a client's samples do
not depend on the number of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...randomness import (
    Purpose,
    UInt64s,
    below,
    one_per_key,
    stream,
    words_per_key,
)
from .client_ids import (
    DEFAULT_ID_PATTERN,
    ClientIds,
    PartitionByIds,
    PatternIds,
    checked_indices,
)
from .partition import (
    Int64s,
    Integers,
    PartitionError,
    PartitionKind,
    check_beta,
    check_clients,
    checked_labels,
    compact,
)


def bootstrap(
    labels: ArrayLike,
    number_of_clients: int,
    samples_per_client: int | Sequence[int],
    seed: int,
    *,
    dirichlet_beta: float | None = None,
    id_pattern: str = DEFAULT_ID_PATTERN,
) -> Bootstrap:
    """Let each client draw its samples with replacement (Efron 1979); any number of clients.

    `samples_per_client` is one number, or the least and the most. With `dirichlet_beta` each client
    has its own label mix: Dir(alpha p), p being the label mix of the data (Hsu et al. 2019), and
    alpha = beta times the number of labels, so that balanced data give the symmetric Dir(beta) of
    `dirichlet`.
    """
    labels = checked_labels(labels)
    check_clients(number_of_clients)
    bounds = (
        (samples_per_client, samples_per_client)
        if isinstance(samples_per_client, int)
        else tuple(samples_per_client)
    )
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1] < 1 << 32:
        raise PartitionError(
            "samples_per_client is a number above 0, or the least and the most, "
            f"found {samples_per_client!r}"
        )
    mix = None
    if dirichlet_beta is not None:
        check_beta(dirichlet_beta)
        _, counts = np.unique(labels, return_counts=True)
        concentration = dirichlet_beta * len(counts) * counts / len(labels)
        mix = LabelMix(compact(np.argsort(labels, kind="stable")), counts, concentration)
    return Bootstrap(
        ids=PatternIds(id_pattern, number_of_clients),
        seed=seed,
        samples=len(labels),
        least=bounds[0],
        most=bounds[1],
        mix=mix,
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bootstrap(PartitionByIds):
    """Every client draws its samples with replacement, from a counter keyed by its id."""

    ids: ClientIds
    seed: int
    samples: int
    """Samples in the data set."""
    least: int
    most: int
    """A client holds `least` to `most` samples, each number equally likely."""
    mix: LabelMix | None

    @property
    def kind(self) -> PartitionKind:
        return PartitionKind.BOOTSTRAP

    def sizes(self, indices: ArrayLike) -> Int64s:
        clients = checked_indices(indices, len(self.ids))
        if self.least == self.most:
            return np.full(clients.shape, self.least, dtype=np.int64)
        return self._sizes(self.ids.keys(clients))

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        if keys is None:
            keys = self.ids.keys(indices)
        sizes = self._sizes(keys)
        if self.mix is not None:
            return self._mixed(self.mix, keys, sizes), sizes
        width = int(sizes.max(initial=0))
        words = words_per_key(self.seed, Purpose.BOOTSTRAP, keys, width)
        return below(words[np.arange(width) < sizes[:, np.newaxis]], self.samples), sizes

    def _sizes(self, keys: UInt64s) -> Int64s:
        if self.least == self.most:
            return np.full(keys.shape, self.least, dtype=np.int64)
        span = self.most - self.least + 1
        return self.least + one_per_key(self.seed, Purpose.BOOTSTRAP_SIZE, keys, span)

    def _mixed(self, mix: LabelMix, keys: UInt64s, sizes: Int64s) -> Int64s:
        drawn = [
            mix.draw(size, stream(self.seed, Purpose.BOOTSTRAP, key=key))
            for key, size in zip(keys.tolist(), sizes.tolist(), strict=True)
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *drawn])


@dataclass(frozen=True, slots=True, eq=False)
class LabelMix:
    """Draws samples by a client's own label mix: Dirichlet around the data's mix."""

    order: Integers
    """Samples sorted by label."""
    counts: Int64s
    """Samples of each label that occurs."""
    concentration: NDArray[np.float64]
    """The Dirichlet parameter of each label that occurs."""

    def draw(self, size: int, rng: np.random.Generator) -> Int64s:
        """Draw `size` samples with replacement."""
        per_label = rng.multinomial(size, rng.dirichlet(self.concentration))
        within = rng.integers(np.repeat(self.counts, per_label))
        starts = np.cumsum(self.counts) - self.counts
        return self.order[np.repeat(starts, per_label) + within].astype(np.int64)
