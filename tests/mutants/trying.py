"""Tests run against a mutant: in a copy of the tree, in a process group of their own, with an end.

The working tree is never changed. A copy serves one mutant after the other.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from .covering import ROOT
from .drawing import shells
from .patches import Mutant, Place, find

TEST_S = 90.0
"""How long one test may take. A mutant whose test hangs is killed by that."""
ALL_S = 900.0
"""How long the tests of one mutant may take together."""
PRODUCTS = {"build", "dist", "runs", "site"}
"""Folders at the top of the tree that a copy does not need."""
TESTS_FAILED, INTERRUPTED, NOTHING_RAN = 1, 2, {3, 4, 5}


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    HUNG = "killed by time-out"
    EXPLAINED = "explained"
    SURVIVED = "survived"
    LOST = "lost"
    UNTESTED = "its tests do not run"


@dataclass(frozen=True)
class Tried:
    """How the tests went."""

    fate: Fate
    seconds: float
    failed: tuple[str, ...]
    output: str


def place_in(root: Path, mutant: Mutant, shells: Mapping[str, str]) -> Place:
    """The place of a mutant among the shells, or in its own file, which may be in a core now."""
    own = root / mutant.path
    there = {mutant.path: own.read_text()} if own.is_file() else {}
    return find(mutant, {**shells, **there})


class Copy:
    """A copy of the tree, in which one file at a time is changed."""

    def __init__(self, root: Path = ROOT) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name) / "tree"

        def left_out(folder: str, names: list[str]) -> set[str]:
            hidden = {each for each in names if each.startswith((".", "__pycache__"))}
            return hidden | (PRODUCTS & {*names} if Path(folder) == root else set())

        shutil.copytree(root, self.root, symlinks=True, ignore=left_out)
        self._running: subprocess.Popen[str] | None = None

    def stop(self) -> None:
        """End the tests that run, from another thread."""
        if self._running is not None:
            _end(self._running)

    def close(self) -> None:
        """Remove it."""
        self._folder.cleanup()

    @cached_property
    def sources(self) -> dict[str, str]:
        """The shells of the tree."""
        return shells(self.root)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The mutant's change, inside. Lost if its place is not there."""
        place = place_in(self.root, mutant, self.sources)
        self._write(place.path, place.after)
        try:
            yield
        finally:
            self._write(place.path, place.before)

    def _write(self, path: str, text: str) -> None:
        """Python would take bytecode for current that is of the same second and size."""
        file = self.root / path
        file.write_text(text)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def run(self, tests: Sequence[str], *options: str) -> Tried:
        """Run tests until one fails."""
        folder = tempfile.mkdtemp(prefix="m", dir="/tmp")  # sockets in it need a short path
        os.chmod(folder, 0o755)  # PostgreSQL runs as another user
        environment = {**os.environ, "TMPDIR": folder, "PYTHONPATH": str(self.root / "src")}
        environment.pop("TESTS_TMPDIR", None)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "--tb=short"]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
        command += [f"--timeout={TEST_S}", "-m", "not soak", *options]
        began = time.monotonic()
        self._running = process = subprocess.Popen(
            [*command, *tests],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        hung = False
        try:
            output, _ = process.communicate(timeout=ALL_S)
        except subprocess.TimeoutExpired:
            hung, output = True, ""
        finally:
            _end(process)
            process.wait()
            self._running = None
            shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - began
        failed = tuple(re.findall(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - |$)", output, re.M))
        return Tried(_fate(process.returncode, hung, output), seconds, failed, output)


def _end(process: subprocess.Popen[str]) -> None:
    """End the tests, and what they have left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _fate(status: int, hung: bool, output: str) -> Fate:
    if hung or re.search(r"^E?\s*Failed: Timeout|\+ Timeout \+", output, re.M):
        return Fate.HUNG
    if status == 0:
        return Fate.SURVIVED
    if status in NOTHING_RAN:
        return Fate.UNTESTED
    return Fate.KILLED


def where(test: str, root: Path) -> str:
    """A test's id, in the file that it is in now; unchanged if it is in none, or several."""
    path, _, name = test.partition("::")
    if (root / path).is_file():
        return test
    function = name.split("::")[-1].split("[")[0]
    found = [
        file
        for file in sorted((root / "tests").rglob("test_*.py"))
        if f"def {function}(" in (text := file.read_text()) and _has(text, function)
    ]
    return f"{found[0].relative_to(root)}::{name}" if len(found) == 1 else test


def _has(source: str, function: str) -> bool:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(n, kinds) and n.name == function for n in ast.walk(ast.parse(source)))


def try_out(copy: Copy, mutant: Mutant, tests: Iterable[str] | None = None) -> Tried:
    """Run a mutant's own tests, or those named, against it."""
    named = [where(test, copy.root) for test in (mutant.tests if tests is None else tests)]
    with copy.mutated(mutant):
        return copy.run(named)
