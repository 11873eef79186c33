"""Finds the source of the user's own modules without running a line of it, and its digest.

Whoever decides whether code may run has to know it before it runs. A module is looked for in
folders, as Python would; what is not found there as a source file counts as empty, so that its
digest is that of no known code.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import sys
import tokenize
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from .config.schema import RunConfig


def own_code(config: RunConfig) -> tuple[str, ...]:
    """The modules that the configuration names by dotted path, in the order of its digest."""
    training = config.training
    named = (
        config.model.model_type,
        config.data.dataset_type or "",
        training.loss_function,
        training.client_update or "",
    )
    return tuple(module for path in named for module, colon, _ in [path.partition(":")] if colon)


def digest_of(modules: Iterable[str], search: Sequence[str] | None = None) -> str:
    """SHA-256 over the source of modules, looked for in folders (Python's own by default)."""
    sha = hashlib.sha256()
    for module in modules:
        sha.update(f"{module}\0{source(module, search)}\0".encode())
    return sha.hexdigest()


def source(module: str, search: Sequence[str] | None = None) -> str:
    """The text of a module's file; empty if there is none. Imports nothing.

    Of a module that is loaded already, and was not found in a folder, it is what Python knows.
    """
    spec = _found(module, sys.path if search is None else search)
    if spec is None and module in sys.modules:
        try:
            return inspect.getsource(sys.modules[module])
        except (OSError, TypeError):
            return ""
    if spec is None or spec.origin is None or not spec.has_location:
        return ""
    try:
        content = Path(spec.origin).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = io.TextIOWrapper(io.BytesIO(content), encoding, line_buffering=True).read()
    except (OSError, SyntaxError, ValueError):
        return ""
    return text if not text or text.endswith("\n") else f"{text}\n"


def _found(module: str, search: Sequence[str]) -> ModuleSpec | None:
    """A module's spec, by way of its packages, none of which is imported."""
    folders: Sequence[str] | None = list(search)
    spec: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        if folders is None:
            return None
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    return spec
