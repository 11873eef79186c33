"""Derives the clients that an order is about; an answer may count and name no others.

A site derives its clients from (seed, round) and the share in the order. The coordinator derives
them too, to check the answer. It cannot do so for groups over data at sites: there it accepts any
clients, but no more than the order asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from .groups import ClientGroups
from .partitions.partition import UnknownClient
from .sampling import Indices, cohort, evaluation_cohort
from .shares import Mask, Share, held

IndexOf = Callable[[str], int]
"""Client id -> place in the population; raises UnknownClient."""
SamplesOf = Callable[[Indices], Indices]
"""Places in the population -> samples of each client; -1 where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Members:
    """The clients of one order."""

    mask: Mask
    """One flag per place of the cohort, (whole,)."""
    clients: Indices | None
    """Their places in the population, ascending; None if unknown."""
    index_of: IndexOf
    each_once: bool
    """Whether a full answer counts each client exactly once; not so for groups."""
    samples_of: SamplesOf | None = None
    equal: bool = False
    """Whether each client weighs 1 in a sum, and not its samples."""

    def covered(self, covered: Mask | None, refused: Iterable[str]) -> tuple[Indices | None, int]:
        """The clients in an answer's sum (None if unknown), and how many it refused without a name.

        `covered` are the clients of the cohort that the answer is about; None means all members. A
        client that a group refused in one step may be in the sum of another step.
        """
        if self.clients is None:
            return None, 0
        clients = self.clients if covered is None else self.clients[covered[self.mask]]
        if not self.each_once:
            return clients, 0
        places = self.places(refused)
        return clients[~np.isin(clients, places)], int(np.count_nonzero(places < 0))

    def samples(self, clients: Indices | None) -> Indices | None:
        """Samples of each client, -1 where unknown; None if unknown for all."""
        if self.samples_of is None or clients is None:
            return None
        known = np.where(clients < 0, 0, clients)
        return np.where(clients < 0, -1, self.samples_of(known))

    def places(self, ids: Iterable[str]) -> Indices:
        """Places of clients in the population; -1 for an unknown id."""
        return np.array([self._place(name) for name in ids], dtype=np.int64)

    @property
    def most(self) -> int:
        """The most clients that an answer may be about."""
        return int(np.count_nonzero(self.mask))

    def among(self, counted: Mask) -> Members:
        """The members that counted when the round ran before."""
        mask = self.mask & counted
        clients = None if self.clients is None else self.clients[mask[self.mask]]
        return replace(self, mask=mask, clients=clients)

    def stranger(self, ids: Iterable[str], *, may_be_unknown: bool = False) -> str | None:
        """The first id that is no member's. `may_be_unknown` accepts ids that no client has."""
        if self.clients is None:
            return None
        names = list(ids)
        places = self.places(names)
        strange = ~np.isin(places, self.clients)
        if may_be_unknown:
            strange &= places >= 0
        return names[int(np.argmax(strange))] if strange.any() else None

    def _place(self, client_id: str) -> int:
        try:
            return self.index_of(client_id)
        except UnknownClient:
            return -1


class Membership:
    """Derives the members of every order of a run."""

    def __init__(
        self,
        *,
        population: int,
        asked: int,
        seed: int,
        index_of: IndexOf,
        groups: ClientGroups | None = None,
        known: bool = True,
        samples_of: SamplesOf | None = None,
        equal: bool = False,
    ) -> None:
        """`asked`: clients per round; with groups, all clients. `known` is false for groups whose
        clients only their sites know; `equal` is true where each client weighs 1.
        """
        self._equal = equal
        self._samples_of = samples_of
        self._population, self._asked, self._seed = population, asked, seed
        self._index_of = index_of
        self._groups = groups
        self._known = known
        self._last: tuple[int, Indices] = 0, np.zeros(0, np.int64)

    def of(self, round_number: int, share: Share) -> Members:
        """The members of a round's cohort that are in a share."""
        if not self._known:
            return self._made(np.ones(self._asked, dtype=bool), None, each_once=False)
        if self._groups is not None:
            whose = np.flatnonzero(held(self._groups.places, share))
            clients = self._groups.clients(whose)
            mask = np.zeros(self._asked, dtype=bool)
            mask[clients] = True
            return self._made(mask, clients, each_once=False)
        whole = self._cohort(round_number)
        mask = held(whole, share)
        return self._made(mask, whole[mask], each_once=True)

    def samples(self, clients: Indices) -> Indices | None:
        """Samples of each of these clients; None if unknown."""
        return None if self._samples_of is None else self._samples_of(clients)

    def judged_samples(self, round_number: int, share: Share, size: int, kind: str) -> Indices:
        """Samples of each client in a share that evaluates a round's model; -1 if unknown.

        `size` clients evaluate it: the round's cohort (`sampled`), a `fraction`, or `all`.
        """
        if self._samples_of is None:
            return np.array([-1])
        match kind:
            case "sampled":
                judges = self._cohort(round_number)
            case "fraction":
                judges = evaluation_cohort(self._population, size, self._seed, round_number)
            case _:
                judges = np.arange(self._population, dtype=np.int64)
        return self._samples_of(judges[held(judges, share)])

    def _made(self, mask: Mask, clients: Indices | None, *, each_once: bool) -> Members:
        return Members(
            mask=mask,
            clients=clients,
            index_of=self._index_of,
            each_once=each_once,
            samples_of=self._samples_of,
            equal=self._equal,
        )

    def _cohort(self, round_number: int) -> Indices:
        if self._last[0] != round_number:
            drawn = cohort(self._population, self._asked, self._seed, round_number)
            self._last = round_number, drawn
        return self._last[1]
