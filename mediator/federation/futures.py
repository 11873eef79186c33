"""Futures made of calls and of other futures; each ends, even after a failure."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Params = ParamSpec("Params")
First = TypeVar("First")
Second = TypeVar("Second")


def done(act: Callable[Params, First], *args: Params.args, **named: Params.kwargs) -> Future[First]:
    """Call a function now; return a future of its result or error."""
    try:
        result = act(*args, **named)
    except Exception as error:
        return failed(error)
    future: Future[First] = Future()
    future.set_result(result)
    return future


def in_future(act: Callable[Params, First]) -> Callable[Params, Future[First]]:
    """Make a function return a future of its result or error."""

    @wraps(act)
    def acted(*args: Params.args, **named: Params.kwargs) -> Future[First]:
        return done(act, *args, **named)

    return acted


def failed(error: BaseException) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def then(first: Future[First], act: Callable[[First], Second]) -> Future[Second]:
    """Apply a function to a future's result; the new future fails if either does."""
    return followed(first, lambda result: done(act, result))


def followed(first: Future[First], act: Callable[[First], Future[Second]]) -> Future[Second]:
    """Chain a function that returns a future; the new future fails if either does."""
    second: Future[Second] = Future()

    def begin(ended: Future[First]) -> None:
        try:
            settle_as(act(ended.result()), second)
        except BaseException as error:
            second.set_exception(error)

    first.add_done_callback(begin)
    return second


def settle_as(first: Future[First], future: Future[First]) -> None:
    """Make a future end like another."""

    def settle(ended: Future[First]) -> None:
        try:
            future.set_result(ended.result())
        except BaseException as error:
            future.set_exception(error)

    first.add_done_callback(settle)
