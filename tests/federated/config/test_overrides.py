"""An override is read as YAML, and a wrong one points to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config_files import GOOD, WHOLE, problems, write
from fedpilot.federated.config import load_config
from fedpilot.federated.config.schema import WorkersRange

OVERRIDES = [
    pytest.param(
        "training.learning_rate=0",
        ("training.learning_rate", "the number 0", "a number above 0", ""),
        id="a value out of range",
    ),
    pytest.param(
        "training.lerning_rate=0.1",
        ("training.lerning_rate", "an unknown key", "one of:", "training.learning_rate"),
        id="a misspelt key",
    ),
    pytest.param(
        "trainig.learning_rate=0.1",
        ("trainig.learning_rate", "an unknown key", "one of:", "training.learning_rate"),
        id="a misspelt section on the way",
    ),
    pytest.param(
        "learning_rate=0.1",
        ("learning_rate", "an unknown key", "one of:", "training.learning_rate"),
        id="a key without its section",
    ),
    pytest.param(
        "run.name.x=3",
        ("run.name.x", "a key within `run.name`", "only `run.name` itself", ""),
        id="a path through a key that is no section",
    ),
    pytest.param(
        "model.options.hidden=[64",
        ("model.options.hidden", "not YAML: an unclosed bracket", "a closing", ""),
        id="a syntax error in the value",
    ),
    pytest.param(
        "model.options={a: 1, a: 2}",
        ("model.options.a", "a second `a`", "each key once", ""),
        id="a key given twice in the value",
    ),
    pytest.param(
        "federation.rounds=",
        ("federation.rounds", "nothing (null)", WHOLE, ""),
        id="no value where one is needed",
    ),
    pytest.param(
        "training.learning_rate",
        ("--set", "no `=`", "`section.key=value`", ""),
        id="no equals sign",
    ),
    pytest.param(
        "=3", ("--set", "nothing before the `=`", "`section.key=value`", ""), id="no path"
    ),
    pytest.param(
        "a b=3",
        ("--set", "a b before the `=`", "`section.key=value`", ""),
        id="a path with a space",
    ),
    pytest.param(
        "data.distribution_matrix[0]=3",
        ("--set", "before the `=`", "`section.key=value`", ""),
        id="an index in the path",
    ),
    pytest.param(
        "evaluation.early_stopping.patience=0",
        ("evaluation.early_stopping.patience", "the number 0", WHOLE, ""),
        id="a value in a section that the file does not have",
    ),
    pytest.param(
        "resources.workers.mim=2",
        ("resources.workers.mim", "an unknown key", "one of: min, max", "resources.workers.min"),
        id="a misspelt key of a value that may be a section",
    ),
]


@pytest.mark.parametrize(("override", "expected"), OVERRIDES)
def test_a_broken_override_points_to_itself(
    tmp_path: Path, override: str, expected: tuple[str, str, str, str]
) -> None:
    (problem,) = problems(tmp_path, GOOD, override)
    key, found, allowed, nearest = expected
    assert problem.where == f"--set {override}"
    assert (problem.key, problem.nearest) == (key, nearest)
    assert found in problem.found
    assert allowed in problem.allowed


@pytest.mark.parametrize(
    ("override", "read"),
    [
        pytest.param("federation.rounds=3", lambda c: c.federation.rounds == 3, id="a new key"),
        pytest.param(
            "run.random_seed=8", lambda c: c.run.random_seed == 8, id="a key that the file gives"
        ),
        pytest.param(
            "model.options.hidden=[64, 64]",
            lambda c: c.model.options == {"hidden": [64, 64]},
            id="a list, into a section that the file does not have",
        ),
        pytest.param(
            "resources.ray.num_cpus=4", lambda c: c.resources.ray.num_cpus == 4, id="two sections"
        ),
        pytest.param(
            "training={batch_size: 3}",
            lambda c: (c.training.batch_size, c.training.learning_rate) == (3, 0.1),
            id="a whole section takes the place of the file's",
        ),
        pytest.param(
            "federation.clients_per_round=null",
            lambda c: c.federation.clients_per_round is None,
            id="null takes a value away",
        ),
        pytest.param(
            "run.name=no", lambda c: c.run.name == "no", id="`no` is text, as in YAML 1.2"
        ),
        pytest.param(
            "outputs.folder=a=b", lambda c: c.outputs.folder == "a=b", id="a value with an equals"
        ),
    ],
)
def test_an_override_is_read_as_yaml(tmp_path: Path, override: str, read: Any) -> None:
    assert read(load_config(write(tmp_path, GOOD), [override]))


def test_overrides_make_a_section_of_a_value_that_may_be_one(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "resources:\n  workers: 3\n")
    config = load_config(path, ["resources.workers.min=2", "resources.workers.max=4"])
    assert config.resources.workers == WorkersRange(min=2, max=4)


def test_the_last_of_two_overrides_wins(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD), ["federation.rounds=3", "federation.rounds=4"])
    assert config.federation.rounds == 4
