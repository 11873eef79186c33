"""A text is read to the same values by libyaml, by PyYAML, and by earlier versions of fedpilot."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from config_files import yaml_like
from fedpilot.common.strict_yaml import reading
from fedpilot.common.strict_yaml.errors import BadFile

READ_BEFORE = Path(__file__).parent / "read_before.json"
"""Texts with the `repr` of what fedpilot 0.1 read from them with ruamel.yaml, null if refused."""


def read_or_refused(text: str) -> str | None:
    try:
        document = reading.read(text, str)
    except BadFile:
        return None
    return None if document.problems else repr(document.value)


def test_texts_are_read_as_before() -> None:
    cases = json.loads(READ_BEFORE.read_text(encoding="utf-8"))
    differ = [text for text, value in cases if read_or_refused(text) != value]
    assert len(cases) > 400
    assert differ == []


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029"])
def test_only_line_feeds_and_carriage_returns_end_a_line(separator: str) -> None:
    document = reading.read(f'a: "one{separator}two"\nb: three{separator}four', str)
    assert document.value == {"a": f"one{separator}two", "b": f"three{separator}four"}
    assert document.lines["b",] == 2


@settings(max_examples=300, deadline=None)
@example("---\n...\n...\n")
@example("---\n ")
@given(yaml_like | st.text(max_size=60))
def test_a_large_text_is_read_as_a_small_one(text: str) -> None:
    """libyaml reads large texts: to the same values, lines and problems."""

    def told(large: int) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "LARGE", large)
            try:
                return repr(reading.read(text, str))
            except BadFile as refused:
                return str(refused)

    assert told(0) == told(sys.maxsize)


def test_the_error_survives_pickling() -> None:
    error = BadFile.about("site.yaml", "a folder", "a file")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.problems) == (BadFile, str(error), error.problems)
