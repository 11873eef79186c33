"""Futures that never stay open: of several parts, done already, or failed by a callback's error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fedpilot.mediator import Payload

Answer = Future[Payload]


def settled(payload: Payload) -> Answer:
    answer: Answer = Future()
    answer.set_result(payload)
    return answer


def gathered(parts: list[Future[Any]], finish: Callable[[list[Any]], Payload]) -> Answer:
    """The answer made of several results, or the first error among them."""
    answer: Answer = Future()
    open_ = itertools.count(len(parts) - 1, -1)

    def one_done(done: Future[Any]) -> None:
        left = next(open_)
        done.result()
        if left == 0:
            answer.set_result(finish([part.result() for part in parts]))

    if not parts:
        answer.set_result(finish([]))
    for part in parts:
        part.add_done_callback(lambda done: or_fail(answer, lambda: one_done(done)))
    return answer


def or_fail(answer: Answer, act: Callable[[], None]) -> None:
    """Do something in a callback, where an error would be logged and forgotten."""
    try:
        act()
    except BaseException as error:
        if not answer.done():
            answer.set_exception(error)
