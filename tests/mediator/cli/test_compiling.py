"""A site's machine compiles beside its agent, once, and is left alone when the agent ends."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedpilot.mediator.cli import compiling
from fedpilot.mediator.cli.compiling import compile_ahead, mark


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_it_compiles_where_nothing_was_compiled(tmp_path: Path) -> None:
    made = tmp_path / "made"
    script = f"import os; open({str(made)!r}, 'w').write(str(os.nice(0)))"
    with ExitStack() as undo:
        process = compile_ahead(undo, [sys.executable, "-c", script])
        assert process is not None
        assert process.wait(60) == 0
    assert int(made.read_text()) == min(os.nice(0) + 10, 19)


def test_it_does_not_compile_again() -> None:
    mark().parent.mkdir()
    mark().touch()
    with ExitStack() as undo:
        assert compile_ahead(undo, ["there is no such program"]) is None


def test_what_still_compiles_ends_with_the_agent() -> None:
    with ExitStack() as undo:
        process = compile_ahead(undo, [sys.executable, "-c", "import time; time.sleep(600)"])
        assert process is not None
        assert process.poll() is None
    assert process.returncode is not None


def test_a_machine_that_cannot_start_it_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with ExitStack() as undo:
        assert compile_ahead(undo, ["/there/is/no/such/program"]) is None


def test_each_installation_compiles_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    here = compiling.mark()
    monkeypatch.setattr(compiling, "__file__", "/elsewhere/compiling.py")
    assert compiling.mark() != here
