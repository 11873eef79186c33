"""The reference pages on disk are what the code says now."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from fedpilot.common.strict_yaml.wording import all_keys
from fedpilot.federated.config import RunConfig

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_config_page_is_up_to_date(generate: ModuleType) -> None:
    on_disk = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    assert on_disk == generate.config_page(), "run `python docs/generate.py`"


def test_all_pages_are_up_to_date() -> None:
    # In a process of its own: click keeps the help option of the first context a command met.
    found = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check", "--only", "reference"],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, f"run `python docs/generate.py`\n{found.stdout}{found.stderr}"


def test_every_key_and_its_meaning_is_on_the_page(generate: ModuleType) -> None:
    page = generate.config_page()
    for key in all_keys(RunConfig):
        assert f"`{key.name}`" in page
        assert key.meaning.replace("|", "\\|") in page


def test_the_help_of_every_command_that_is_shown_is_on_the_page(generate: ModuleType) -> None:
    @click.group()
    def main() -> None:
        """The whole."""

    @main.group()
    def part() -> None:
        """A part."""

    @part.command()
    @click.option("--depth", help="How deep.")
    def inner(depth: str) -> None:
        """The inside."""

    @part.command(hidden=True)
    def secret() -> None:
        """Not shown."""

    context = click.Context(main, info_name="fedpilot")
    page = "\n".join(generate._command(main, context))
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "## `fedpilot`",
        "## `fedpilot part`",
        "## `fedpilot part inner`",
    ]
    assert "How deep." in page


def test_every_exit_code_has_a_section() -> None:
    page = (DOCS / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    for code in (0, 1, 2, 3, 4, 130):
        assert f"\n## {code}: " in page
