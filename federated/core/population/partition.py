"""Decide which samples each client holds.

The rules it keeps:

* a partition is a function of (labels, recipe, seed): whoever computes it finds the same one;
* a disjoint partition gives every sample to exactly one client and leaves no client empty
  (`fixed` alone may leave samples out);
* a bootstrap partition knows nothing about its clients until it is asked about one, so a million of
  them cost what ten cost, and a client's samples depend on its id only;
* what is asked about many clients at once is what each would be told alone.

    PartitionError
    +-- TooManyClients     a disjoint partition of fewer samples than clients
    UnknownClient          an id that is no client of this partition
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpilot.fabric.host.exit_codes import BAD_INPUT
from fedpilot.federated.errors import FederatedError

from ..randomness import (
    Purpose,
    UInt64s,
    below,
    client_key,
    client_keys,
    one,
    one_per_key,
    stream,
    words_per_key,
)

Int64s = NDArray[np.int64]
Integers = NDArray[np.signedinteger[Any]]

DEFAULT_ID_PATTERN = "client_{index}"

_SIZES_LOOKED_AT = 10_000
_LABELS_LOOKED_AT = 1_000


class PartitionKind(StrEnum):
    """The ways of dividing samples, as `data_distribution_kind` spells them."""

    IID = "iid"
    DIRICHLET = "dirichlet"
    SHARDS = "shards"
    QUANTITY = "quantity"
    NATURAL = "natural"
    FIXED = "fixed"
    BOOTSTRAP = "bootstrap"


class PartitionError(FederatedError):
    """A partition cannot be made as it was asked for."""


class TooManyClients(PartitionError):
    """A disjoint partition was asked of fewer samples than clients."""

    def __init__(self, number_of_clients: int, samples: int) -> None:
        super().__init__(number_of_clients, samples)
        self.number_of_clients, self.samples = number_of_clients, samples

    def __str__(self) -> str:
        return (
            f"{self.number_of_clients} clients cannot share {self.samples} samples, one at least "
            f"each: ask for at most {self.samples} clients, or draw their samples with replacement "
            f"by data_distribution_kind: {PartitionKind.BOOTSTRAP}"
        )


class UnknownClient(FederatedError, KeyError):
    """An id that is no client of this partition."""

    exits_with = BAD_INPUT

    def __init__(self, client_id: str, known: str) -> None:
        super().__init__(client_id, known)
        self.client_id, self.known = client_id, known

    def __str__(self) -> str:
        return f"there is no client {self.client_id!r}: the ids are {self.known}"


class ClientIds(Protocol):
    """Knows the ids of the clients 0 to `len - 1`."""

    def __len__(self) -> int: ...

    def id_of(self, index: int) -> str:
        """Give the id of a client; raise `IndexError` when there is no such client."""

    def index_of(self, client_id: str) -> int:
        """Give the index of a client; raise `UnknownClient` when there is no such client."""

    def keys(self, indices: ArrayLike) -> UInt64s:
        """Give the `client_key` of each of these clients: shape (clients,)."""


class Partition(Protocol):
    """Says which samples each of a number of clients holds."""

    @property
    def kind(self) -> PartitionKind: ...

    @property
    def number_of_clients(self) -> int: ...

    def client_id(self, index: int) -> str:
        """Give the id of a client; raise `IndexError` when there is no such client."""

    def index_of(self, client_id: str) -> int:
        """Give the index of a client; raise `UnknownClient` when there is no such client."""

    def indices(self, index: int) -> Int64s:
        """Give the positions, in the data set, of the samples that a client holds."""

    def size(self, index: int) -> int:
        """Say how many samples a client holds."""

    def sizes(self, indices: ArrayLike) -> Int64s:
        """Say how many samples each of these clients holds, without making the samples."""

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        """Give the samples of these clients, one client after another, and how many each holds.

        `indices` has the shape (clients,), as have the sizes; the samples have (sum of sizes,).
        `keys` are the clients', if they are at hand.
        """

    def keys(self, indices: ArrayLike) -> UInt64s:
        """Give the `client_key` of each of these clients: shape (clients,)."""


@dataclass(frozen=True, slots=True)
class PatternIds:
    """Ids made from a pattern with one `{index}`, such as `client_{index}`; no table is kept."""

    pattern: str
    count: int

    def __post_init__(self) -> None:
        if self.pattern.count("{index}") != 1 or len(re.findall("[{}]", self.pattern)) != 2:
            raise PartitionError(
                f"client ids are written with {{index}} once and no other braces, such as "
                f"{DEFAULT_ID_PATTERN!r}, found {self.pattern!r}"
            )

    def __len__(self) -> int:
        return self.count

    def id_of(self, index: int) -> str:
        _check_index(index, self.count)
        return self.pattern.replace("{index}", str(index))

    def index_of(self, client_id: str) -> int:
        before, _, after = self.pattern.partition("{index}")
        digits = client_id.removeprefix(before).removesuffix(after)
        if re.fullmatch("[0-9]{1,19}", digits):
            index = int(digits)
            if index < self.count and self.id_of(index) == client_id:
                return index
        raise UnknownClient(client_id, f"{self.id_of(0)} to {self.id_of(self.count - 1)}")

    def keys(self, indices: ArrayLike) -> UInt64s:
        before, _, after = self.pattern.partition("{index}")
        clients = _checked_indices(indices, self.count)
        return client_keys([f"{before}{index}{after}" for index in clients.tolist()])


@dataclass(frozen=True, slots=True, eq=False)
class ListedIds:
    """Ids as they are found in the data, sorted."""

    names: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.names)

    def id_of(self, index: int) -> str:
        _check_index(index, len(self.names))
        return str(self.names[index])

    def index_of(self, client_id: str) -> int:
        index = int(np.searchsorted(self.names, client_id))
        if index < len(self.names) and self.names[index] == client_id:
            return index
        shown = ", ".join(str(name) for name in self.names[:3])
        raise UnknownClient(client_id, f"{shown}{', ...' if len(self.names) > 3 else ''}")

    def keys(self, indices: ArrayLike) -> UInt64s:
        return client_keys(self.names[_checked_indices(indices, len(self.names))].tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Disjoint:
    """Every sample belongs to one client at most: client `i` has the slice `i` of `order`."""

    kind: PartitionKind
    ids: ClientIds
    order: Integers
    """The samples of client 0, then those of client 1, and so on."""
    offsets: Int64s
    """Where the clients' slices of `order` begin, and the last one ends; shape (clients + 1,)."""

    @property
    def number_of_clients(self) -> int:
        return len(self.ids)

    def client_id(self, index: int) -> str:
        return self.ids.id_of(index)

    def index_of(self, client_id: str) -> int:
        return self.ids.index_of(client_id)

    def indices(self, index: int) -> Int64s:
        _check_index(index, len(self.ids))
        return self.order[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)

    def size(self, index: int) -> int:
        _check_index(index, len(self.ids))
        return int(self.offsets[index + 1] - self.offsets[index])

    def sizes(self, indices: ArrayLike) -> Int64s:
        clients = _checked_indices(indices, len(self.ids))
        return self.offsets[clients + 1] - self.offsets[clients]

    def rows(self, indices: ArrayLike, keys: UInt64s | None = None) -> tuple[Int64s, Int64s]:
        clients = _checked_indices(indices, len(self.ids))
        starts, stops = self.offsets[clients], self.offsets[clients + 1]
        slices = map(slice, starts.tolist(), stops.tolist())
        nobodys = self.order[:0]
        held = np.concatenate([nobodys, *map(self.order.__getitem__, slices)], dtype=np.int64)
        return held, stops - starts

    def keys(self, indices: ArrayLike) -> UInt64s:
        return self.ids.keys(indices)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bootstrap:
    """Every client draws its samples with replacement, from a counter keyed by its id."""

    ids: ClientIds
    seed: int
    samples: int
    """How many samples there are to draw from."""
    least: int
    most: int
    """A client holds between `least` and `most` samples, all numbers being equally likely."""
    mix: LabelMix | None

    @property
    def kind(self) -> PartitionKind:
        return PartitionKind.BOOTSTRAP

    @property
    def number_of_clients(self) -> int:
        return len(self.ids)

    def client_id(self, index: int) -> str:
        return self.ids.id_of(index)

    def index_of(self, client_id: str) -> int:
        return self.ids.index_of(client_id)

    def indices(self, index: int) -> Int64s:
        return self.rows([index])[0]

    def size(self, index: int) -> int:
        name = self.ids.id_of(index)
        if self.least == self.most:
            return self.least
        return self.least + one(self.seed, Purpose.BOOTSTRAP_SIZE, self._span, key=client_key(name))

    def sizes(self, indices: ArrayLike) -> Int64s:
        clients = _checked_indices(indices, len(self.ids))
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

    def keys(self, indices: ArrayLike) -> UInt64s:
        return self.ids.keys(indices)

    def _sizes(self, keys: UInt64s) -> Int64s:
        if self.least == self.most:
            return np.full(keys.shape, self.least, dtype=np.int64)
        return self.least + one_per_key(self.seed, Purpose.BOOTSTRAP_SIZE, keys, self._span)

    def _mixed(self, mix: LabelMix, keys: UInt64s, sizes: Int64s) -> Int64s:
        drawn = [
            mix.draw(size, stream(self.seed, Purpose.BOOTSTRAP, key=key))
            for key, size in zip(keys.tolist(), sizes.tolist(), strict=True)
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *drawn])

    @property
    def _span(self) -> int:
        return self.most - self.least + 1


@dataclass(frozen=True, slots=True, eq=False)
class LabelMix:
    """Draws samples by a label mix of the client's own: Dirichlet around the data's mix."""

    order: Integers
    """The samples, sorted by label."""
    counts: Int64s
    """How many samples each label that occurs has."""
    concentration: NDArray[np.float64]
    """The parameter of the Dirichlet distribution, per label that occurs."""

    def draw(self, size: int, rng: np.random.Generator) -> Int64s:
        """Draw `size` samples with replacement."""
        per_label = rng.multinomial(size, rng.dirichlet(self.concentration))
        within = rng.integers(np.repeat(self.counts, per_label))
        starts = np.cumsum(self.counts) - self.counts
        return self.order[np.repeat(starts, per_label) + within].astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSummary:
    """What a partition looks like; see `describe`."""

    kind: PartitionKind
    number_of_clients: int
    samples_min: int | None
    """None where the data lies at sites that do not say; so are the three below."""
    samples_median: float | None
    samples_max: int | None
    labels_mean: float | None
    """How many distinct labels a client holds, in the mean."""


def iid(
    labels: ArrayLike, number_of_clients: int, seed: int, *, id_pattern: str = DEFAULT_ID_PATTERN
) -> Disjoint:
    """Deal the shuffled samples out, sizes differing by one at most (McMahan et al. 2017).

    `labels` has shape (samples,) here and below. Raises `PartitionError`, as all partitions do.
    """
    samples = len(_checked_labels(labels))
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
    of Li et al. 2021, "Federated learning on non-IID data silos". They draw again until nobody has
    too few; here each client that got nothing takes one sample from whoever has most.
    """
    labels = _checked_labels(labels)
    _check_enough(number_of_clients, len(labels))
    _check_beta(beta)
    rng = stream(seed, Purpose.PARTITION)
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(number_of_clients, beta))
        cuts = np.minimum(np.cumsum(shares)[:-1] * len(members), len(members)).astype(np.int64)
        counts = np.diff(cuts, prepend=0, append=len(members))
        owner[members] = np.repeat(np.arange(number_of_clients), counts)
    _give_to_the_empty(owner, number_of_clients, rng)
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
    labels = _checked_labels(labels)
    _check_enough(number_of_clients, len(labels))
    kinds, counts = np.unique(labels, return_counts=True)
    if labels_per_client < 1 or number_of_clients * labels_per_client < len(kinds):
        raise PartitionError(
            f"{number_of_clients} clients of {labels_per_client} labels each cannot hold the "
            f"{len(kinds)} labels of the data: set labels_per_client to "
            f"{-(-len(kinds) // number_of_clients)} or more"
        )
    number_of_shards = min(number_of_clients * labels_per_client, len(labels))
    per_label = _apportion(
        counts * (number_of_shards / len(labels)), number_of_shards, least=1, most=counts
    )
    rng = stream(seed, Purpose.PARTITION)
    owner = np.empty(len(labels), dtype=np.int64)
    for label, owners in zip(kinds, _deal(per_label, number_of_clients, rng), strict=True):
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
    samples = len(_checked_labels(labels))
    _check_enough(number_of_clients, samples)
    _check_beta(beta)
    rng = stream(seed, Purpose.PARTITION)
    spare = samples - number_of_clients
    shares = rng.dirichlet(np.full(number_of_clients, beta))
    sizes = 1 + _apportion(shares * spare, spare)
    owner = np.empty(samples, dtype=np.int64)
    owner[rng.permutation(samples)] = np.repeat(np.arange(number_of_clients), sizes)
    return _by_owner(PartitionKind.QUANTITY, owner, PatternIds(id_pattern, number_of_clients))


def natural(client_ids: NDArray[np.str_] | None) -> Disjoint:
    """Let the clients be the distinct ids that the data names, sorted.

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
    number_of_clients: int | None = None,
    number_of_labels: int | None = None,
    id_pattern: str = DEFAULT_ID_PATTERN,
) -> Disjoint:
    """Give client `i` the share `matrix[i][j]` of the samples of label `j`.

    `matrix` has shape (clients, labels) and columns that sum to 1 at most; a column below 1
    leaves samples out. Whole numbers of samples are found by largest remainder. The matrix must
    agree with `number_of_clients` and `number_of_labels`, when those are given.
    """
    labels = _checked_labels(labels)
    shares = _checked_matrix(matrix)
    rows, columns = shares.shape
    wanted_columns = int(labels.max()) + 1 if number_of_labels is None else number_of_labels
    if number_of_clients not in (None, rows):
        raise PartitionError(f"the matrix has {rows} rows for {number_of_clients} clients")
    if columns != wanted_columns or columns <= labels.max():
        raise PartitionError(f"the matrix has {columns} columns for {wanted_columns} labels")
    rng = stream(seed, Purpose.PARTITION)
    owner = np.full(len(labels), -1, dtype=np.int64)
    for label in range(columns):
        members = rng.permutation(np.flatnonzero(labels == label))
        quotas = shares[:, label] * len(members)
        total = min(len(members), int(np.rint(quotas.sum())))
        counts = _apportion(quotas, total, most=np.where(quotas > 0, len(members), 0))
        owner[members[:total]] = np.repeat(np.arange(rows), counts)
    empty = np.flatnonzero(np.bincount(owner[owner >= 0], minlength=rows) == 0)
    if len(empty):
        raise PartitionError(
            f"row {empty[0]} of the matrix gives its client no sample: raise its shares"
        )
    return _by_owner(PartitionKind.FIXED, owner, PatternIds(id_pattern, rows))


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

    `samples_per_client` is one number, or the least and the most. With `dirichlet_beta` a
    client draws by a label mix of its own: Dir(alpha p), p being the label mix of the data (Hsu et
    al. 2019), and alpha = beta times the number of labels, so that balanced data give the symmetric
    Dir(beta) of `dirichlet`.
    """
    labels = _checked_labels(labels)
    _check_clients(number_of_clients)
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
        _check_beta(dirichlet_beta)
        _, counts = np.unique(labels, return_counts=True)
        concentration = dirichlet_beta * len(counts) * counts / len(labels)
        mix = LabelMix(_compact(np.argsort(labels, kind="stable")), counts, concentration)
    return Bootstrap(
        ids=PatternIds(id_pattern, number_of_clients),
        seed=seed,
        samples=len(labels),
        least=bounds[0],
        most=bounds[1],
        mix=mix,
    )


def describe(partition: Partition, labels: ArrayLike) -> PartitionSummary:
    """Sum a partition up for display.

    Sizes are those of 10,000 clients at most and labels those of 1,000 at most, evenly spaced.
    """
    labels = _checked_labels(labels)
    count = partition.number_of_clients
    sizes = partition.sizes(_evenly_spaced(count, _SIZES_LOOKED_AT))
    looked_at = _evenly_spaced(count, _LABELS_LOOKED_AT).tolist()
    return PartitionSummary(
        kind=partition.kind,
        number_of_clients=count,
        samples_min=int(sizes.min()),
        samples_median=float(np.median(sizes)),
        samples_max=int(sizes.max()),
        labels_mean=float(
            np.mean([len(np.unique(labels[partition.indices(i)])) for i in looked_at])
        ),
    )


def _by_owner(kind: PartitionKind, owner: Int64s, ids: ClientIds) -> Disjoint:
    """Make the partition in which sample `s` belongs to `owner[s]`; -1 is nobody."""
    order = np.argsort(owner, kind="stable")
    offsets = np.searchsorted(owner[order], np.arange(len(ids) + 1))
    return Disjoint(kind, ids, _compact(order), offsets.astype(np.int64))


def _give_to_the_empty(owner: Int64s, number_of_clients: int, rng: np.random.Generator) -> None:
    """Move single samples, in place, from whoever has most to those who have none."""
    sizes = np.bincount(owner, minlength=number_of_clients)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    shuffled = rng.permutation(len(owner))
    shuffled = shuffled[np.argsort(owner[shuffled], kind="stable")]
    ends = np.cumsum(sizes)
    richest = [(-int(size), client) for client, size in enumerate(sizes) if size > 1]
    heapq.heapify(richest)
    for client in empty:
        size, donor = richest[0]
        ends[donor] -= 1
        owner[shuffled[ends[donor]]] = client
        heapq.heapreplace(richest, (size + 1, donor))


def _deal(per_label: Int64s, number_of_clients: int, rng: np.random.Generator) -> list[Int64s]:
    """Deal each label's shards to clients; give, per label, the client of each shard.

    Clients get equally many, up to one. A label that has as many shards left as there are clients
    left must be dealt now; other labels are drawn in proportion to their shards. So nobody is
    dealt a label twice, save labels with more shards than there are clients.
    """
    everybody, left = np.divmod(per_label, number_of_clients)
    hands, larger_hands = divmod(int(left.sum()), number_of_clients)
    order = rng.permutation(number_of_clients)
    # The largest of these keys are a draw without replacement, weighted by the shards left
    # (Efraimidis and Spirakis 2006).
    luck = -rng.standard_exponential((number_of_clients, len(per_label)))
    dealt: list[list[int]] = [[] for _ in per_label]
    for turn, client in enumerate(order):
        hand = hands + (turn < larger_hands)
        clients_left = number_of_clients - turn
        with np.errstate(divide="ignore"):
            keys = luck[turn] / left
        keys[left >= clients_left] = 1.0
        for label in np.argsort(-keys, kind="stable")[:hand]:
            dealt[label].append(int(client))
            left[label] -= 1
    return [
        np.concatenate([np.tile(order, extra), np.array(some, dtype=np.int64)])
        for extra, some in zip(everybody, dealt, strict=True)
    ]


def _apportion(
    quotas: NDArray[np.floating[Any]], total: int, *, least: int = 0, most: Int64s | None = None
) -> Int64s:
    """Round quotas to whole numbers that sum to `total`, by largest remainder, within bounds."""
    bound = np.full(len(quotas), total, dtype=np.int64) if most is None else most
    shares: Int64s = np.clip(np.floor(quotas).astype(np.int64), least, bound)
    while missing := total - int(shares.sum()):
        step = 1 if missing > 0 else -1
        movable = np.flatnonzero(shares < bound if step > 0 else shares > least)
        first = np.argsort(-step * (quotas - shares)[movable], kind="stable")[: abs(missing)]
        shares[movable[first]] += step
    return shares


def _compact(positions: Int64s) -> Integers:
    """Halve the memory of positions that 32 bits can hold."""
    return positions.astype(np.int32) if len(positions) < 1 << 31 else positions


def _evenly_spaced(count: int, most: int) -> Int64s:
    looked_at = min(count, most)
    return np.arange(looked_at, dtype=np.int64) * count // looked_at


def _checked_labels(labels: ArrayLike) -> Int64s:
    array = np.asarray(labels)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu" or array.min() < 0:
        raise PartitionError(
            "labels are a list of integers from 0 on, one for each sample, "
            f"found {array.dtype} of shape {array.shape}"
        )
    checked: Int64s = array.astype(np.int64, copy=False)
    return checked


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
    _check_clients(number_of_clients)
    if number_of_clients > samples:
        raise TooManyClients(number_of_clients, samples)


def _check_clients(number_of_clients: int) -> None:
    if number_of_clients < 1:
        raise PartitionError(f"a partition has 1 client at least, found {number_of_clients}")


def _check_beta(beta: float) -> None:
    if not (np.isfinite(beta) and beta > 0):
        raise PartitionError(f"beta is a number above 0, found {beta!r}")


def _check_index(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise IndexError(f"clients are numbered from 0 to {count - 1}, found {index}")


def _checked_indices(indices: ArrayLike, count: int) -> Int64s:
    clients: Int64s = np.asarray(indices, dtype=np.int64)
    if clients.size and not (clients.min() >= 0 and clients.max() < count):
        wrong = clients[(clients < 0) | (clients >= count)][0]
        raise IndexError(f"clients are numbered from 0 to {count - 1}, found {wrong}")
    return clients
