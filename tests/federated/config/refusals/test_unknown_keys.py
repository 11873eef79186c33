"""A key or a section that nobody knows, or that is missing, is told with what may be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import GOOD, changed, check_one_problem, problems

SECTIONS = (
    "one of: run, federation, hierarchy, graph, model, data, training, evaluation, resources, "
)

ONE_PROBLEM = [
    pytest.param(
        changed("learning_rate:", "bogus: 3\n  learning_rate:"),
        ("x.yaml:11", "training.bogus", "an unknown key", "one of: number_of_epochs", ""),
        id="an unknown key is refused with the keys that exist",
    ),
    pytest.param(
        changed("learning_rate:", "learning_rat:"),
        (
            "x.yaml:11",
            "training.learning_rat",
            "an unknown key",
            "one of: number_of_epochs",
            "training.learning_rate",
        ),
        id="a misspelt key is told the nearest one of its section",
    ),
    pytest.param(
        changed("learning_rate:", "learning-rate:"),
        ("x.yaml:11", "training.learning-rate", "an unknown key", "", "training.learning_rate"),
        id="a dash for an underscore is near",
    ),
    pytest.param(
        changed("learning_rate:", "LearningRate:"),
        ("x.yaml:11", "training.LearningRate", "an unknown key", "", "training.learning_rate"),
        id="capitals for an underscore are near",
    ),
    pytest.param(
        changed("learning_rate:", "lr:"),
        ("x.yaml:11", "training.lr", "an unknown key", "", "training.learning_rate"),
        id="initials are near",
    ),
    pytest.param(
        changed("learning_rate:", "epochs:"),
        ("x.yaml:11", "training.epochs", "an unknown key", "", "training.number_of_epochs"),
        id="a word of a key is near",
    ),
    pytest.param(
        GOOD + "learning_rate: 0.1\n",
        ("x.yaml:12", "learning_rate", "an unknown key", SECTIONS, "training.learning_rate"),
        id="a key at top level is told its section",
    ),
    pytest.param(
        changed("random_seed: 7", "workers: 2"),
        ("x.yaml:2", "run.workers", "an unknown key", "one of: name", "resources.workers"),
        id="a key of another section is told where it belongs",
    ),
    pytest.param(
        changed("random_seed: 7", "batch_size: 2"),
        ("x.yaml:2", "run.batch_size", "", "", "training.batch_size or evaluation.batch_size"),
        id="a key of two other sections is told both",
    ),
    pytest.param(
        changed("random_seed: 7", "robustnes: {}"),
        ("x.yaml:2", "run.robustnes", "an unknown key", "one of: name", "robustness"),
        id="a section in another one is told where it belongs, however it is spelt",
    ),
    pytest.param(
        changed("random_seed: 7", "learning_rat: 1"),
        ("x.yaml:2", "run.learning_rat", "an unknown key", "", "training.learning_rate"),
        id="a key that is near one of another section is told that one",
    ),
    pytest.param(
        changed("training:", "trainig:"),
        ("x.yaml:10", "trainig", "an unknown key", SECTIONS, "training"),
        id="a misspelt section is told the nearest",
    ),
    pytest.param(
        changed("model:", "modell:"),
        ("x.yaml:6", "modell", "an unknown key", SECTIONS, "model"),
        id="a misspelt required section is one problem and not two",
    ),
    pytest.param(
        changed("model_type:", "model_typ:"),
        ("x.yaml:7", "model.model_typ", "an unknown key", "", "model.model_type"),
        id="a misspelt required key is one problem and not two",
    ),
    pytest.param(
        changed("  model_type: mlp\n", ""),
        ("x.yaml:6", "model.model_type", "it is missing", "text", ""),
        id="a missing key is reported at its section, even an empty one",
    ),
    pytest.param(
        changed("data:\n  dataset_type: digits\n", ""),
        ("x.yaml", "data", "it is missing", "a section with: dataset_type", ""),
        id="a missing section is reported at the file",
    ),
    pytest.param(
        changed("  dataset_type: digits\n", "  form: sites\n"),
        ("x.yaml:9", "data.form", "an unknown key", "one of: dataset_type", "data.from"),
        id="a key that no Python name can be is known too",
    ),
]


@pytest.mark.parametrize(("text", "expected"), ONE_PROBLEM)
def test_a_mistake_is_one_problem(
    tmp_path: Path, text: str | bytes, expected: tuple[str, str, str, str, str]
) -> None:
    check_one_problem(tmp_path, text, expected)


def test_what_is_missing_is_told_after_the_keys_that_may_be_meant(tmp_path: Path) -> None:
    found = problems(tmp_path, changed("model:\n", "what_learns:\n"))
    assert [each.key for each in found] == ["what_learns", "model"]
