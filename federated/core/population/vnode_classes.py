"""Decides which client belongs to which vnode class.

The rules:

* a client is in one class: the first whose pattern its id or its column's value matches; else one
  drawn by shares, if classes have some; else the one that takes all that are left;
* a draw is a function of the seed and the client's id alone, so each machine that knows a client
  finds the same class, and no other client matters;
* a client's class is found when it is asked for, and kept: 2 bytes for each client of the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate

import numpy as np
from numpy.typing import NDArray

from ..randomness import Purpose, client_keys, one_per_key
from .groups import most_frequent
from .partitions.partition import Partition
from .sampling import Indices

UNKNOWN, NOWHERE = -1, -2
"""In the place of a class: not looked up yet; no class takes the client."""
_SHARES = 1 << 32
"""A draw is a whole number below this one."""
_AT_ONCE = 1 << 16
"""Clients that are looked up together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRule:
    """Which clients a vnode class takes; one without any of these takes all that are left."""

    name: str
    ids: tuple[str, ...] = ()
    """Glob patterns of client ids."""
    column: str | None = None
    values: tuple[str, ...] = ()
    """Glob patterns of that column's values."""
    share: float | None = None
    """Of the clients that no pattern takes."""

    @property
    def takes_the_rest(self) -> bool:
        return not self.ids and self.column is None and self.share is None


class ClientClasses:
    """The vnode class of each client, by its position among the rules."""

    def __init__(
        self,
        rules: Sequence[ClassRule],
        partition: Partition,
        columns: Mapping[str, NDArray[np.str_]],
        seed: int,
        here: range,
    ) -> None:
        """`columns` are those of the samples of the partition, which are `here`."""
        self.names = tuple(rule.name for rule in rules)
        self._rules, self._partition, self._seed = tuple(rules), partition, seed
        self._here = here
        self._columns = {
            rule.column: np.unique(columns[rule.column], return_inverse=True)
            for rule in rules
            if rule.column is not None
        }
        self._known: NDArray[np.int16] = np.full(
            partition.number_of_clients, UNKNOWN, dtype=np.int16
        )

    def of(self, clients: Indices) -> NDArray[np.int16]:
        """The class of each of these clients, (k,); `NOWHERE` if none takes it."""
        unknown = clients[self._known[clients] == UNKNOWN]
        for start in range(0, len(unknown), _AT_ONCE):
            some = unknown[start : start + _AT_ONCE]
            self._known[some] = self._found(some)
        return self._known[clients]

    def name_of(self, client: int) -> str:
        """The name of a client's class."""
        return self.names[int(self.of(np.array([client]))[0])]

    def by_class(self, clients: Indices) -> list[tuple[str, Indices]]:
        """The classes of these clients, in their order, and which of the clients each has."""
        found = self.of(clients)
        parts = ((name, np.flatnonzero(found == at)) for at, name in enumerate(self.names))
        return [(name, at) for name, at in parts if len(at)]

    def first_left_out(self) -> int | None:
        """The first client here that no class takes."""
        if any(rule.takes_the_rest or rule.share is not None for rule in self._rules):
            return None
        for some in self._blocks():
            if len(lost := np.flatnonzero(self.of(some) == NOWHERE)):
                return int(some[lost[0]])
        return None

    def without_clients(self) -> tuple[str, ...]:
        """The classes that have none of the clients here."""
        missing = dict.fromkeys(range(len(self.names)))
        for some in self._blocks():
            for found in np.unique(self.of(some)).tolist():
                missing.pop(found, None)
            if not missing:
                break
        return tuple(self.names[at] for at in missing)

    def _blocks(self) -> Iterator[Indices]:
        """The clients here, some at a time."""
        for start in range(self._here.start, self._here.stop, _AT_ONCE):
            yield np.arange(start, min(start + _AT_ONCE, self._here.stop), dtype=np.int64)

    def _found(self, clients: Indices) -> NDArray[np.int16]:
        found = np.full(len(clients), NOWHERE, dtype=np.int16)
        ids: list[str] | None = None
        for at, rule in enumerate(self._rules):
            open_ = np.flatnonzero(found == NOWHERE)
            if not len(open_):
                return found
            if rule.ids:
                ids = ids or list(map(self._partition.client_id, clients.tolist()))
                matches = matcher(rule.ids)
                hit = [place for place in open_.tolist() if matches(ids[place])]
            elif rule.column is not None:
                hit = open_[self._has_value(rule, clients[open_])].tolist()
            else:
                continue
            found[hit] = at
        left = np.flatnonzero(found == NOWHERE)
        if len(left):
            found[left] = self._of_the_rest(clients[left])
        return found

    def _has_value(self, rule: ClassRule, clients: Indices) -> NDArray[np.bool_]:
        values, codes = self._columns[rule.column or ""]
        kinds = most_frequent(codes.astype(np.int64), self._partition, clients)
        matches = matcher(rule.values)
        return np.array([matches(value) for value in values.tolist()], dtype=bool)[kinds]

    def _of_the_rest(self, clients: Indices) -> NDArray[np.int16]:
        rest = next((at for at, rule in enumerate(self._rules) if rule.takes_the_rest), None)
        shared = [(at, rule.share) for at, rule in enumerate(self._rules) if rule.share is not None]
        found = np.full(len(clients), NOWHERE if rest is None else rest, dtype=np.int16)
        if not shared:
            return found
        keys = client_keys(list(map(self._partition.client_id, clients.tolist())))
        drawn = one_per_key(self._seed, Purpose.VNODE_CLASS, keys, _SHARES)
        ends = np.cumsum([share for _, share in shared])
        if rest is None:
            ends[-1] = 1.0  # shares of 1 / 3 leave no client out
        places = np.searchsorted(np.round(ends * _SHARES).astype(np.int64), drawn, side="right")
        inside = places < len(shared)
        found[inside] = np.array([at for at, _ in shared], dtype=np.int16)[places[inside]]
        return found


def by_class(classes: ClientClasses | None, clients: Indices) -> list[tuple[str | None, Indices]]:
    """The vnode classes of some clients, and the places of the clients of each.

    Without classes, all are of None.
    """
    if classes is None:
        return [(None, np.arange(len(clients), dtype=np.int64))] if len(clients) else []
    return [(name, at) for name, at in classes.by_class(clients)]


def matcher(patterns: Sequence[str]) -> Callable[[str], object]:
    """Whether a text matches one of some glob patterns, as a function."""
    return re.compile("|".join(map(translate, patterns))).match
