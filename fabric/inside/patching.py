"""Wraps functions of Ray, also for modules that have already imported them.

A wrapped function has a mark, and no copy of this module wraps it again.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

originals: dict[str, Any] = {}
"""The original functions, by name; methods by class and name."""

_MARK = "_wrapped_by_fedpilot"


def wrap(cls: type[Any], name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method of a class, unless it is already wrapped."""
    original = getattr(cls, name)
    if hasattr(original, _MARK):
        return
    originals[f"{cls.__name__}.{name}"] = original

    def wrapped(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    wrapped.__name__, wrapped.__doc__ = name, original.__doc__
    setattr(wrapped, _MARK, True)
    setattr(cls, name, wrapped)


def reroute(function: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace the code of a function, for all modules that hold it; once."""
    inner = inspect.unwrap(function)
    if hasattr(inner, _MARK):
        return
    setattr(inner, _MARK, True)
    twin = types.FunctionType(
        inner.__code__, inner.__globals__, name, inner.__defaults__, inner.__closure__
    )
    twin.__kwdefaults__ = inner.__kwdefaults__
    originals[name] = twin
    inner.__globals__[f"_fedpilot_{name}"] = lambda *a, **k: wrapper(twin, *a, **k)
    source = f"def {name}(*args, **kwargs):\n    return _fedpilot_{name}(*args, **kwargs)\n"
    made: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), made)
    inner.__code__ = made[name].__code__
