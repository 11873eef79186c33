"""What is written is read back, and a file whose keys are set keeps its comments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.common.strict_yaml.reading import read
from fedpilot.common.strict_yaml.writing import with_keys, written

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
BLOCK = """\
# mine
training:
  execution: auto  # as fast as can be
  execution_reason: >-
    it was
    faster
  learning_rate: 0.1

# the end
model: {model_type: mlp}
"""


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_what_is_written_is_read_back(values: dict[str, Any]) -> None:
    text = written(values)
    assert (read(text, str).value or {}) == values
    assert "\n..." not in text


def test_keys_of_a_block_are_set_added_and_removed() -> None:
    changed = with_keys(
        BLOCK, "training", {"execution": "folded", "chunk_size": 8}, without=["execution_reason"]
    )
    assert changed == (
        "# mine\n"
        "training:\n"
        "  chunk_size: 8\n"
        "  execution: folded  # as fast as can be\n"
        "  learning_rate: 0.1\n"
        "\n"
        "# the end\n"
        "model: {model_type: mlp}\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "model: {model_type: mlp}",
        "training:\nmodel: 1\n",
        "training: # mine\n",
        "training: {execution: auto, execution_reason: fast}  # mine\nmodel: 1\n",
        "training: {}\n",
        "training:\n    execution_reason: fast",
        "training:\n  execution_reason: |\n    fast\nmodel: 1",
        '{"training": {"execution": auto}}',
    ],
)
def test_every_form_of_a_section_can_be_set(text: str) -> None:
    before = read(text, str).value or {}
    changed = with_keys(text, "training", {"execution": "folded"}, without=["execution_reason"])
    assert read(changed, str).value == {**before, "training": {"execution": "folded"}}
    assert ("# mine" in text) == ("# mine" in changed)
