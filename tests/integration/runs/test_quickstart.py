"""What the README's first command does, on real Ray."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from real_ray import ENVIRONMENT, REPOSITORY, fedpilot

pytestmark = pytest.mark.ray

KNOWN_LINES = (
    "run ",
    "  data ",
    "  model ",
    "  rounds ",
    "  workers ",
    "  waiting ",
    "  compiling ",
    "  training ",
    "round ",
    "  accuracy ",
    "  best ",
    "  folder ",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """(folder, stdout, stderr) of the quickstart, run where no terminal is."""
    folder = tmp_path_factory.mktemp("quickstart")
    config = str(REPOSITORY / "configs" / "quickstart.yaml")
    with fedpilot(["run", config, "--run-id", "first", "--folder", "out"], folder) as command:
        out, error = command.process.communicate(timeout=120)
        assert command.process.returncode == 0, error
    return folder / "out" / "first", out, error


def test_it_reaches_the_promised_accuracy(finished: tuple[Path, str, str]) -> None:
    rows = [json.loads(line) for line in (finished[0] / "metrics.jsonl").open()]
    assert rows[-1]["accuracy"] >= 0.95


def test_the_run_folder_is_complete(finished: tuple[Path, str, str]) -> None:
    folder = finished[0]
    files = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert files == {
        *("config.yaml", "metrics.jsonl", "metrics.csv", "model.safetensors", "best.safetensors"),
        *("checkpoints", "journal", "traffic.csv", "curves.png", "manifest.json"),
        "plan.json",
    }
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((folder / "checkpoints").iterdir())) == 2
    assert len(list(csv.DictReader((folder / "metrics.csv").open()))) == 40
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert len(manifest["workers"]) == 2


def test_nothing_but_our_own_lines_is_printed(finished: tuple[Path, str, str]) -> None:
    _, out, error = finished
    assert [line for line in out.splitlines() if not line.startswith(KNOWN_LINES)] == []
    assert error == ""


def test_the_model_file_is_the_model_of_the_digest(finished: tuple[Path, str, str]) -> None:
    from safetensors.numpy import load_file

    from fedpilot.federated.core.state import digest

    manifest = json.loads((finished[0] / "manifest.json").read_text())
    assert digest(load_file(finished[0] / "model.safetensors")) == manifest["digest"]


EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[each.name for each in EXAMPLES])
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
