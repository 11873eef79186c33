"""What the headers of orders and answers say, and futures that never stay open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from fedpilot.mediator import Payload

from ..core.execution.facts import Execution, ExecutionKind
from ..core.population.shares import part_name, taken
from ..core.sums.partial import Tally
from ..engine.journal import RoundKey

Answer = Future[Payload]


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


def or_fail(answer: Answer, act: Callable[[], None]) -> None:
    """Act in a callback, where an error would be logged and forgotten: it becomes the answer."""
    try:
        act()
    except BaseException as error:
        if not answer.done():
            answer.set_exception(error)
