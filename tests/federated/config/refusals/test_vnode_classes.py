"""What is wrong with vnode classes is told at the class and the key that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config_files import GOOD, WHOLE, check_one_problem, problems, write
from fedpilot.federated.config import load_config, parse_config

LARGE = "    - {name: large, workers: 1, clients: {share: 0.5}}\n"
SMALL = "    - {name: small, workers: 2}\n"

ONE_PROBLEM = [
    pytest.param(
        [LARGE, SMALL, "    - {name: large, workers: 1, clients: {ids: a}}\n"],
        ("x.yaml:16", "resources.groups[2].name", '"large" a second time', "each name once", ""),
        id="two classes of one name",
    ),
    pytest.param(
        [LARGE, "    - {name: small, workers: 2, clients: {share: 0.7}}\n"],
        ("x.yaml:15", "resources.groups[1].clients.share", "shares of 1.2", "at most 1", ""),
        id="shares above 1",
    ),
    pytest.param(
        [LARGE, "    - {name: small, workers: 2, clients: {share: 0.3}}\n"],
        (
            *("x.yaml:15", "resources.groups[1].clients.share", "shares of 0.8", "1 together, or"),
            "",
        ),
        id="shares below 1, and no class for the others",
    ),
    pytest.param(
        [SMALL, "    - {name: large, workers: 2}\n"],
        (
            *("x.yaml:15", "resources.groups[1].clients", 'neither "small" nor "large" says'),
            *("at most one class without `clients`", ""),
        ),
        id="two classes that take the rest",
    ),
    pytest.param(
        [LARGE, "    - {name: small, workers: {min: 3, max: 2}}\n"],
        (
            *("x.yaml:15", "resources.groups[1].workers.max", "2, below `min`", "at least 3"),
            "",
        ),
        id="a range that ends before it begins",
    ),
    pytest.param(
        [LARGE, "    - {name: small, workers: auto}\n"],
        (
            *("x.yaml:15", "resources.groups[1].workers", 'the text "auto"'),
            *(f"{WHOLE}, or a section with: min, max", ""),
        ),
        id="as many as fit is for one class",
    ),
    pytest.param(
        [SMALL, "    - {name: a b, workers: 1, clients: {ids: x}}\n"],
        ("x.yaml:15", "resources.groups[1].name", 'the text "a b"', "at most 63 letters", ""),
        id="a name that is no label",
    ),
    pytest.param(
        [SMALL, "    - {name: a, workers: 1, clients: {ids: x, share: 0.5}}\n"],
        (
            *("x.yaml:15", "resources.groups[1].clients.share", "both `ids` and `share`"),
            *("one of `ids`, `column` and `share`", ""),
        ),
        id="clients by two rules",
    ),
    pytest.param(
        [SMALL, "    - {name: a, workers: 1, clients: {}}\n"],
        ("x.yaml:15", "resources.groups[1].clients.ids", "none of the three", "one of `ids`", ""),
        id="clients by no rule",
    ),
    pytest.param(
        [SMALL, "    - {name: a, workers: 1, clients: {column: ward}}\n"],
        (
            *("x.yaml:15", "resources.groups[1].clients.values", "`column` without `values`"),
            *("`column` together with `values`", ""),
        ),
        id="a column without values",
    ),
    pytest.param(
        [SMALL, "    - {name: a, workers: 1, clients: {ids: x}, labels: {zone: in(}}\n"],
        ("x.yaml:15", "resources.groups[1].labels", "zone: 'in('", "'in(a,b)'", ""),
        id="a condition that is none",
    ),
    pytest.param(
        [SMALL, "    - {name: a, workers: 1, clients: {ids: x}, memory_per_worker: 2}\n"],
        ("x.yaml:15", "resources.groups[1].memory_per_worker", "2 bytes", "such as 2GB", ""),
        id="a size without its unit",
    ),
    pytest.param(
        [SMALL, "    - {name: a, worker: 1, workers: 2, clients: {ids: x}}\n"],
        (
            *("x.yaml:15", "resources.groups[1].worker", "an unknown key", "one of: name, workers"),
            "resources.groups[1].workers",
        ),
        id="a misspelt key",
    ),
    pytest.param(
        ["    []\n"],
        ("x.yaml:13", "resources.groups", "an empty list", "a list of at least 1", ""),
        id="no class at all",
    ),
]


@pytest.mark.parametrize(("classes", "expected"), ONE_PROBLEM)
def test_a_mistake_is_one_problem(
    tmp_path: Path, classes: list[str], expected: tuple[str, str, str, str, str]
) -> None:
    check_one_problem(tmp_path, f"{GOOD}resources:\n  groups:\n{''.join(classes)}", expected)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workers", "2"),
        ("cpus_per_worker", "2"),
        ("gpus_per_worker", "1"),
        ("memory_per_worker", "2GB"),
    ],
)
def test_the_size_of_a_vnode_is_said_once(tmp_path: Path, key: str, value: str) -> None:
    text = f"{GOOD}resources:\n  {key}: {value}\n  groups:\n{LARGE}{SMALL}"
    expected = f"leave it out: each of `groups` has its own `{key}`"
    found = f"`{key}` together with `groups`"
    check_one_problem(tmp_path, text, ("x.yaml:13", f"resources.{key}", found, expected, ""))


def test_one_worker_trains_a_group_of_a_hierarchy(tmp_path: Path) -> None:
    hierarchy = "hierarchy: {groups: {by: label}}\n"
    text = GOOD.replace("  clients_per_round: 20\n", "  topology: hierarchical\n")
    text = f"{text}{hierarchy}resources:\n  groups:\n{LARGE}{SMALL}"
    found = [(each.key, each.found) for each in problems(tmp_path, text)]
    ((key, why),) = found
    assert key == "resources.groups"
    assert "`topology: hierarchical`" in why


def test_classes_are_read_from_a_file(tmp_path: Path) -> None:
    text = f"{GOOD}resources:\n  groups:\n{LARGE}{SMALL}"
    large, small = load_config(write(tmp_path, text)).resources.classes
    assert (large.workers, small.workers) == (1, 2)
    (only,) = load_config(write(tmp_path, GOOD)).resources.classes
    assert only.workers == "auto"


@pytest.mark.parametrize(
    ("sizes", "alike"),
    [
        ([{}, {}], True),
        ([{}, {"cpus_per_worker": 1.5, "memory_per_worker": "2GB"}], True),
        ([{}, {"cpus_per_worker": 2}], False),
        ([{}, {"gpus_per_worker": 0.5}], False),
    ],
)
def test_classes_are_alike_in_threads_and_device(sizes: list[dict[str, Any]], alike: bool) -> None:
    values = {
        "federation": {"number_of_clients": 5},
        "model": {"model_type": "mlp"},
        "data": {"dataset_type": "digits"},
        "resources": {
            "groups": [
                {"name": f"c{at}", "workers": 1, "clients": {"share": 0.5}, **size}
                for at, size in enumerate(sizes)
            ]
        },
    }
    assert parse_config(values).resources.alike is alike
