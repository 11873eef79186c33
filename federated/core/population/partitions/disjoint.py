"""Disjoint partitions: every sample belongs to one client at most.

No recipe leaves a client empty, and only `fixed` may leave samples out. `labels` has the shape
(samples,). Every recipe raises `PartitionError` for a request that it cannot meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...randomness import Purpose, UInt64s, stream
from .apportionment import apportion, deal, give_to_the_empty
from .client_ids import (
    DEFAULT_ID_PATTERN,
    ClientIds,
    ListedIds,
    PartitionByIds,
    PatternIds,
    checked_indices,
)
from .partition import (
    Int64s,
    Integers,
    PartitionError,
    PartitionKind,
    TooManyClients,
    check_beta,
    check_clients,
    checked_labels,
    compact,
)


@dataclass(frozen=True, slots=True, eq=False)
class Disjoint(PartitionByIds):
    """Client `i` has the slice `i` of `order`, and no sample has two clients."""

    kind: PartitionKind = field()
    ids: ClientIds
    order: Integers
    """The samples of client 0, then those of client 1, and so on."""
    offsets: Int64s
    """Where each client's slice of `order` begins, and the last one ends; shape (clients + 1,)."""

    def sizes(self, indices: ArrayLike) -> Int64s:
        clients = checked_indices(indices, len(self.ids))
        return self.offsets[clients + 1] - self.offsets[clients]

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        clients = checked_indices(indices, len(self.ids))
        starts, stops = self.offsets[clients], self.offsets[clients + 1]
        slices = map(slice, starts.tolist(), stops.tolist())
        parts = [self.order[:0], *map(self.order.__getitem__, slices)]
        held = np.concatenate(parts, dtype=np.int64)
        return held, stops - starts


def iid(
    labels: ArrayLike, number_of_clients: int, seed: int, *, id_pattern: str = DEFAULT_ID_PATTERN
) -> Disjoint:
    """Deal the shuffled samples; sizes differ by one at most (McMahan et al. 2017)."""
    samples = len(checked_labels(labels))
    _check_enough(number_of_clients, samples)
    owner = np.empty(samples, dtype=np.int64)
    rng = stream(seed, Purpose.PARTITION)
    owner[rng.permutation(samples)] = np.arange(samples) % number_of_clients
    return _by_owner(PartitionKind.IID, owner, PatternIds(id_pattern, number_of_clients))


def dirichlet(
    labels: ArrayLike,
    number_of_clients: int,
    beta: float,
    seed: int,
    *,
    id_pattern: str = DEFAULT_ID_PATTERN,
) -> Disjoint:
    """Divide every label's samples over the clients by Dir(beta); the smaller, the more skewed.

    Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data distribution", in the form
    of Li et al. 2021, "Federated learning on non-IID data silos". They draw again until no client
    has too few; here each client without samples takes one from the client with most.
    """
    labels = checked_labels(labels)
    _check_enough(number_of_clients, len(labels))
    check_beta(beta)
    rng = stream(seed, Purpose.PARTITION)
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(number_of_clients, beta))
        cuts = np.minimum(np.cumsum(shares)[:-1] * len(members), len(members)).astype(np.int64)
        counts = np.diff(cuts, prepend=0, append=len(members))
        owner[members] = np.repeat(np.arange(number_of_clients), counts)
    give_to_the_empty(owner, number_of_clients, rng)
    return _by_owner(PartitionKind.DIRICHLET, owner, PatternIds(id_pattern, number_of_clients))


def shards(
    labels: ArrayLike,
    number_of_clients: int,
    labels_per_client: int,
    seed: int,
    *,
    id_pattern: str = DEFAULT_ID_PATTERN,
) -> Disjoint:
    """Cut every label's samples into shards and deal each client `labels_per_client` of them.

    McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized
    data", section 3. A shard has one label here, so no client sees more labels than asked for;
    labels get shards in proportion to their samples, and a client's shards have distinct labels
    wherever there are enough labels for that.
    """
    labels = checked_labels(labels)
    _check_enough(number_of_clients, len(labels))
    kinds, counts = np.unique(labels, return_counts=True)
    if labels_per_client < 1 or number_of_clients * labels_per_client < len(kinds):
        raise PartitionError(
            f"{number_of_clients} clients of {labels_per_client} labels each cannot hold the "
            f"{len(kinds)} labels of the data: set labels_per_client to "
            f"{-(-len(kinds) // number_of_clients)} or more"
        )
    number_of_shards = min(number_of_clients * labels_per_client, len(labels))
    per_label = apportion(
        counts * (number_of_shards / len(labels)), number_of_shards, least=1, most=counts
    )
    rng = stream(seed, Purpose.PARTITION)
    owner = np.empty(len(labels), dtype=np.int64)
    for label, owners in zip(kinds, deal(per_label, number_of_clients, rng), strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = owners[np.arange(len(members)) * len(owners) // len(members)]
    return _by_owner(PartitionKind.SHARDS, owner, PatternIds(id_pattern, number_of_clients))


def quantity(
    labels: ArrayLike,
    number_of_clients: int,
    beta: float,
    seed: int,
    *,
    id_pattern: str = DEFAULT_ID_PATTERN,
) -> Disjoint:
    """Give clients sizes that follow Dir(beta), one sample at least, and labels at random.

    Li et al. 2021, "Federated learning on non-IID data silos" (quantity skew).
    """
    samples = len(checked_labels(labels))
    _check_enough(number_of_clients, samples)
    check_beta(beta)
    rng = stream(seed, Purpose.PARTITION)
    spare = samples - number_of_clients
    shares = rng.dirichlet(np.full(number_of_clients, beta))
    sizes = 1 + apportion(shares * spare, spare)
    owner = np.empty(samples, dtype=np.int64)
    owner[rng.permutation(samples)] = np.repeat(np.arange(number_of_clients), sizes)
    return _by_owner(PartitionKind.QUANTITY, owner, PatternIds(id_pattern, number_of_clients))


def natural(client_ids: NDArray[np.str_] | None) -> Disjoint:
    """Make each distinct client id in the data a client, sorted.

    `client_ids` has shape (samples,); `None` stands for a data set that names no clients.
    """
    if client_ids is None or not len(client_ids):
        raise PartitionError(
            "the data set does not say which client a sample belongs to: "
            f"data_distribution_kind: {PartitionKind.NATURAL} needs one that does"
        )
    names, owner = np.unique(np.asarray(client_ids, dtype=np.str_), return_inverse=True)
    return _by_owner(PartitionKind.NATURAL, owner.astype(np.int64), ListedIds(names))


def fixed(
    labels: ArrayLike,
    matrix: ArrayLike,
    seed: int,
    *,
    id_pattern: str = DEFAULT_ID_PATTERN,
) -> Disjoint:
    """Give client `i` the share `matrix[i][j]` of the samples of label `j`.

    `matrix` has shape (clients, labels) and columns that sum to 1 at most; a column below 1 leaves
    samples out. Shares are rounded to whole samples by largest remainder.
    """
    labels = checked_labels(labels)
    shares = _checked_matrix(matrix)
    rows, columns = shares.shape
    if columns != labels.max() + 1:
        raise PartitionError(f"the matrix has {columns} columns for {labels.max() + 1} labels")
    rng = stream(seed, Purpose.PARTITION)
    owner = np.full(len(labels), -1, dtype=np.int64)
    for label in range(columns):
        members = rng.permutation(np.flatnonzero(labels == label))
        quotas = shares[:, label] * len(members)
        total = min(len(members), int(np.rint(quotas.sum())))
        counts = apportion(quotas, total, most=np.where(quotas > 0, len(members), 0))
        owner[members[:total]] = np.repeat(np.arange(rows), counts)
    empty = np.flatnonzero(np.bincount(owner[owner >= 0], minlength=rows) == 0)
    if len(empty):
        raise PartitionError(
            f"row {empty[0]} of the matrix gives its client no sample: raise its shares"
        )
    return _by_owner(PartitionKind.FIXED, owner, PatternIds(id_pattern, rows))


def _by_owner(kind: PartitionKind, owner: Int64s, ids: ClientIds) -> Disjoint:
    """Build the partition in which sample `s` belongs to `owner[s]`; -1 is no client."""
    order = np.argsort(owner, kind="stable")
    offsets = np.searchsorted(owner[order], np.arange(len(ids) + 1))
    return Disjoint(kind, ids, compact(order), offsets.astype(np.int64))


def _checked_matrix(matrix: ArrayLike) -> NDArray[np.float64]:
    try:
        shares = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise PartitionError("the matrix is not a table of numbers with equal rows") from None
    if shares.ndim != 2 or not shares.size:
        raise PartitionError(
            f"the matrix has shape {shares.shape}, it needs a row for each client and "
            "a column for each label"
        )
    wrong = np.argwhere(~(np.isfinite(shares) & (shares >= 0)))
    if len(wrong):
        row, column = wrong[0]
        raise PartitionError(
            f"a share is between 0 and 1, found {shares[row, column]} in row {row}, "
            f"column {column} of the matrix"
        )
    sums = shares.sum(axis=0)
    if sums.max() > 1 + 1e-9:
        column = int(sums.argmax())
        raise PartitionError(
            f"column {column} of the matrix gives out {sums[column]:.6g} of label {column}: "
            "a column sums to 1 at most"
        )
    return shares


def _check_enough(number_of_clients: int, samples: int) -> None:
    check_clients(number_of_clients)
    if number_of_clients > samples:
        raise TooManyClients(number_of_clients, samples)
