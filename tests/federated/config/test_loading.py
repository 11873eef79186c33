"""All that is wrong is told at once, in the order of the file; files that are right load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import yaml

from config_files import GOOD, changed, problems, tail, write
from fedpilot.common.strict_yaml.reading import read
from fedpilot.federated.config import RunConfig, load_config, parse_config
from fedpilot.federated.config.resolved import to_yaml
from fedpilot.federated.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_all_problems_are_told_in_the_order_of_the_file_and_then_of_the_overrides(
    tmp_path: Path,
) -> None:
    text = """\
training:
  optimizer: sdg
  batch_size: 0
  batch_size: 3
data:
  dataset_type: digits
  labels_per_client: 2
  dirichlet_beta: 1
federation:
  clients_per_round: 20
"""
    found = problems(tmp_path, text, "run.nam=x", "outputs.curves=maybe")
    assert [(tail(each.where), each.key) for each in found] == [
        ("x.yaml", "model"),
        ("x.yaml:2", "training.optimizer"),
        ("x.yaml:3", "training.batch_size"),
        ("x.yaml:4", "training.batch_size"),
        ("x.yaml:7", "data.labels_per_client"),
        ("x.yaml:8", "data.dirichlet_beta"),
        ("--set run.nam=x", "run.nam"),
        ("--set outputs.curves=maybe", "outputs.curves"),
    ]


def test_the_place_is_the_path_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, GOOD + "x: 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config(Path("x.yaml"))
    assert caught.value.problems[0].where == "x.yaml:12"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("none.yaml", "there is no such file", id="a missing file"),
        pytest.param(".", "a folder", id="a folder"),
        pytest.param("a\0b", "it cannot be read", id="a name that no file can have"),
        pytest.param("/dev/zero", "more than 4 MiB", id="a file without end"),
    ],
)
def test_what_is_no_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    (problem,) = caught.value.problems
    assert found in problem.found
    assert problem.key == "the file"


def test_a_section_with_nothing_in_it_means_its_defaults(tmp_path: Path) -> None:
    text = GOOD + "outputs:\nresources:\n  ray:\nevaluation:\n  # every: 2\n  early_stopping:\n"
    assert load_config(write(tmp_path, text)) == load_config(write(tmp_path, GOOD))


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_config_of_the_repository_loads(path: Path) -> None:
    assert isinstance(load_config(path), RunConfig)


def test_a_message_shows_no_control_characters(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, changed("mlp", r"mlp" + '\n  "\\e[2J\\u202e": 3'))
    assert problem.key == r"model.\u001b[2J\u202e"


def test_importing_the_config_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedpilot.federated.config\n"
        "heavy = {'ray', 'torch', 'sklearn', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    env = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def matrix_of(rows: int) -> list[list[float]]:
    return np.random.default_rng(0).random((rows, 10)).round(6).tolist()


def calls(work: Callable[[], Any]) -> int:
    """Python functions that are called: the time it takes, on a machine however busy."""
    work()  # what is imported or compiled once does not count
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


def test_a_matrix_of_many_rows_takes_about_as_many_calls_as_libyaml_does() -> None:
    matrix = matrix_of(1000)
    rows = "".join(f"    - {row}\n" for row in matrix)
    text = f"{GOOD}  distribution_matrix:\n{rows}"
    config = parse_config(
        {
            "model": {"model_type": "mlp"},
            "training": {"learning_rate": 0.1},
            "data": {
                "dataset_type": "digits",
                "data_distribution_kind": "fixed",
                "distribution_matrix": matrix,
            },
        }
    )
    least = calls(lambda: yaml.load(text, Loader=yaml.CSafeLoader))
    assert calls(lambda: read(text, str)) < 1.5 * least
    assert calls(lambda: to_yaml(config)) < 1.5 * least
    assert parse_config(yaml.load(to_yaml(config), Loader=yaml.CSafeLoader)) == config
