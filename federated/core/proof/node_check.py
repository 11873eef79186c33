"""Checks a site's answers about single VirtualNodes.

As in a round, an impossible answer is refused and named, and the site takes no further part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..lifecycle import NodeState
from ..state import Array, State
from ..sums.partial_check import AnswerRefused, checked_tally

LONGEST_TEXT = 2_000
LONGEST_TRAIL = 1_000


def check_node(
    kind: str, header: Mapping[str, Any], tensors: Mapping[str, Array], model: State
) -> None:
    """Raise AnswerRefused for what cannot be the answer to an order of this kind.

    `model` is one of the federation: what a client became is shaped like it. What an aggregation
    gives depends on what the user sent along.
    """
    match kind:
        case "node.show":
            _check_shown(header)
        case "node.train":
            checked_tally(header.get("tally"))
            _check_like(tensors, model)
        case "node.evaluate":
            checked_tally(header.get("tally"))


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
            raise AnswerRefused(f"`{name}`", _value_in_short(header.get(name)), "as a node has it")


def _is_text(told: Any) -> bool:
    return isinstance(told, str)


def _is_trail(told: Any) -> bool:
    return isinstance(told, list) and len(told) <= LONGEST_TRAIL and all(map(_is_step, told))


def _is_step(told: Any) -> bool:
    return (
        isinstance(told, list)
        and len(told) == 3
        and type(told[0]) in (int, float)
        and math.isfinite(told[0])
        and _is_text(told[1])
        and _is_text(told[2])
    )


def _check_like(tensors: Mapping[str, Array], model: State) -> None:
    for name in sorted(tensors.keys() | model.keys()):
        wanted, found = (_shape(each.get(name)) for each in (model, tensors))
        if found != wanted:
            raise AnswerRefused(f"tensor {name!r:.60}", found, wanted)


def _shape(array: Array | None) -> str:
    return "missing" if array is None else f"of shape {array.shape}"


def _value_in_short(told: Any) -> str:
    return "missing" if told is None else f"{told!r:.60}"
