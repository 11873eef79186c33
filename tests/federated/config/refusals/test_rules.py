"""Keys that exclude or need each other are told at the one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import GOOD, WHOLE, changed, check_one_problem, problems, write
from fedpilot.federated.config import load_config

SITES = f"{WHOLE}, or a section with: count, min_sites, required"

ONE_PROBLEM = [
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
        GOOD + "resources:\n  memory_per_worker: 2\n",
        ("x.yaml:13", "resources.memory_per_worker", "2 bytes", "at least 1 MB", ""),
        id="a size that lost its unit is refused",
    ),
    pytest.param(
        GOOD + "resources:\n  memory_per_worker: 999KB\n",
        ("x.yaml:13", "resources.memory_per_worker", "999,000 bytes", "such as 2GB", ""),
        id="memory in which no worker starts is refused",
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
        GOOD + "  nesterov: true\n",
        ("x.yaml:12", "training.nesterov", "without `momentum`", "a `momentum` above 0", ""),
        id="Nesterov's momentum needs one",
    ),
    pytest.param(
        GOOD + "  schedule: {kind: step, gamma: 0.5}\n",
        (
            "x.yaml:12",
            "training.schedule.every",
            "step` without `every`",
            "together with `every`",
            "",
        ),
        id="a schedule needs the keys of its kind",
    ),
    pytest.param(
        GOOD + "  schedule: {kind: linear, decay_rounds: 9, gamma: 0.5}\n",
        ("x.yaml:12", "training.schedule.gamma", "linear` with `gamma`", "or `exponential`", ""),
        id="a key of another schedule is refused",
    ),
    pytest.param(
        GOOD + "  schedule: {kind: linear, decay_rounds: 9, final_rate: 5}\n",
        ("x.yaml:12", "training.schedule.final_rate", "with `learning_rate: 0.001`", "at most", ""),
        id="a schedule never ends above the learning rate",
    ),
    pytest.param(
        GOOD + "  client_update: a:b\n  proximal_mu: 0.1\n",
        ("x.yaml:13", "training.proximal_mu", "with `client_update`", "one of the two", ""),
        id="a user's own code takes its own steps",
    ),
    pytest.param(
        GOOD + "  client_update: a:b\n  max_gradient_norm: 0.1\n",
        ("x.yaml:13", "training.max_gradient_norm", "with `client_update`", "one of the two", ""),
        id="a user's own code clips its own gradients",
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
        ("x.yaml:12", "sites.required", "called paris", "names of its sites: site_1, site_2", ""),
        id="a site that is not there cannot be required",
    ),
    pytest.param(
        GOOD + "sites: 3\nresources: {ray: {address: auto}}\n",
        ("x.yaml:12", "sites.count", "together with `resources.ray.address`", "is one site", ""),
        id="one Ray cluster is one site",
    ),
    pytest.param(
        GOOD + "sites: 3\nresources: {ray: {cluster: c.yaml}}\n",
        ("x.yaml:12", "sites.count", "together with `resources.ray.cluster`", "is one site", ""),
        id="a declared Ray cluster is one site as well",
    ),
    pytest.param(
        GOOD + "resources: {ray: {cluster: c.yaml, num_cpus: 2}}\n",
        ("x.yaml:12", "resources.ray.cluster", "another key", "`cluster` alone", ""),
        id="a declared Ray cluster has the size that is declared",
    ),
]


@pytest.mark.parametrize(("text", "expected"), ONE_PROBLEM)
def test_a_mistake_is_one_problem(
    tmp_path: Path, text: str | bytes, expected: tuple[str, str, str, str, str]
) -> None:
    check_one_problem(tmp_path, text, expected)


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
