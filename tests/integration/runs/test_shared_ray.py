"""A Ray that somebody else runs: what it lacks is said by machine, and what we hold by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real_ray import fedpilot, ray_head, ray_machine

pytestmark = pytest.mark.ray

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "fedpilot":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""
"""Makes a Python one that fedpilot is not installed in."""
QUICK = ("federation.rounds=1", "data.number_of_clients=4", "federation.clients_per_round=2")


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PYTHONPATH of processes that have no fedpilot."""
    folder = tmp_path_factory.mktemp("lacking")
    (folder / "sitecustomize.py").write_text(WITHOUT)
    return str(folder)


@pytest.fixture(scope="module")
def bare(lacking: str) -> Iterator[str]:
    """A Ray on whose head there is no fedpilot."""
    with ray_head(num_cpus=2, PYTHONPATH=lacking) as address:
        yield address


def findings(address: str, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of the doctor, and what it says of a Ray cluster and its machines."""
    with fedpilot(["doctor", "--json", "--address", address], folder) as command:
        out, _ = command.process.communicate(timeout=180)
    found = json.loads(out)["findings"]
    return command.process.returncode, [
        each for each in found if each["name"].startswith(("ray cluster", "machine"))
    ]


def test_the_doctor_attaches_and_says_what_a_machine_lacks(bare: str, tmp_path: Path) -> None:
    code, (cluster, machine) = findings(bare, tmp_path)
    assert code == 1
    assert "1 machine with 2 CPU, 2 of them free" in cluster["found"]
    assert machine["status"] == "fail"
    assert "No module named 'fedpilot'" in machine["found"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["cluster", "list", "--address", "{}"], id="a command of the fabric"),
        pytest.param(
            ["run", "{config}", "--set", "resources.ray.address={}", "--json"], id="a run"
        ),
    ],
)
def test_a_ray_without_fedpilot_is_said_to_be_one(
    bare: str, arguments: list[str], tmp_path: Path
) -> None:
    config = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
    given = [each.format(bare, config=config) for each in arguments]
    with fedpilot(given, tmp_path) as command:
        _, said = command.process.communicate(timeout=180)
    assert "of the Ray cluster cannot import 'fedpilot'" in said
    assert "TemporaryActor" not in said
    assert command.process.returncode == 4


@pytest.mark.soak
def test_a_machine_without_fedpilot_is_named_among_those_with_it(
    lacking: str, tmp_path: Path
) -> None:
    config = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
    with ray_head(num_cpus=1) as address, ray_machine(address, PYTHONPATH=lacking):
        while len(found := findings(address, tmp_path)[1]) < 3:
            pass
        assert sorted(each["status"] for each in found[1:]) == ["fail", "warn"]
        sets = [f"resources.ray.address={address}", "resources.workers=2"]
        given = [word for each in sets for word in ("--set", each)]
        with fedpilot(["run", str(config), "--json", *given], tmp_path) as command:
            _, said = command.process.communicate(timeout=180)
    assert "of the Ray cluster cannot import 'fedpilot'" in said
    assert command.process.returncode == 4
