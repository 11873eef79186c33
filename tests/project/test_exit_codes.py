"""The exit code of an error is the one that its package's docs say, and a command ends with it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from fedpilot import cli
from fedpilot.common.host import exit_codes
from fedpilot.common.host.exit_codes import exit_code_of

MODULES = [
    "fedpilot.fabric.errors",
    "fedpilot.mediator.errors",
    "fedpilot.mediator.identity.errors",
    "fedpilot.federated.errors",
]
CODES = {value for value in vars(exit_codes).values() if isinstance(value, int)}


def errors(module: str) -> dict[str, type[Exception]]:
    found = vars(importlib.import_module(module)).values()
    return {e.__name__: e for e in found if isinstance(e, type) and issubclass(e, Exception)}


@pytest.mark.parametrize("module", MODULES)
def test_every_error_has_a_code_that_is_documented(module: str) -> None:
    assert {1, 2, 3, 4, 75, 130} == CODES
    for error in errors(module).values():
        assert exit_code_of(error) in CODES - {130}, error


@pytest.mark.parametrize("module", MODULES[1:])
def test_the_tree_in_the_docs_of_a_module_says_the_code_of_each(module: str) -> None:
    tree = importlib.import_module(module).__doc__ or ""
    said = {
        match["name"]: int(match["code"])
        for match in re.finditer(r"^[│├└─ ]*(?P<name>[A-Z]\w+) .*\(exit (?P<code>\d)\)", tree, re.M)
    }
    assert said
    found = errors(module)
    assert said == {name: exit_code_of(found[name]) for name in said}


def test_an_error_that_is_not_ours_has_no_code() -> None:
    assert exit_code_of(ValueError("x")) is None
    assert exit_code_of(SystemExit(3)) is None


def test_ctrl_c_at_any_moment_of_a_command_has_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "loaded", lambda target: interrupted)
    assert CliRunner().invoke(cli.main, ["check"]).exit_code == exit_codes.INTERRUPTED


ENDS = """
import atexit, sys
from fedpilot import cli
from fedpilot.__main__ import command

class Dismantled:
    def __del__(self, write=sys.__stderr__.write):
        write("Python was taken apart")

kept = Dismantled()
cli.outlive_readers = lambda: atexit.register(print, "what is registered was called")
sys.argv = ["fedpilot", *{words}]
command()
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["check", "no-such-file"], 2)])
def test_a_command_ends_its_process_at_once(words: list[str], code: int) -> None:
    program = [sys.executable, "-c", ENDS.format(words=words)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.endswith("what is registered was called\n")
    assert "taken apart" not in ended.stderr
