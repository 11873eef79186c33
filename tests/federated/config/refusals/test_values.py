"""A value of another type, out of range or among no choices is told with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import GOOD, WHOLE, changed, check_one_problem

ONE_PROBLEM = [
    pytest.param(
        changed("number_of_clients: 50", 'number_of_clients: "50"'),
        ("x.yaml:4", "federation.number_of_clients", 'the text "50"', WHOLE, ""),
        id="text is not a number",
    ),
    pytest.param(
        changed("number_of_clients: 50", "number_of_clients: 50.0"),
        ("x.yaml:4", "federation.number_of_clients", "the number 50.0", WHOLE, ""),
        id="a number with a point is not whole",
    ),
    pytest.param(
        changed("number_of_clients: 50", "number_of_clients: true"),
        ("x.yaml:4", "federation.number_of_clients", "true", WHOLE, ""),
        id="true is not a number",
    ),
    pytest.param(
        changed("number_of_clients: 50", "number_of_clients: 123456789012345678901234567890"),
        ("x.yaml:4", "federation.number_of_clients", "a whole number beyond 2^63", "", ""),
        id="a number that fits no register is refused",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: -1"),
        ("x.yaml:2", "run.random_seed", "the number -1", "at least 0 and below 2^63", ""),
        id="a number below its range is refused",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "learning_rate: 0"),
        ("x.yaml:11", "training.learning_rate", "the number 0", "a number above 0", ""),
        id="a bound that is excluded is refused",
    ),
    pytest.param(
        changed("clients_per_round: 20", "client_sampling_rate: 1.5"),
        ("x.yaml:5", "federation.client_sampling_rate", "1.5", "above 0 and at most 1", ""),
        id="a share above one is refused",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "learning_rate: .nan"),
        ("x.yaml:11", "training.learning_rate", "the number .nan", "a finite number above 0", ""),
        id="not-a-number is refused",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "learning_rate: 1e999"),
        ("x.yaml:11", "training.learning_rate", "the number .inf", "a finite number above 0", ""),
        id="a number that overflows is refused",
    ),
    pytest.param(
        changed("model_type: mlp", "model_type: mlp\n  options: {hidden: [.inf]}"),
        ("x.yaml:8", "model.options.hidden[0]", "the number .inf", "a finite number", ""),
        id="an infinite number is refused in options too",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "shuffle: yes"),
        ("x.yaml:11", "training.shuffle", 'the text "yes"', "true or false", "true"),
        id="yes is text, and near to true",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "shuffle: 1"),
        ("x.yaml:11", "training.shuffle", "the number 1", "true or false", ""),
        id="one is not true",
    ),
    pytest.param(
        changed("model_type: mlp", "model_type: 5"),
        ("x.yaml:7", "model.model_type", "the number 5", "text", ""),
        id="a number is not text",
    ),
    pytest.param(
        changed("model_type: mlp", "model_type:"),
        ("x.yaml:7", "model.model_type", "nothing (null)", "text", ""),
        id="a required key with nothing is refused",
    ),
    pytest.param(
        changed("random_seed: 7", "name: '-x'"),
        ("x.yaml:2", "run.name", 'the text "-x"', "text of at most 63 letters", ""),
        id="a pattern is told in words",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "optimizer: Adm"),
        ("x.yaml:11", "training.optimizer", 'the text "Adm"', "one of: sgd, adam, adamw", "adam"),
        id="a bad choice is told the choices and the nearest",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "optimizer: [sgd]"),
        ("x.yaml:11", "training.optimizer", 'the list ["sgd"]', "one of: sgd, adam, adamw", ""),
        id="a list is not a choice",
    ),
    pytest.param(
        GOOD + "resources:\n  workers: atuo\n",
        ("x.yaml:13", "resources.workers", 'the text "atuo"', f"{WHOLE}, or `auto`", "auto"),
        id="a key of two types is one problem",
    ),
    pytest.param(
        GOOD + "resources:\n  workers: 0\n",
        ("x.yaml:13", "resources.workers", "the number 0", f"{WHOLE}, or `auto`", ""),
        id="a number out of range is one problem where a word would do too",
    ),
    pytest.param(
        GOOD + "resources:\n  workers: [2, 8]\n",
        ("x.yaml:13", "resources.workers", "the list [2, 8]", "or a section with: min, max", ""),
        id="a list is no range",
    ),
    pytest.param(
        GOOD + "resources:\n  workers: {min: 8, max: 2}\n",
        ("x.yaml:13", "resources.workers.max", "2, below `min`", "at least 8", ""),
        id="a range that ends before it begins is refused",
    ),
    pytest.param(
        GOOD + "resources:\n  workers: {min: 2}\n",
        ("x.yaml:13", "resources.workers.max", "it is missing", WHOLE, ""),
        id="a range has both ends",
    ),
    pytest.param(
        GOOD + "resources:\n  workers: {min: x, max: 2}\n",
        ("x.yaml:13", "resources.workers.min", 'the text "x"', WHOLE, ""),
        id="what is wrong inside a section is told there, not of the types beside it",
    ),
    pytest.param(
        GOOD + "outputs: [runs]\n",
        ("x.yaml:12", "outputs", 'the list ["runs"]', "a section with: folder", ""),
        id="a list is not a section",
    ),
    pytest.param(
        GOOD + "resources:\n  ray: auto\n",
        ("x.yaml:13", "resources.ray", 'the text "auto"', "a section with: address", ""),
        id="text is not a section inside a section",
    ),
    pytest.param(
        changed(
            "digits", "digits\n  data_distribution_kind: bootstrap\n  samples_per_client: [9, 2]"
        ),
        ("x.yaml:11", "data.samples_per_client", "[9, 2]", "least <= most", ""),
        id="a span that ends before it begins is refused",
    ),
    pytest.param(
        changed(
            "digits", "digits\n  data_distribution_kind: bootstrap\n  samples_per_client: [1, x]"
        ),
        (
            "x.yaml:11",
            "data.samples_per_client",
            'the list [1, "x"]',
            f"{WHOLE}, or a list of 2",
            "",
        ),
        id="a wrong member of a union's list is one problem of the key",
    ),
    pytest.param(
        changed(
            "  dataset_type: digits",
            "  dataset_type: digits\n  data_distribution_kind: fixed\n  distribution_matrix:\n"
            "    - [0, 1]\n    - [1,\n       -1]",
        ).replace("  number_of_clients: 50\n  clients_per_round: 20\n", "  rounds: 3\n"),
        ("x.yaml:13", "data.distribution_matrix[1][1]", "the number -1", "at least 0", ""),
        id="an entry of a matrix is named by its indices, at its line",
    ),
]


@pytest.mark.parametrize(("text", "expected"), ONE_PROBLEM)
def test_a_mistake_is_one_problem(
    tmp_path: Path, text: str | bytes, expected: tuple[str, str, str, str, str]
) -> None:
    check_one_problem(tmp_path, text, expected)
