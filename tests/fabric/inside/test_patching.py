"""Functions and methods that are wrapped for all who hold them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedpilot.fabric.inside.patching import originals, reroute, wrap


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = dict(originals)
    yield
    originals.clear()
    originals.update(before)


def passing(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A wrapper that adds nothing but a mark."""
    return "wrapped", original(*args, **kwargs)


def through(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator, as Ray's API has them."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def made() -> Callable[..., Any]:
    """A function with defaults of each kind, behind two decorators."""

    def add(a: int, b: int = 2, *, times: int = 3) -> int:
        return (a + b) * times

    return through(through(add))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        pytest.param((1,), {}, id="defaults"),
        pytest.param((1, 3), {"times": 2}, id="all given"),
        pytest.param((), {"a": 1, "b": 0}, id="by name"),
    ],
)
def test_who_holds_a_function_already_gets_the_new_one(
    args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    held, plain = made(), made()
    reroute(held, "add", passing)
    assert held(*args, **kwargs) == ("wrapped", plain(*args, **kwargs))
    assert originals["add"](*args, **kwargs) == plain(*args, **kwargs)


def test_a_method_takes_arguments_of_any_name() -> None:
    class Pool:
        def submit(self, call: Callable[..., Any], /, **kwargs: Any) -> Any:
            """Call it."""
            return call(**kwargs)

    wrap(Pool, "submit", passing)
    wrapped: Any = Pool().submit
    assert wrapped(dict, self=1) == ("wrapped", {"self": 1})
    assert wrapped.__doc__ == "Call it."


def test_a_method_that_is_wrapped_twice_is_wrapped_once() -> None:
    class Pool:
        def submit(self) -> str:
            return "done"

    wrap(Pool, "submit", passing)
    wrap(Pool, "submit", passing)
    assert Pool().submit() == ("wrapped", "done")  # type: ignore[comparison-overlap]


def test_a_function_that_is_rerouted_twice_is_rerouted_once() -> None:
    held = made()
    reroute(held, "add", passing)
    reroute(held, "add", passing)
    assert held(1) == ("wrapped", made()(1))
    assert originals["add"](1) == made()(1)
