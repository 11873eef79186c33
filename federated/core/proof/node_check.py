"""Checks a site's answers about single VirtualNodes.

As in a round, an impossible answer is refused and named, and the site takes no further part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..lifecycle import NodeState
from ..state import Array, State, digest
from ..sums.amounts import AnswerRefused, shown
from ..sums.partial_check import checked_tally

LONGEST_TEXT = 2_000
LONGEST_TRAIL = 1_000


def check_node(
    kind: str,
    asked: Mapping[str, Any],
    header: Mapping[str, Any],
    tensors: Mapping[str, Array],
    model: State,
) -> None:
    """Raise AnswerRefused for an impossible answer to an order of this kind; `asked` is its header.

    `model` is one of the federation, whose types and shapes a trained or published model must have.
    The result of an aggregation depends on what the user sent.
    """
    for name in ("keys", "readers"):
        if not isinstance(told := header.get(name, []), list):
            raise AnswerRefused(f"`{name}`", shown(told), "a list")
    match kind:
        case "node.show":
            _check_shown(header)
        case "node.train":
            checked_tally(header.get("tally"))
            check_like(tensors, model)
        case "node.evaluate":
            checked_tally(header.get("tally"))
        case "node.give" if "readers" in header:
            check_like(tensors, model)
            if (found := digest(tensors)) != asked["digest"]:
                raise AnswerRefused("the state", found[:12], asked["digest"][:12])


def _check_shown(header: Mapping[str, Any]) -> None:
    checks: Mapping[str, Callable[[Any], bool]] = {
        "state": lambda told: isinstance(told, str) and told in list(NodeState),
        "worker": _is_text,
        "reason": _is_text,
        "samples": lambda told: told is None or (type(told) is int and told >= 0),
        "trail": _is_trail,
    }
    for name, holds in checks.items():
        if name not in header or not holds(header[name]):
            raise AnswerRefused(f"`{name}`", shown(header.get(name)), "as a node has it")


def _is_text(told: Any) -> bool:
    return isinstance(told, str)


def _is_trail(told: Any) -> bool:
    return isinstance(told, list) and len(told) <= LONGEST_TRAIL and all(map(_is_step, told))


def _is_step(told: Any) -> bool:
    match told:
        case [int() | float() as at, str(), str()]:
            return isinstance(told, list) and not isinstance(at, bool) and math.isfinite(at)
    return False


def check_like(tensors: Mapping[str, Array], model: State) -> None:
    """Raise AnswerRefused for tensors of other names, types or shapes than a model's."""
    for name in sorted(tensors.keys() | model.keys()):
        wanted, found = (_shape(each.get(name)) for each in (model, tensors))
        if found != wanted:
            raise AnswerRefused(f"tensor {name!r:.60}", found, wanted)


def _shape(array: Array | None) -> str:
    return "missing" if array is None else f"{array.dtype} of shape {array.shape}"
