"""When modules are imported: a package's as late as possible, a command's all at once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def many_imports() -> Iterator[None]:
    """Search for no garbage: what modules create stays, and each search looks through all of it.

    A tenth of the time in which a command starts went into that.
    """
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, which imports a name's module on first use (PEP 562).

    `modules` has the module of each name, within the package.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{modules[name]}", package), name)

    return get
