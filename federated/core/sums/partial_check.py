"""Checks a site's answer before the coordinator adds it to the others': a site may fail or lie.

A sum does not show how its clients were trained. The checks cover the rest: the answer is a finite
sum over this model, on this round's grid, within its own bounds, and of no clients but those in the
order. The coordinator refuses any other answer as a whole, names the site and goes on without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from ...errors import FederatedError
from ..population.cohort_members import Members
from ..population.sampling import Indices
from ..population.shares import Mask, unpacked
from ..state import Array, Roles, State, averaged, counters, under
from ..topology.mixing import UNIT
from .amounts import AnswerRefused, check_bounds, check_judged, check_weight, largest, shown
from .partial import RANGE_BITS, Partial, Tally

LONGEST_ID = 512
"""Characters of a client's id."""
LONGEST_NUMBER = 400
"""Digits of a bound or a sum of metrics; honest ones have some dozens."""
TALLIES = (4, 5)
"""Lengths of a tally: the fifth sum, samples without a loss, is optional."""
LONGEST_DIGEST = 128
"""Characters of the digest of a client's tensor."""


class LimitExceeded(AnswerRefused):
    """A site added more to a round than the run's config allows."""

    def __init__(self, reason: str) -> None:
        FederatedError.__init__(self, reason)
        self.what = self.found = self.wanted = self.reason = reason

    def __str__(self) -> str:
        return self.reason


def checked_partial(
    header: Mapping[str, Any],
    tensors: Mapping[str, Array],
    *,
    exponents: Mapping[str, int],
    model: State,
    roles: Roles,
    members: Members,
    all_of_them: bool,
    keeps_updates: bool,
) -> Partial:
    """The Partial in an answer about `members` alone; raises AnswerRefused.

    With `all_of_them` the site may not leave out any member.
    """
    told = header.get("partial")
    if not isinstance(told, Mapping):
        _refuse("the partial", shown(told), "an object")
    kinds = {"exponents": Mapping, "bounds": Mapping, "refused": list, "tally": list}
    for name, kind in kinds.items():
        if not isinstance(told.get(name), kind):
            _refuse(f"`{name}`", shown(told.get(name)), "as a partial has it")
    weight, counted = (_count(told.get(name), f"`{name}`") for name in ("weight", "clients"))
    refused = told["refused"]
    if not all(isinstance(each, str) and len(each) <= LONGEST_ID for each in refused):
        _refuse("`refused`", "a list with something else in it", "ids of clients")
    _check_number(counted + len(refused), members, all_of_them)
    if (stranger := members.stranger(refused, may_be_unknown=True)) is not None:
        _refuse("`refused`", f"with {stranger!r:.60}", "clients that it was asked for")
    wanted = {} if keeps_updates else dict(exponents)
    if dict(told["exponents"]) != wanted:
        _refuse("the grid", "another one", "that of this round's model")
    tally = checked_tally(told["tally"])
    for name in ("training_seconds", "busy_seconds"):
        _seconds(header.get(name), f"`{name}`")
    if members.equal:
        squares = header.get("squares")
        if type(squares) is not int or not 0 <= squares < 10**LONGEST_NUMBER:
            _refuse("`squares`", shown(squares), "a whole number")
    _check_updates(told, tensors, model, roles, counted, keeps_updates)
    _check_owners(told, weight, members)
    _check_digests(header.get("digests"), model, members)
    bounds = {name: _bound(told["bounds"][name], name) for name in told["bounds"]}
    partial = Partial.from_wire({**told, "bounds": bounds}, tensors)
    partial.weight, partial.clients, partial.tally = weight, counted, tally
    _check_sums(partial, model, wanted)
    _check_counters(partial, model, roles)
    strange = [n for n in tensors if n[:4] not in ("sum/", "max/", "all/")]
    if strange:
        _refuse("a tensor", f"{strange[0]!r}", "one of a partial")
    _check_amounts(partial, header, model, members, all_of_them)
    return partial


def _check_amounts(
    partial: Partial,
    header: Mapping[str, Any],
    model: State,
    members: Members,
    all_of_them: bool,
) -> None:
    """Check the weight and the bounds of a Partial in the right form.

    In groups the trained clients are unknown: a Partial may weigh as much as all together.
    """
    says = None if all_of_them or "covered" not in header else checked_covered(header, members)
    clients, unnamed = members.covered(says, partial.refused)
    if members.each_once and says is None and not all_of_them:
        clients = None  # unknown as yet
    check_weight(
        partial.weight,
        partial.tally,
        equal=partial.clients if members.equal else None,
        each_once=members.each_once,
        samples=members.samples(clients),
        unnamed=unnamed,
    )
    if rows := header["partial"].get("updates"):
        samples = members.samples(members.places(row[0] for row in rows))
        for at, row in enumerate(rows):
            its = None if samples is None else samples[at : at + 1]
            check_weight(row[1], checked_tally(row[2:]), each_once=True, samples=its)
    check_bounds(partial, model, parts=UNIT if members.equal else 1)


def checked_covered(header: Mapping[str, Any], members: Members) -> Mask:
    """The clients of the cohort in an answer, (whole,), from its bitmap; raises AnswerRefused.

    The answer's Partial must be checked before.
    """
    told = header.get("covered")
    if not isinstance(told, str):
        _refuse("`covered`", shown(told), "a bitmap")
    try:
        covered = unpacked(told, len(members.mask))
    except FederatedError as error:
        raise AnswerRefused("`covered`", f"{told!r:.60}", "a bitmap of the cohort") from error
    if (covered & ~members.mask).any():
        _refuse("`covered`", "with other clients", "of those that it was asked for")
    partial = header["partial"]
    counted = partial["clients"] + len(partial["refused"])
    found = int(np.count_nonzero(covered))
    if members.each_once and found != counted:
        _refuse("`covered`", f"a bitmap of {found} clients", f"the {counted} that it counts")
    return covered


def checked_judges(header: Mapping[str, Any], most: int) -> int:
    """How many clients evaluated a model, from a site's answer; raises AnswerRefused."""
    found = _count(header.get("clients"), "the number of clients")
    if found > most:
        _refuse("the number of clients", f"{found}", f"at most {most}")
    return found


def checked_judged(sums: object, samples: Indices | None) -> Tally:
    """The tally of an evaluation on clients with these samples; raises AnswerRefused."""
    tally = checked_tally(sums)
    check_judged(tally, samples)
    return tally


def checked_tally(sums: object) -> Tally:
    """The tally in a site's answer; raises AnswerRefused."""
    if not isinstance(sums, list) or len(sums) not in TALLIES:
        _refuse("a tally", shown(sums), "four or five sums")
    samples, correct, loss, not_finite, untold = (*sums, 0)[:5]
    for value in (samples, correct, not_finite, untold):
        _count(value, "a sum of samples")
    if not isinstance(loss, int) or isinstance(loss, bool) or loss.bit_length() > LONGEST_NUMBER:
        _refuse("the sum of losses", shown(loss), "a whole number")
    if max(correct, not_finite, untold) > samples:
        found = f"{correct} right, {not_finite} not finite, {untold} untold of {samples}"
        _refuse("a tally", found, "at most all of them each")
    return Tally(samples, correct, loss, not_finite, untold)


def _check_number(clients: int, members: Members, all_of_them: bool) -> None:
    if all_of_them and members.each_once and clients != members.most:
        _refuse("the number of clients", f"{clients}", f"{members.most}")
    if clients > members.most:
        _refuse("the number of clients", f"{clients}", f"at most {members.most}")


def _check_owners(told: Mapping[str, Any], weight: int, members: Members) -> None:
    """Check that updates are of clients in the order that were not refused."""
    if (rows := told.get("updates")) is None:
        return
    ids = [row[0] for row in rows]
    if (stranger := members.stranger(ids)) is not None:
        _refuse("an update", f"of {stranger!r:.60}", "one of a client that it was asked for")
    if both := set(ids) & set(told["refused"]):
        _refuse("a client", f"{min(both)!r:.60}, refused and not refused", "one of both")
    if weight != sum(row[1] for row in rows):
        _refuse("`weight`", f"{weight}", "the sum of its updates' weights")


def _check_digests(told: object, model: State, members: Members) -> None:
    """Check optional digests of clients' models: client -> tensor name -> digest."""
    if not isinstance(told, Mapping):
        _refuse("`digests`", shown(told), "an object of clients")
    for tensors in told.values():
        if not isinstance(tensors, Mapping) or not tensors.keys() <= model.keys():
            _refuse("`digests`", shown(tensors), "the model's tensors by name")
        if not all(
            isinstance(each, str) and len(each) <= LONGEST_DIGEST for each in tensors.values()
        ):
            _refuse("`digests`", shown(tensors), "the digest of each tensor")
    if len(told) > members.most:
        _refuse("`digests`", f"of {len(told)} clients", f"at most {members.most}")
    if (stranger := members.stranger(told)) is not None:
        _refuse("`digests`", f"with {stranger!r:.60}", "clients that it was asked for")


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
        if largest(total) > bound:
            _refuse(f"the sum of {name}", "larger than its bound", f"at most {bound}")
    if set(partial.sums) - set(partial.bounds):
        _refuse("a sum", "one without a bound", "one with it")
    if partial.clients and set(partial.bounds) != set(exponents):
        lacking = sorted(set(exponents) - set(partial.bounds))
        _refuse("the sums", f"without {', '.join(lacking[:3])}", "of all tensors that are summed")


def _check_counters(partial: Partial, model: State, roles: Roles) -> None:
    for name, most in partial.largest.items():
        if name not in counters(roles):
            _refuse("a counter", f"{name!r}", "one that the model has")
        _like(most, model[name].dtype, model[name].shape, f"the counter {name}")


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
        _refuse("`updates`", shown(rows), f"a list of {clients}")
    for row in rows:
        if not isinstance(row, list) or len(row) - 2 not in TALLIES or not isinstance(row[0], str):
            _refuse("an update", shown(row), "an id, a weight and a tally")
        _count(row[1], "the weight of an update")
        checked_tally(row[2:])
    if len({row[0] for row in rows}) != len(rows):
        _refuse("`updates`", "one client twice", "each once")
    stacked = under("all/", tensors)
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
        _refuse(what, shown(value), "a whole number of at least 0")
    return value


def _bound(value: object, name: str) -> int:
    if not isinstance(value, str) or len(value) > LONGEST_NUMBER or not value.isdecimal():
        _refuse(f"the bound of {name}", shown(value), "the digits of a whole number")
    return int(value)


def _seconds(value: object, what: str) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        _refuse(what, shown(value), "seconds")


def _refuse(what: str, found: str, wanted: str) -> NoReturn:
    raise AnswerRefused(what, found, wanted)
