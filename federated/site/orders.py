"""Reads and writes the headers of orders and answers, and keeps futures from staying open."""

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
    """An order's round, and the part of the cohort that it is about."""
    part = part_name(taken(header["share"]), header.get("counted") or "")
    return RoundKey(header["round"], header["model"], header["coarser"], part)


def execution_of(header: Mapping[str, Any]) -> Execution:
    """The execution in an order."""
    kind, chunk_size = header["execution"]
    return Execution(ExecutionKind(kind), chunk_size)


def tallied(tally: Tally, **facts: int | str) -> Payload:
    """An answer with a tally."""
    return Payload(kind="tally", header={"tally": tally.to_json(), **facts})


def or_fail(answer: Answer, act: Callable[[], None]) -> None:
    """Run a callback whose error becomes the answer instead of a log line."""
    try:
        act()
    except BaseException as error:
        if not answer.done():
            answer.set_exception(error)
