"""Decides which clients form a group, and which clients of a group train in each of its steps.

The rules:

* groups follow from the config and the data alone, never from where clients are trained;
* every client is in one group, and a group has at least one client;
* the id of a group's first client keys the group's draws, so they depend neither on the other
  groups nor on the sites that take part;
* each group has a place in the population, the number of a client, and the site of that client
  trains the whole group. Places are spread evenly, so a site's groups match its share of clients;
* a step is one round inside a group. Every round has the same number of steps, and steps are
  numbered through the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..randomness import Purpose, UInt64s, stream
from .partitions.partition import Partition
from .sampling import Indices, share

CLIENTS_LOOKED_AT = 4096
"""Clients whose samples are looked up at a time."""
CLIENTS_OF_A_GROUP = 32
"""Clients from which a group's cost is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClientGroups:
    """The members of each group; groups are numbered from 0 in the order of their places."""

    names: tuple[str, ...]
    members: Indices
    """Clients by group, ascending within each group."""
    offsets: Indices
    """Where each group's clients begin in `members`, and the last one's end, (groups + 1,)."""
    places: Indices
    """Each group's place in the population, ascending, (groups,)."""
    keys: UInt64s
    """The random key of each group's first client, (groups,)."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> Indices:
        """Clients per group, (groups,)."""
        return np.diff(self.offsets)

    @property
    def firsts(self) -> Indices:
        """The first client of each group, (groups,)."""
        return self.members[self.offsets[:-1]]

    def of(self, group: int) -> Indices:
        """The clients of one group, ascending."""
        return self.members[self.offsets[group] : self.offsets[group + 1]]

    def clients(self, groups: Indices) -> Indices:
        """The clients of some groups, ascending."""
        found = [self.of(group) for group in groups.tolist()]
        return np.sort(np.concatenate([self.members[:0], *found]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """How the groups of a run train within its rounds."""

    per_round: int
    seed: int
    clients: int | None = None
    """The most clients of a group that train in a step; all if `rate` is None too."""
    rate: float | None = None
    """The same as a share of the group; at least one client."""

    def of_round(self, round_number: int) -> range:
        """The steps of a round; rounds and steps count from 1."""
        return range((round_number - 1) * self.per_round + 1, round_number * self.per_round + 1)

    def size(self, members: int) -> int:
        """How many of `members` clients train in a step."""
        if self.rate is not None:
            return share(members, self.rate)
        return members if self.clients is None else min(members, self.clients)

    def cohort(self, groups: ClientGroups, group: int, step: int) -> Indices:
        """The clients of a group that train in a step, ascending."""
        members = groups.of(group)
        size = self.size(len(members))
        if size == len(members):
            return members
        draw = stream(self.seed, Purpose.GROUP_COHORT, round=step, key=int(groups.keys[group]))
        return members[np.sort(draw.choice(len(members), size, replace=False))]

    def clients_of_step(self, groups: ClientGroups) -> int:
        """How many clients train in one step, over all groups."""
        return sum(map(self.size, groups.sizes.tolist()))

    def largest(self, groups: ClientGroups) -> int:
        """How many clients of the largest group train in a step."""
        return self.size(int(groups.sizes.max(initial=0)))

    def clients_of_round(self, groups: ClientGroups, round_number: int) -> Indices:
        """The clients that train in any step of a round, ascending."""
        steps = self.of_round(round_number)
        found = [self.cohort(groups, g, step) for g in range(len(groups)) for step in steps]
        return np.unique(np.concatenate([groups.members[:0], *found]))

    def costs(self, groups: ClientGroups, partition: Partition) -> NDArray[np.int64]:
        """Estimated samples that each group processes in a round, (groups,).

        Large groups are estimated from some of their clients: costs decide which worker trains a
        group and when, never the result.
        """
        members = [groups.of(group) for group in range(len(groups))]
        looked = [each[:: -(-len(each) // CLIENTS_OF_A_GROUP)] for each in members]
        counts = np.array([len(each) for each in looked], dtype=np.int64)
        sizes = partition.sizes(np.concatenate([groups.members[:0], *looked]))
        owners = np.repeat(np.arange(len(groups)), counts)
        held = np.bincount(owners, weights=sizes, minlength=len(groups)).astype(np.int64)
        taking = np.array([self.size(size) for size in groups.sizes.tolist()], dtype=np.int64)
        return held * taking * self.per_round // counts


def grouped(
    kinds: NDArray[np.int64], names: Sequence[str], partition: Partition, *, first: int = 0
) -> ClientGroups:
    """Group the clients `first`, `first + 1`, ... by their kinds, (clients,).

    `names` names each kind; a kind without clients makes no group.
    """
    order = np.argsort(kinds, kind="stable").astype(np.int64)
    there, counts = np.unique(kinds, return_counts=True)
    members = order + first
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ClientGroups(
        names=tuple(names[kind] for kind in there.tolist()),
        members=members,
        offsets=offsets,
        places=places(len(there), len(kinds)) + first,
        keys=partition.keys(members[offsets[:-1]]),
    )


def places(groups: int, clients: int) -> Indices:
    """Distinct numbers below `clients`, ascending and evenly spread, one per group.

    Their distances vary, so that they do not all fall to one site where clients are dealt in turn.
    """
    numbers = np.arange(groups, dtype=np.int64)
    if not groups:
        return numbers
    return numbers * clients // groups + numbers % (clients // groups)


def most_frequent(
    kinds: NDArray[np.int64], partition: Partition, clients: range | Indices
) -> NDArray[np.int64]:
    """The most frequent kind among each client's samples; the smallest on a tie, (clients,).

    `kinds` are those of all samples, from 0. A client without samples is of kind 0.
    """
    found = np.zeros(len(clients), dtype=np.int64)
    width = int(kinds.max(initial=0)) + 1
    for start in range(0, len(clients), CLIENTS_LOOKED_AT):
        some = np.asarray(clients[start : start + CLIENTS_LOOKED_AT], dtype=np.int64)
        rows, sizes = partition.rows(some)
        pairs = np.repeat(np.arange(len(some)), sizes) * width + kinds[rows]
        pairs, counts = np.unique(pairs, return_counts=True)
        owners = pairs // width
        order = np.lexsort((pairs, -counts, owners))
        owners, firsts = np.unique(owners[order], return_index=True)
        found[start + owners] = pairs[order][firsts] % width
    return found


def blocks(clients: int, count: int) -> NDArray[np.int64]:
    """The block of each client, where blocks are consecutive and nearly equal in size."""
    return np.arange(clients, dtype=np.int64) * count // clients
