"""Every Python of a job imports this module on start, since its folder is on the path.

It wraps Ray as soon as Ray is imported, and runs the user's own `sitecustomize`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _WhenRayComes(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "ray":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("ray")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _wrap()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap() -> None:
    """Wrap Ray. If that fails, Ray can still be imported, but `ray.init` refuses it by `hook`."""
    try:
        from fedpilot.fabric import inside  # the script's Python may have another version

        inside.install()
    except Exception as error:
        print(f"fedpilot: this Ray cannot work in a virtual cluster: {error}", file=sys.stderr)


def _others() -> None:
    """Run the `sitecustomize` that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("FEDPILOT_VIRTUAL_CLUSTER"):
    sys.meta_path.insert(0, _WhenRayComes())
_others()
