"""Finds the source of the user's own modules and their imports, without running any of it.

A site decides whether code may run before the code runs. Modules are looked for in folders, as
Python would look. Modules of Python and installed ones are not the user's own. Of a package all
modules are taken; of a plain folder, those that are named or imported.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import os
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

from ...config.schema import RunConfig
from ...core.user_code.code_archive import ENDING, INSTALLED, RESERVED

NAMING = (
    "model.model_type",
    "data.dataset_type",
    "training.loss_function",
    "training.client_update",
    "federation.topology",
    "graph.adapt",
    "federation.assignment",
)
"""The keys that may name code by dotted path, in the order of its digest."""
LOSSES = "torch.nn.functional"
"""A module whose functions are safe as losses: they only ever get two tensors."""
COMPILED = "is compiled"
PARSES = 5
"""Attempts to parse a file when the interpreter fails, not the file."""
_PACKAGE = "__init__.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of some modules."""

    files: Mapping[str, bytes]
    """The user's own source files, by their path below a folder on Python's search path."""
    unsendable: Mapping[str, str]
    """Needed files that are no source, by path, with the reason."""


def named(config: RunConfig) -> dict[str, str]:
    """By key: the name in the config, for keys that may name code."""
    return {key: said for key in NAMING if (said := _said(config, key))}


def _said(config: RunConfig, key: str) -> str | None:
    """What a config says of a key; None also if it has no such section."""
    section, _, name = key.partition(".")
    found: str | None = getattr(getattr(config, section), name, None)
    return found


def own_code(config: RunConfig) -> tuple[str, ...]:
    """The modules that the config names by dotted path, in the order of its digest."""
    paths = named(config).values()
    return tuple(module for path in paths for module, colon, _ in [path.partition(":")] if colon)


def installed_code(config: RunConfig, files: Iterable[str] = ()) -> tuple[str, ...]:
    """Modules that the config names by dotted path outside an archive's files, sorted.

    PyTorch's own losses need no permission and are left out.
    """
    there = tuple(files)
    paths = {
        path
        for key, path in named(config).items()
        for module, colon, name in [path.partition(":")]
        if colon and not_among(there, [module]) and not _harmless(key, module, name)
    }
    return tuple(sorted(paths))


def _harmless(key: str, module: str, name: str) -> bool:
    public = name.isidentifier() and not name.startswith("_")
    return key == "training.loss_function" and module == LOSSES and public


def import_paths(config: object, search: Iterable[str] = ()) -> tuple[str, ...]:
    """Folders for the user's own modules that Python does not search, in order.

    The working folder, the folder of the config if it is a file, and those of `search`.
    """
    folders = [Path.cwd()]
    if isinstance(config, str | Path):
        folders.append(Path(config).resolve().parent)
    folders += [Path(folder) for folder in search]
    return tuple(dict.fromkeys(str(folder) for folder in folders))


def digest_of(modules: Iterable[str], search: Sequence[str] | None = None) -> str:
    """SHA-256 over the source of modules, searched in folders (Python's own by default)."""
    sha = hashlib.sha256()
    for module in modules:
        sha.update(f"{module}\0{source(module, search)}\0".encode())
    return sha.hexdigest()


def source(module: str, search: Sequence[str] | None = None) -> str:
    """The text of a module's file; empty if there is none. Imports nothing.

    For a loaded module that is in no folder, the text that Python has. A module without a source
    file counts as empty, so its digest is that of no known code.
    """
    *_, (_, spec) = _chain(module, sys.path if search is None else search)
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


def is_there(module: str, search: Sequence[str]) -> bool:
    """Whether a module is loaded or in a folder."""
    *_, (_, spec) = _chain(module, search)
    return spec is not None or module in sys.modules


def sources(modules: Iterable[str], search: Sequence[str] | None = None) -> Sources:
    """The user's own files of these modules and of their imports, from folders."""
    PathFinder.invalidate_caches()  # to find files written just now
    collecting = _Collecting(sys.path if search is None else search)
    for module in modules:
        collecting.add(module)
    return Sources(files=collecting.files, unsendable=collecting.unsendable)


def not_among(files: Iterable[str], modules: Iterable[str]) -> tuple[str, ...]:
    """The modules without a file among these."""
    there = set(files)
    return tuple(
        module
        for module in modules
        if not {f"{module.replace('.', '/')}{end}" for end in (ENDING, f"/{_PACKAGE}")} & there
    )


class _Collecting:
    def __init__(self, search: Sequence[str]) -> None:
        self._search = search
        kinds = ("stdlib", "platstdlib", "purelib", "platlib")
        self._pythons = [Path(sysconfig.get_path(kind)).resolve() for kind in kinds]
        self._followed: set[str] = set()
        self._packages: set[str] = set()
        self.files: dict[str, bytes] = {}
        self.unsendable: dict[str, str] = {}

    def add(self, module: str) -> None:
        """Take a module and its imports, if they are the user's own."""
        waiting = [module]
        while waiting:
            name = waiting.pop()
            if name not in self._followed:
                self._followed.add(name)
                waiting += self._taken(name)

    def _taken(self, module: str) -> Iterator[str]:
        """Take the files of one name; yields the names that they import."""
        for name, spec in _chain(module, self._search):
            if spec is None or name == "fedpilot":
                return
            if spec.origin is None:
                continue  # a folder that is no package
            path, place = Path(spec.origin), name.replace(".", "/")
            if not self._own(path):
                return
            if name in RESERVED:
                self.unsendable[place] = "has the name of a module of Python's own"
            elif not path.exists():
                self.unsendable[place] = f"lies inside of {path.parent.name}"
            elif path.name == _PACKAGE:
                yield from self._package(path.parent, place)
            elif path.suffix == ENDING:
                yield from self._file(path, f"{place}{ENDING}")
            else:
                self.unsendable[f"{place}{''.join(path.suffixes)}"] = COMPILED
            return

    def _package(self, folder: Path, place: str) -> Iterator[str]:
        """All modules of a package, however they are imported; follows links but no loops."""
        if place in self._packages:
            return
        self._packages.add(place)
        seen: set[str] = set()
        for here, folders, names in os.walk(folder, followlinks=True):
            real = os.path.realpath(here)
            folders[:] = sorted(each for each in folders if each.isidentifier())
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            below = "/".join([place, *Path(here).relative_to(folder).parts])
            for name in sorted(names):
                path = Path(here, name)
                if name.endswith(ENDING) and path.stem.isidentifier():
                    yield from self._file(path, f"{below}/{name}")
                elif name.endswith(tuple(EXTENSION_SUFFIXES)):
                    self.unsendable[f"{below}/{name}"] = COMPILED

    def _file(self, path: Path, place: str) -> Iterator[str]:
        if place in self.files:
            return
        try:
            content = path.read_bytes()
        except OSError as error:
            self.unsendable[place] = f"cannot be read: {error.strerror or error}"
            return
        self.files[place] = content
        yield from imports(content, place)

    def _own(self, path: Path) -> bool:
        """Whether a file is outside the folders of Python and its installers."""
        real = path.resolve()
        parts = {*path.parts, *real.parts}
        return not INSTALLED & parts and not any(map(real.is_relative_to, self._pythons))


def imports(content: bytes, place: str) -> Iterator[str]:
    """The names that a file imports (`from a import b` as `a.b` too); none if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come again at import
            tree = _parsed(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = place.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level > len(package):
                continue
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
            yield base


def _parsed(content: bytes) -> ast.Module:
    """Parse a file. In CPython 3.11 threads that parse at once may disturb each other.

    The interpreter then reports a wrong depth (python/cpython#106905).
    """
    for _ in range(PARSES - 1):
        with suppress(SystemError):
            return ast.parse(content)
    return ast.parse(content)


def _chain(module: str, search: Sequence[str]) -> Iterator[tuple[str, ModuleSpec | None]]:
    """The specs of a module's packages and of the module; imports none of them.

    The last spec is None if a part of the name does not exist.
    """
    folders: Sequence[str] | None = list(search)
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        # By its full name, a folder that is no package would have to be imported.
        spec = None if folders is None else PathFinder.find_spec(part, folders)
        yield name, spec
        if spec is None:
            return
        there = spec.submodule_search_locations
        folders = None if there is None else list(there)
