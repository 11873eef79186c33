"""Three Ray clusters behind firewalls train one model, and it is the model of one cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpilot.common.strict_yaml.reading import read
from fedpilot.federated import parse_config
from fedpilot.federated.prepare.user_code.user_code import code_here
from fleet import Fleet, fleet
from real_ray import eventually, fedpilot

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

SITES = ("oslo", "paris", "tokyo")
CONFIG = """
federation: {number_of_clients: 60, clients_per_round: 24, rounds: 4}
model: {model_type: "my_nets:net"}
data: {dataset_type: digits}
training: {execution: sequential}
resources: {workers: 1}
"""
CODE = {
    "my_nets.py": """
from torch import nn
from my_parts import width

def net(input_shape, num_classes):
    layers = nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, num_classes)
    return nn.Sequential(*layers)
""",
    "my_parts.py": "width = 32\n",
}
"""Beside the config, and installed nowhere: the sites get it with the run."""


def lay_out(folder: Path) -> str:
    """Put the code into a folder; its digest."""
    for name, text in CODE.items():
        (folder / name).write_text(text)
    config = parse_config(read(CONFIG, str).value)
    return code_here(config, [str(folder)]).digest


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with fleet(*SITES) as made:
        policy = made.folder / "policy.yaml"
        policy.write_text(f"code_digests: [{lay_out(made.folder)}]\n")
        for site in SITES:
            made.join(site, "--policy", str(policy))
        made.until(dict.fromkeys(SITES, "ready"), 120)
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the model that one cluster makes of the config."""
    folder: Path = tmp_path_factory.mktemp("alone")
    (folder / "config.yaml").write_text(CONFIG)
    lay_out(folder)
    with fedpilot(["run", "config.yaml", "--json"], folder) as run:
        assert run.finish(120) == 0, run.error()
        digest: str = run.last("run_finished")["digest"]
        return digest


def test_three_sites_make_the_model_of_one(three: Fleet, alone: str) -> None:
    three.submit(CONFIG, "first")
    last = three.finished("first")
    assert last["status"] == "finished", three.logs()
    assert last["digest"] == alone
    for site in SITES:
        eventually(lambda site=site: three.left_at(site) == [], 60, f"nothing is left at {site}")
