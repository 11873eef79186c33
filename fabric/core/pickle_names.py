"""Keeps old module names importable, for what crosses between processes of different versions.

Pickles and Ray's jobs contain module names. Objects with `travels` are pickled under a permanent
one, and importing it gives the present module.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, TypeVar

NAMED = {
    "fedpilot.fabric.core.cluster_state": "fedpilot.fabric.core.books",
    "fedpilot.fabric.core.places.request": "fedpilot.fabric.core.admission",
    "fedpilot.fabric.inside.submission": "fedpilot.fabric.submission",
    "fedpilot.fabric.jobs.confine": "fedpilot.fabric.confine",
    "fedpilot.fabric.jobs.confined": "fedpilot.fabric.confined",
    "fedpilot.fabric.manager.actor": "fedpilot.fabric.manager_actor",
    "fedpilot.fabric.manager.rpc": "fedpilot.fabric.calling",
    "fedpilot.fabric.manager.routing.messages": "fedpilot.fabric.router",
    "fedpilot.fabric.manager.settings": "fedpilot.fabric.settings",
}
"""The permanent name of each module here."""
_MODULE_OF = {name: module for module, name in NAMED.items()}

C = TypeVar("C", bound=Callable[..., Any])
R = TypeVar("R")


def travels(thing: C) -> C:
    """Pickle a function, or a class and its methods, under its module's permanent name.

    cloudpickle looks in `sys.modules` whether others can import it; otherwise it sends its code.
    """
    here, name = thing.__module__, NAMED[thing.__module__]
    sys.modules.setdefault(name, sys.modules[here])
    functions = filter(inspect.isfunction, vars(thing).values())
    own = [each for each in functions if each.__module__ == here]  # enum and dataclasses add theirs
    for each in (thing, *own):
        each.__module__ = name
    return thing


def reads_older(record: type[R]) -> type[R]:
    """Let a frozen dataclass read pickles of versions that had fewer fields, all of them first.

    Older versions read the pickles of newer ones anyway: they leave out the fields at the end.
    """
    known = fields(record)  # type: ignore[arg-type]

    def __setstate__(self: R, values: Sequence[Any]) -> None:
        for i, each in enumerate(known):
            given = values[i] if i < len(values) else each.default
            object.__setattr__(self, each.name, given)

    record.__setstate__ = __setstate__  # type: ignore[attr-defined]
    return record


class _Finder(MetaPathFinder, InspectLoader):
    """Finds the present modules by their permanent names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in _MODULE_OF else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(_MODULE_OF[module.__name__])

    def get_code(self, fullname: str) -> CodeType:
        """The code for `python -m`: run the present module as `__main__`."""
        module = _MODULE_OF[fullname]
        run = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        code: CodeType = compile(run, fullname, "exec")
        return code

    def get_source(self, fullname: str) -> str | None:
        return None


def install() -> None:
    """Make the permanent names importable."""
    sys.meta_path.append(_Finder())
