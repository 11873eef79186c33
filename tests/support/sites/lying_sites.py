"""Sites of one process whose answers to rounds are changed before they are handed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedpilot.mediator import InProcessSite, Payload
from fedpilot.mediator.federation.futures import then

Change = Callable[[Payload], Payload]


class LyingSite(InProcessSite):
    """A site that says something else than what it has trained."""

    about: ClassVar[str] = "round"
    """The kind of order that it lies about."""
    lies: ClassVar[Mapping[str, Change]] = {}
    """By site; the others are honest."""
    rounds: ClassVar[list[tuple[str, int]]] = []
    """The orders of rounds, as they came: which site, which round."""

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        answer = super().deliver(order, key, purpose)
        change = self.lies.get(self.name)
        if order.kind == "round":
            self.rounds.append((self.name, order.header["round"]))
        if order.kind != self.about or change is None:
            return answer
        return then(answer, change)


def partial(**changes: Any) -> Change:
    """Other values beside the sum; a function gets the old one."""

    def changed(answer: Payload) -> Payload:
        told = answer.header["partial"]
        new = {
            name: value(told[name]) if callable(value) else value for name, value in changes.items()
        }
        return replace(answer, header={**answer.header, "partial": {**told, **new}})

    return changed


def bounds(bound: int) -> Change:
    """Another bound of every tensor; the sums stay."""
    return partial(bounds=lambda told: dict.fromkeys(told, str(bound)))


def out_of_range(bound: int) -> Change:
    """Bounds that leave every range, with no sum, as it is where that is so."""
    return lambda answer: replace(bounds(bound)(answer), tensors={})


def sums(change: Callable[[Any], Any]) -> Change:
    """Another sum of every tensor."""
    return lambda answer: replace(
        answer, tensors={name: change(array) for name, array in answer.tensors.items()}
    )


def both(*changes: Change) -> Change:
    """One change after the other."""

    def changed(answer: Payload) -> Payload:
        for change in changes:
            answer = change(answer)
        return answer

    return changed


def heavy(samples: int) -> Change:
    """So many samples, and a tally that says so too."""
    return partial(weight=samples, tally=lambda told: [samples, *told[1:]])


def huge(number: int) -> Change:
    """Every number of every sum is this one, and the bounds allow it."""
    return both(sums(lambda a: np.full(a.shape, number, np.int64)), bounds(number))


TEN: Mapping[str, Change] = {
    "counts": heavy(10**15),
    "fewer": partial(clients=1),
    "infinite": partial(tally=lambda told: [*told[:3], 1]),
    "nan": sums(lambda a: np.full(a.shape, np.nan)),
    "near": bounds(1 << 61),
    "nearer": bounds((1 << 62) - 1),
    "range": out_of_range(1 << 63),
    "sums": huge(1 << 61),
    "unreal": bounds(1 << 300),
    "weight": partial(weight=10**15),
}
"""Ten ways to own a model or to spoil a round."""
SLY = ("near", "nearer", "sums")
"""Those that only a limit finds: their answers might be right."""
