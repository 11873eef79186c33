"""Configs as files, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from fedpilot.federated.config import load_config
from fedpilot.federated.errors import ConfigError, Problem

GOOD = """\
run:
  random_seed: 7
federation:
  number_of_clients: 50
  clients_per_round: 20
model:
  model_type: mlp
data:
  dataset_type: digits
training:
  learning_rate: 1e-3
"""


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "x.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def problems(folder: Path, text: str | bytes, *overrides: str) -> tuple[Problem, ...]:
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    for problem in caught.value.problems:
        assert problem.key
        assert problem.found
        assert problem.allowed
        assert str(problem).isprintable() or "\n" in str(problem)
    return caught.value.problems


def tail(where: str) -> str:
    """`x.yaml:3` of `/tmp/.../x.yaml:3`."""
    return where.rpartition("/")[2]


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


WHOLE = "a whole number of at least 1"

MINIMAL: dict[str, Any] = {
    "federation": {"number_of_clients": 5},
    "model": {"model_type": "mlp"},
    "data": {"dataset_type": "digits"},
}


def check_one_problem(
    folder: Path, text: str | bytes, expected: tuple[str, str, str, str, str]
) -> None:
    """Check that a file has this one problem: place, key, what is found, allowed and near."""
    (problem,) = problems(folder, text)
    where, key, found, allowed, nearest = expected
    assert (tail(problem.where), problem.key, problem.nearest) == (where, key, nearest)
    assert found in problem.found
    assert allowed in problem.allowed


yaml_like = st.lists(
    st.sampled_from(
        [
            *"[]{}:,-?*&!|>'\"%@`#\t\n .~0159",
            "\n  ",
            "\n- ",
            ": ",
            "---\n",
            "...\n",
            "<<: ",
            "\\U",
            "run",
            "model",
            "data:\n  ",
            "model_type",
            ".nan",
            "1e9",
            "!!int ",
            "%YAML 1.1\n",
        ]
    ),
    max_size=30,
).map("".join)
"""Texts of the characters and words that YAML gives a meaning."""
