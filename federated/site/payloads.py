"""What headers say: an order's round and execution, and the tally of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpilot.mediator import Payload

from ..core.execution.facts import Execution, ExecutionKind
from ..core.population.shares import part_name, taken
from ..core.sums.partial import Tally
from ..engine.journal import RoundKey


def key_of(header: Mapping[str, Any]) -> RoundKey:
    """The round of an order, and the part of its cohort that the order is about."""
    part = part_name(taken(header["share"]), header.get("counted") or "")
    return RoundKey(header["round"], header["model"], header["coarser"], part)


def execution_of(header: Mapping[str, Any]) -> Execution:
    """The execution that an order names."""
    kind, chunk_size = header["execution"]
    return Execution(ExecutionKind(kind), chunk_size)


def tallied(tally: Tally, **facts: int | str) -> Payload:
    """The answer that tells a tally."""
    return Payload(kind="tally", header={"tally": tally.to_json(), **facts})
