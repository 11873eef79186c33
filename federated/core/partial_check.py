"""Check what a site hands up before it is added to what the others did: it may be broken, or lie.

How clients were trained nobody can see in a sum. Everything else can: that it is a sum over this
model on this round's grid, of no more clients than were asked, within its own bounds, finite. What
is not is refused as a whole and named, and the round goes on without that site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from ..errors import FederatedError
from .partial import RANGE_BITS, Partial, Tally
from .state import Array, Roles, State, averaged, counters

LONGEST_ID = 512
"""Characters of a client's id."""
LONGEST_NUMBER = 400
"""Digits of a bound or of a sum of metrics; honest ones have some dozens."""


class AnswerRefused(FederatedError):
    """A site handed up something that cannot be what it was asked for."""

    def __init__(self, what: str, found: str, wanted: str) -> None:
        super().__init__(what, found, wanted)
        self.what, self.found, self.wanted = what, found, wanted

    def __str__(self) -> str:
        return f"its answer is refused: {self.what} is {self.found}, wanted {self.wanted}"


def checked_partial(
    header: Mapping[str, Any],
    tensors: Mapping[str, Array],
    *,
    exponents: Mapping[str, int],
    model: State,
    roles: Roles,
    clients: int,
    keeps_updates: bool,
) -> Partial:
    """The Partial that an answer says, about `clients` at most; AnswerRefused."""
    told = header.get("partial")
    if not isinstance(told, Mapping):
        _refuse("the partial", _kind(told), "an object")
    kinds = {"exponents": Mapping, "bounds": Mapping, "refused": list, "tally": list}
    for name, kind in kinds.items():
        if not isinstance(told.get(name), kind):
            _refuse(f"`{name}`", _kind(told.get(name)), "as a partial has it")
    weight, counted = (_count(told.get(name), f"`{name}`") for name in ("weight", "clients"))
    refused = told["refused"]
    if not all(isinstance(each, str) and len(each) <= LONGEST_ID for each in refused):
        _refuse("`refused`", "a list with something else in it", "ids of clients")
    if counted + len(refused) > clients:
        _refuse("the number of clients", f"{counted + len(refused)}", f"at most {clients}")
    wanted = {} if keeps_updates else dict(exponents)
    if dict(told["exponents"]) != wanted:
        _refuse("the grid", "another one", "that of this round's model")
    tally = checked_tally(told["tally"])
    for name in ("training_seconds", "busy_seconds"):
        _seconds(header.get(name), f"`{name}`")
    _check_updates(told, tensors, model, roles, counted, keeps_updates)
    bounds = {name: _bound(told["bounds"][name], name) for name in told["bounds"]}
    partial = Partial.from_wire({**told, "bounds": bounds}, tensors)
    partial.weight, partial.clients, partial.tally = weight, counted, tally
    _check_sums(partial, model, wanted)
    _check_counters(partial, model, roles)
    strange = [n for n in tensors if n[:4] not in ("sum/", "max/", "all/")]
    if strange:
        _refuse("a tensor", f"{strange[0]!r}", "one of a partial")
    return partial


def checked_tally(sums: object) -> Tally:
    """The tally that a site's answer says; AnswerRefused."""
    if not isinstance(sums, list) or len(sums) != 4:
        _refuse("a tally", _kind(sums), "four sums")
    samples, correct, loss, not_finite = sums
    for value in (samples, correct, not_finite):
        _count(value, "a sum of samples")
    if not isinstance(loss, int) or isinstance(loss, bool) or loss.bit_length() > LONGEST_NUMBER:
        _refuse("the sum of losses", _kind(loss), "a whole number")
    if max(correct, not_finite) > samples:
        _refuse("a tally", f"{correct} right and {not_finite} not finite of {samples}", "at most")
    return Tally(samples, correct, loss, not_finite)


def _check_sums(partial: Partial, model: State, exponents: Mapping[str, int]) -> None:
    for name, bound in partial.bounds.items():
        if name not in exponents:
            _refuse("a bound", f"one of {name!r}", "of a tensor that is summed")
        if bound >= 1 << RANGE_BITS:
            continue  # the round is repeated on a coarser grid, and no sum of this one is used
        total = partial.sums.get(name)
        if total is None:
            _refuse(f"the sum of {name}", "missing", "there where it has a bound")
        _like(total, np.dtype(np.int64), model[name].shape, f"the sum of {name}")
        if max(int(total.max(initial=0)), -int(total.min(initial=0))) > bound:
            _refuse(f"the sum of {name}", "larger than its bound", f"at most {bound}")
    if set(partial.sums) - set(partial.bounds):
        _refuse("a sum", "one without a bound", "one with it")
    if partial.clients and set(partial.bounds) != set(exponents):
        lacking = sorted(set(exponents) - set(partial.bounds))
        _refuse("the sums", f"without {', '.join(lacking[:3])}", "of all tensors that are summed")


def _check_counters(partial: Partial, model: State, roles: Roles) -> None:
    for name, largest in partial.largest.items():
        if name not in counters(roles):
            _refuse("a counter", f"{name!r}", "one that the model has")
        _like(largest, model[name].dtype, model[name].shape, f"the counter {name}")


def _check_updates(
    told: Mapping[str, Any],
    tensors: Mapping[str, Array],
    model: State,
    roles: Roles,
    clients: int,
    keeps_updates: bool,
) -> None:
    rows = told.get("updates")
    if keeps_updates != (rows is not None):
        _refuse("the partial", "a sum" if keeps_updates else "a union of updates", "the other")
    if rows is None:
        return
    if not isinstance(rows, list) or len(rows) != clients:
        _refuse("`updates`", _kind(rows), f"a list of {clients}")
    for row in rows:
        if not isinstance(row, list) or len(row) != 6 or not isinstance(row[0], str):
            _refuse("an update", _kind(row), "an id, a weight and a tally")
        _count(row[1], "the weight of an update")
        checked_tally(row[2:])
    if len({row[0] for row in rows}) != len(rows):
        _refuse("`updates`", "one client twice", "each once")
    stacked = {name[4:]: array for name, array in tensors.items() if name.startswith("all/")}
    if set(stacked) != (set(averaged(roles)) if rows else set()):
        _refuse("the updates", "of other tensors", "of those that are averaged")
    for name, array in stacked.items():
        wide = np.float32 if model[name].dtype.itemsize < 4 else model[name].dtype
        _like(array, np.dtype(wide), (clients, *model[name].shape), f"the updates of {name}")
        if not np.isfinite(array).all():
            _refuse(f"the updates of {name}", "not finite", "finite numbers")


def _like(array: Array, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> None:
    if array.dtype != dtype or array.shape != shape:
        _refuse(what, f"{array.dtype} of shape {array.shape}", f"{dtype} of shape {shape}")


def _count(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << RANGE_BITS:
        _refuse(what, _kind(value), "a whole number of at least 0")
    return value


def _bound(value: object, name: str) -> int:
    if not isinstance(value, str) or len(value) > LONGEST_NUMBER or not value.isdecimal():
        _refuse(f"the bound of {name}", _kind(value), "the digits of a whole number")
    return int(value)


def _seconds(value: object, what: str) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        _refuse(what, _kind(value), "seconds")


def _kind(value: object) -> str:
    return "missing" if value is None else f"{value!r:.60}"


def _refuse(what: str, found: str, wanted: str) -> NoReturn:
    raise AnswerRefused(what, found, wanted)
