"""Three Ray clusters behind firewalls train one model, and it is the model of one cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import Fleet, fleet
from real_ray import eventually, fedpilot

pytestmark = pytest.mark.ray

SITES = ("oslo", "paris", "tokyo")
CONFIG = """
federation: {number_of_clients: 60, clients_per_round: 24, rounds: 4}
model: {model_type: mlp}
data: {dataset_type: digits}
training: {execution: sequential}
resources: {workers: 1}
"""


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with fleet(*SITES) as made:
        for site in SITES:
            made.join(site)
        made.until(dict.fromkeys(SITES, "ready"))
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the model that one cluster makes of the config."""
    folder: Path = tmp_path_factory.mktemp("alone")
    (folder / "config.yaml").write_text(CONFIG)
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
        eventually(lambda site=site: three.left_at(site) == [], 20, f"nothing is left at {site}")
