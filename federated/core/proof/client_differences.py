"""Finds the clients whose bits differ between two sides after a round."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .state_differences import TensorDifference


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """A client's record after a round."""

    samples: int | None
    fingerprints: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDifference:
    """A client that differs between the sides."""

    client: str
    samples: tuple[int | None, int | None]
    tensors: tuple[TensorDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientComparison:
    """All clients of a round, on both sides."""

    compared: int
    differing: tuple[ClientDifference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the same clients ended in the same bits."""
        return not (self.differing or self.only_first or self.only_second)


def compare_clients(
    first: Mapping[str, ClientFacts], second: Mapping[str, ClientFacts]
) -> ClientComparison:
    """Compare client by client, in the order of their ids, `client_10` after `client_9`."""
    everyone = sorted(first.keys() | second.keys(), key=_natural)
    both = [client for client in everyone if client in first and client in second]
    found = (_difference(client, first[client], second[client]) for client in both)
    return ClientComparison(
        compared=len(both),
        differing=tuple(difference for difference in found if difference is not None),
        only_first=tuple(c for c in everyone if c in first and c not in second),
        only_second=tuple(c for c in everyone if c in second and c not in first),
    )


def _natural(client: str) -> list[tuple[int, str]]:
    """Sort key that orders ids by the numbers in them."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", client)
    ]


def _difference(client: str, one: ClientFacts, other: ClientFacts) -> ClientDifference | None:
    ours, theirs = one.fingerprints, other.fingerprints
    names = sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
    tensors = tuple(TensorDifference(name=name) for name in names)
    same_samples = None in (one.samples, other.samples) or one.samples == other.samples
    if not tensors and same_samples:
        return None
    return ClientDifference(client=client, samples=(one.samples, other.samples), tensors=tensors)
