"""Every way in which a config can be wrong is told by place, key, finding and what is allowed."""

from __future__ import annotations

import enum
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings, strategies as st

from fedpilot.federated.config import RunConfig, load_config, parse_config, reading
from fedpilot.federated.config.resolved import to_yaml
from fedpilot.federated.errors import ConfigError, Problem

ROOT = Path(__file__).parents[3]

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
SECTIONS = "nothing but: run, federation, hierarchy, model, data, training, evaluation, resources, "
SITES = f"{WHOLE}, or a section with: count, min_sites, required"

ONE_PROBLEM = [
    pytest.param(
        changed("learning_rate:", "bogus: 3\n  learning_rate:"),
        ("x.yaml:11", "training.bogus", "an unknown key", "nothing but: number_of_epochs", ""),
        id="an unknown key is refused with the keys that exist",
    ),
    pytest.param(
        changed("learning_rate:", "learning_rat:"),
        (
            "x.yaml:11",
            "training.learning_rat",
            "an unknown key",
            "nothing",
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
        ("x.yaml:2", "run.workers", "an unknown key", "nothing but: name", "resources.workers"),
        id="a key of another section is told where it belongs",
    ),
    pytest.param(
        changed("random_seed: 7", "batch_size: 2"),
        ("x.yaml:2", "run.batch_size", "", "", "training.batch_size or evaluation.batch_size"),
        id="a key of two other sections is told both",
    ),
    pytest.param(
        changed("random_seed: 7", "robustnes: {}"),
        ("x.yaml:2", "run.robustnes", "an unknown key", "nothing but: name", "robustness"),
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
        ("x.yaml:9", "data.form", "an unknown key", "nothing but: dataset_type", "data.from"),
        id="a key that no Python name can be is known too",
    ),
    pytest.param(
        changed("  dataset_type: digits\n", "  options: {}\n"),
        ("x.yaml:8", "data.dataset_type", "neither `dataset_type` nor", "one of the two", ""),
        id="data comes from a loader or from sites",
    ),
    pytest.param(
        GOOD + "sites: {site_files: [a.yaml]}\n",
        ("x.yaml:12", "sites.site_files", "without `data.from: sites`", "leave it out", ""),
        id="what sites declare counts for data at sites only",
    ),
    pytest.param(
        changed("clients_per_round: 20", "clients_per_round: 20\n  client_sampling_rate: 0.5"),
        ("x.yaml:6", "federation.client_sampling_rate", "both `clients_per_round`", "one of", ""),
        id="two keys that exclude each other are refused at the second",
    ),
    pytest.param(
        changed("clients_per_round: 20", "clients_per_round: 51"),
        ("x.yaml:5", "federation.clients_per_round", "51 clients per round out of", "at most", ""),
        id="a cohort larger than the population is refused",
    ),
    pytest.param(
        changed("digits", "digits\n  data_distribution_kind: dirichlet"),
        ("x.yaml:10", "data.data_distribution_kind", "without `dirichlet_beta`", "add `data.", ""),
        id="a kind without its key is refused",
    ),
    pytest.param(
        changed("digits", "digits\n  dirichlet_beta: 0.5"),
        ("x.yaml:10", "data.dirichlet_beta", "`data_distribution_kind: iid`", "leave it out", ""),
        id="a key of another kind is refused",
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
    pytest.param(
        changed("  number_of_clients: 50\n", ""),
        ("x.yaml:3", "federation.number_of_clients", "no `number_of_clients`", WHOLE, ""),
        id="a rule between sections is reported at the section that lacks the key",
    ),
    pytest.param(
        GOOD + "sites: 0\n",
        ("x.yaml:12", "sites.count", "the number 0", WHOLE, ""),
        id="no site at all, in short, is refused as the key that it is short for",
    ),
    pytest.param(
        GOOD + "sites: three\n",
        ("x.yaml:12", "sites", 'the text "three"', SITES, ""),
        id="sites are a number or a section",
    ),
    pytest.param(
        GOOD + "sites: true\n",
        ("x.yaml:12", "sites", "true", SITES, ""),
        id="true is no number of sites",
    ),
    pytest.param(
        GOOD + "sites: {count: 3, min_sites: 4}\n",
        ("x.yaml:12", "sites.min_sites", "at least 4 sites out of 3", "at most `count` (3)", ""),
        id="more sites than there are cannot be needed",
    ),
    pytest.param(
        GOOD + "sites: {count: 2, required: [site_1, paris]}\n",
        ("x.yaml:12", "sites.required", "called paris", "names among: site_1, site_2", ""),
        id="a site that is not there cannot be required",
    ),
    pytest.param(
        GOOD + "sites: 3\nresources: {ray: {address: auto}}\n",
        ("x.yaml:12", "sites.count", "together with `resources.ray.address`", "is one site", ""),
        id="one Ray cluster is one site",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: 7\n  random_seed: 8"),
        ("x.yaml:3", "run.random_seed", "a second `random_seed`", "the first is in line 2", ""),
        id="a key given twice is refused with the line of the first",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: 7\n  3: 8"),
        ("x.yaml:3", "run", "the number 3 as a key", "text as a key", ""),
        id="a number is not a key",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: 7\n  ? [a]\n  : 8"),
        ("x.yaml:3", "run", 'the list ["a"] as a key', "text as a key", ""),
        id="a list is not a key",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: &seed 7"),
        ("x.yaml:2", "run.random_seed", "the anchor `&seed`", "a value without an anchor", ""),
        id="anchors are refused",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: *seed"),
        ("x.yaml:2", "run.random_seed", "the alias `*seed`", "the value itself", ""),
        id="aliases are refused",
    ),
    pytest.param(
        changed("random_seed: 7", "name: !!python/object:os.system x"),
        ("x.yaml:2", "run.name", "the tag `!!python/object", "a value without a tag", ""),
        id="tags are refused",
    ),
    pytest.param(
        changed("  random_seed: 7", "\trandom_seed: 7"),
        ("x.yaml:2", "run.random_seed", "not YAML: a tab", "spaces to indent with", ""),
        id="a tab is named",
    ),
    pytest.param(
        changed("model_type: mlp", "model_type: mlp: 3"),
        ("x.yaml:7", "model.model_type", "not YAML: a `:`", "`key: value` on one line", ""),
        id="a second colon is named",
    ),
    pytest.param(
        changed("model_type: mlp", "options: {hidden: [128}"),
        ("x.yaml:7", "model.options", "not YAML: ", "", ""),
        id="mismatched brackets are a syntax error at the key",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "loss_function: 'cross"),
        ("x.yaml:11", "training.loss_function", "a quote that is never closed", "a closing", ""),
        id="an open quote is reported where it opens",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "options: [1, 2"),
        ("x.yaml:11", "training.options", "a bracket that is never closed", "a closing", ""),
        id="an open bracket is reported where it opens",
    ),
    pytest.param(
        changed("  learning_rate: 1e-3", "  learning_rate: 1e-3\n momentum: 0"),
        ("x.yaml:12", "training.momentum", "indented unlike its neighbours", "the same", ""),
        id="a wrong indentation is named",
    ),
    pytest.param(
        GOOD + "---\nrun: {}\n",
        ("x.yaml:13", "the file", "a second document", "one document", ""),
        id="two documents are refused",
    ),
    pytest.param(
        GOOD + "outputs: " + "[" * 500,
        ("x.yaml:12", "outputs[0]", "more than 50 levels", "less nesting", ""),
        id="deep nesting is refused",
    ),
    pytest.param(
        "", ("x.yaml", "the file", "an empty file", "at least: model, data", ""), id="an empty file"
    ),
    pytest.param(
        "# nothing\n",
        ("x.yaml", "the file", "an empty file", "at least: model, data", ""),
        id="a file of comments is empty",
    ),
    pytest.param(
        "# list\n- 1\n",
        ("x.yaml:2", "the file", "the list [1]", "at least: model, data", ""),
        id="a list at top level",
    ),
    pytest.param(
        "hello",
        ("x.yaml:1", "the file", 'the text "hello"', "at least: model, data", ""),
        id="a text at top level",
    ),
    pytest.param(
        b"run:\n  name: \xff\xfe",
        ("x.yaml:2", "the file", "the byte 0xFF", "UTF-8", ""),
        id="a binary file",
    ),
    pytest.param(
        b"run:\n  name: \x00",
        ("x.yaml:2", "run.name", "the control character U+0000", "printable text", ""),
        id="a file with control characters",
    ),
    pytest.param(
        'run:\n  name: "\\UFFFFFFFF"',
        ("x.yaml:1", "the file", "an escape", "YAML 1.2", ""),
        id="an escape beyond Unicode",
    ),
]


@pytest.mark.parametrize(("text", "expected"), ONE_PROBLEM)
def test_a_mistake_is_one_problem(
    tmp_path: Path, text: str | bytes, expected: tuple[str, str, str, str, str]
) -> None:
    (problem,) = problems(tmp_path, text)
    where, key, found, allowed, nearest = expected
    assert (tail(problem.where), problem.key, problem.nearest) == (where, key, nearest)
    assert found in problem.found
    assert allowed in problem.allowed


SPELLED = [
    pytest.param("", (), None, ("local",), id="left out: this process is the one site"),
    pytest.param("sites:\n", (), None, ("local",), id="an empty section is one left out"),
    pytest.param("sites: 1\n", (), 1, ("local",), id="one site has no number"),
    pytest.param("sites: 2\n", (), 2, ("site_1", "site_2"), id="in short"),
    pytest.param("sites: {count: 2}\n", (), 2, ("site_1", "site_2"), id="in full"),
    pytest.param("", ("sites=2",), 2, ("site_1", "site_2"), id="in short, by an override"),
    pytest.param("sites: 3\n", ("sites.count=1",), 1, ("local",), id="an override of its key"),
    pytest.param(
        "sites: 2\n", ("sites.min_sites=1",), 2, ("site_1", "site_2"), id="an override beside it"
    ),
]


@pytest.mark.parametrize(("text", "overrides", "count", "names"), SPELLED)
def test_sites_in_short_are_the_section(
    tmp_path: Path,
    text: str,
    overrides: tuple[str, ...],
    count: int | None,
    names: tuple[str, ...],
) -> None:
    found = load_config(write(tmp_path, GOOD + text), overrides).sites
    assert (found.count, found.names) == (count, names)


OVERRIDES = [
    pytest.param(
        "training.learning_rate=0",
        ("training.learning_rate", "the number 0", "a number above 0", ""),
        id="a value out of range",
    ),
    pytest.param(
        "training.lerning_rate=0.1",
        ("training.lerning_rate", "an unknown key", "nothing but:", "training.learning_rate"),
        id="a misspelt key",
    ),
    pytest.param(
        "trainig.learning_rate=0.1",
        ("trainig.learning_rate", "an unknown key", "nothing but:", "training.learning_rate"),
        id="a misspelt section on the way",
    ),
    pytest.param(
        "learning_rate=0.1",
        ("learning_rate", "an unknown key", "nothing but:", "training.learning_rate"),
        id="a key without its section",
    ),
    pytest.param(
        "run.name.x=3",
        ("run.name.x", "a key within `run.name`", "only `run.name` itself", ""),
        id="a path through a key that is no section",
    ),
    pytest.param(
        "model.options.hidden=[64",
        ("model.options.hidden", "not YAML: a bracket", "a closing", ""),
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


def test_the_last_of_two_overrides_wins(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD), ["federation.rounds=3", "federation.rounds=4"])
    assert config.federation.rounds == 4


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


def test_what_is_missing_is_told_after_the_keys_that_may_be_meant(tmp_path: Path) -> None:
    found = problems(tmp_path, changed("model:\n", "what_learns:\n"))
    assert [each.key for each in found] == ["what_learns", "model"]


def test_what_follows_from_a_misspelt_section_is_not_told(tmp_path: Path) -> None:
    declared = changed("dataset_type: digits", "from: sites\n  dataset: scans")
    declared = declared.replace("  number_of_clients: 50\n", "")
    assert [each.key for each in problems(tmp_path, declared)] != []
    sited = declared + "sits:\n  site_files: [a.yaml]\n"
    assert [each.key for each in problems(tmp_path, sited)] == ["sits"]


def test_a_rule_between_sections_is_told_though_another_section_is_broken(tmp_path: Path) -> None:
    text = changed("  number_of_clients: 50\n", "").replace("learning_rate", "learn_rate")
    assert [each.key for each in problems(tmp_path, text)] == [
        "federation.number_of_clients",
        "training.learn_rate",
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


def test_numbers_are_read_by_yaml_1_2(tmp_path: Path) -> None:
    text = changed(
        "mlp", "mlp\n  options: {a: 1e-3, b: no, c: 010, d: 0x1F, e: 0o17, f: 2024-01-01, g: ~}"
    )
    assert load_config(write(tmp_path, text)).model.options == {
        "a": 0.001,
        "b": "no",
        "c": 10,
        "d": 31,
        "e": 15,
        "f": "2024-01-01",
        "g": None,
    }


def test_a_whole_number_is_a_number() -> None:
    config = parse_config({**MINIMAL, "training": {"learning_rate": 1}})
    assert isinstance(config.training.learning_rate, float)


def test_a_section_with_nothing_in_it_means_its_defaults(tmp_path: Path) -> None:
    text = GOOD + "outputs:\nresources:\n  ray:\nevaluation:\n  # every: 2\n  early_stopping:\n"
    assert load_config(write(tmp_path, text)) == load_config(write(tmp_path, GOOD))


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    windows = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert load_config(write(tmp_path, windows)) == load_config(write(tmp_path, GOOD))


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_config_of_the_repository_loads(path: Path) -> None:
    assert isinstance(load_config(path), RunConfig)


MINIMAL: dict[str, Any] = {
    "federation": {"number_of_clients": 5},
    "model": {"model_type": "mlp"},
    "data": {"dataset_type": "digits"},
}


class Colour(enum.StrEnum):
    RED = "red"


def cyclic() -> dict[str, Any]:
    options: dict[str, Any] = {}
    options["self"] = options
    return options


@pytest.mark.parametrize(
    ("options", "key", "found"),
    [
        pytest.param({"x": {1, 2}}, "model.options.x", "a value of type `set`", id="a set"),
        pytest.param({"x": [object()]}, "model.options.x[0]", "type `object`", id="an object"),
        pytest.param({3: 4}, "model.options", "the number 3 as a key", id="a key that is no text"),
        pytest.param({"x": 10**5000}, "model.options.x", "beyond 2^63", id="a huge number"),
        pytest.param({"x": "\ud800"}, "model.options", "surrogate", id="text that is no Unicode"),
        pytest.param(cyclic(), "model.options", "more than 50 levels", id="a cycle"),
    ],
)
def test_options_are_what_a_file_could_hold(options: Any, key: str, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**MINIMAL, "model": {"model_type": "mlp", "options": options}})
    (problem,) = caught.value.problems
    assert problem.key.startswith(key)
    assert found in problem.found
    assert problem.where == ""


def test_a_mapping_may_hold_tuples_and_enumerations() -> None:
    config = parse_config(
        {**MINIMAL, "model": {"model_type": "mlp", "options": {"hidden": (1, 2), "c": Colour.RED}}}
    )
    assert config.model.options == {"hidden": [1, 2], "c": "red"}


def test_a_mapping_is_left_as_it_was() -> None:
    values = {**MINIMAL, "outputs": None}
    parse_config(values, ["federation.rounds=3", "outputs.curves=false"])
    assert values == {**MINIMAL, "outputs": None}
    assert MINIMAL["federation"] == {"number_of_clients": 5}


def test_what_is_no_mapping_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config([1])  # type: ignore[arg-type]
    assert caught.value.problems[0].key == "the config"


def test_a_message_shows_no_control_characters(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, changed("mlp", r"mlp" + '\n  "\\e[2J\\u202e": 3'))
    assert problem.key == r"model.\u001b[2J\u202e"


# ----- nothing but ConfigError, whatever the input

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

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


def check(refused: ConfigError) -> None:
    assert refused.problems
    assert str(refused).encode()


def load_or_refuse(path: str, overrides: tuple[str, ...] = ()) -> None:
    try:
        load_config(path, overrides)
    except ConfigError as refused:
        check(refused)


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
            except ConfigError as refused:
                return str(refused)

    assert told(0) == told(sys.maxsize)


def matrix_of(rows: int) -> list[list[float]]:
    return np.random.default_rng(0).random((rows, 10)).round(6).tolist()


def test_a_matrix_of_many_rows_is_read_and_written_about_as_fast_as_by_libyaml() -> None:
    rows = "".join(f"    - {row}\n" for row in matrix_of(5000))
    text = f"{GOOD}  distribution_matrix:\n{rows}"

    def seconds(work: Callable[[], Any]) -> float:
        begun = time.thread_time()
        work()
        return time.thread_time() - begun

    config = parse_config(
        {
            "model": {"model_type": "mlp"},
            "training": {"learning_rate": 0.1},
            "data": {
                "dataset_type": "digits",
                "data_distribution_kind": "fixed",
                "distribution_matrix": matrix_of(5000),
            },
        }
    )
    turns = [
        (
            seconds(lambda: yaml.load(text, Loader=yaml.CSafeLoader)),
            seconds(lambda: reading.read(text, str)),
            seconds(lambda: to_yaml(config)),
        )
        for _ in range(3)
    ]
    least = [min(each) for each in zip(*turns, strict=True)]
    assert least[1] < 3 * least[0]
    assert least[2] < 3 * least[0]
    assert parse_config(yaml.load(to_yaml(config), Loader=yaml.CSafeLoader)) == config


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode(errors="replace")))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    load_or_refuse(write(tmp_path_factory.getbasetemp(), content))


@settings(max_examples=300, deadline=None)
@given(yaml_like)
def test_anything_like_yaml_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    load_or_refuse(write(tmp_path_factory.getbasetemp(), content))


@settings(deadline=None)
@given(st.text(max_size=30) | yaml_like, yaml_like)
def test_any_override_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, path: str, value: str
) -> None:
    file = write(tmp_path_factory.getbasetemp(), GOOD)
    load_or_refuse(file, (path, f"model.options={value}", f"training.{path}={value}"))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(list(RunConfig.model_fields)) | st.text() | st.integers(),
        plain
        | st.dictionaries(
            st.sampled_from(
                ["options", "samples_per_client", "distribution_matrix", "name", "workers", "ray"]
            ),
            plain,
        ),
    )
)
def test_any_mapping_is_taken_or_refused(values: dict[Any, Any]) -> None:
    try:
        parse_config(values)
    except ConfigError as refused:
        check(refused)


def test_importing_the_config_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedpilot.federated.config\n"
        "heavy = {'ray', 'torch', 'sklearn', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    env = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
