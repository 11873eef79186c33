"""The starter file loads as it is, explains every key, and every key in it can be uncommented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedpilot.common.strict_yaml.wording import all_keys
from fedpilot.federated.config import RunConfig, load_config, starter
from fedpilot.federated.errors import ConfigError

ROOT = Path(__file__).parents[3]
COMMENTED = re.compile(r"( *)#(\w+:.*)")
LINES = starter().splitlines()
CAN_BE_UNCOMMENTED = [number for number, line in enumerate(LINES) if COMMENTED.fullmatch(line)]


def load(folder: Path, lines: list[str]) -> None:
    path = folder / "starter.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    load_config(path)


def test_the_starter_is_the_quickstart(tmp_path: Path) -> None:
    path = tmp_path / "starter.yaml"
    path.write_text(starter(), encoding="utf-8")
    assert load_config(path) == load_config(ROOT / "configs" / "quickstart.yaml")


def test_every_key_is_there_with_its_meaning_above_it() -> None:
    shown = [line.strip().lstrip("#") for line in LINES]
    for key in all_keys(RunConfig):
        assert any(line.startswith(f"{key.name}:") for line in shown), key.path
    text = " ".join(line.strip().removeprefix("#").strip() for line in LINES)
    for key in all_keys(RunConfig):
        assert key.meaning in text, key.path


def test_no_line_is_wide() -> None:
    assert max(map(len, LINES)) <= 100


@pytest.mark.parametrize("number", CAN_BE_UNCOMMENTED, ids=lambda n: LINES[n].strip())
def test_a_key_can_be_uncommented(tmp_path: Path, number: int) -> None:
    """A rule between keys may then be broken; the key and its value are right."""
    lines = list(LINES)
    lines[number] = COMMENTED.sub(r"\1\2", lines[number])
    depth = len(lines[number]) - len(lines[number].lstrip())
    if depth == 4:
        above = max(n for n in range(number) if re.match(r"  #\w+:$", lines[n]))
        lines[above] = lines[above].replace("#", "")
    try:
        load(tmp_path, lines)
    except ConfigError as error:
        rules = ("has no effect", "both `", "with", "neither")
        assert [p for p in error.problems if not any(r in p.found for r in rules)] == []  # noqa: PT017


def test_an_example_of_ones_own_is_written() -> None:
    text = starter({"model": {"model_type": "mine:Net"}, "data": {"dataset_type": "npz"}})
    assert '  model_type: "mine:Net"\n' in text
    assert "  #rounds: 10\n" in text
