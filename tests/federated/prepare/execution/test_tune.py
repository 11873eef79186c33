"""`fedpilot tune` measures by CPU time, refuses a busy machine, and writes what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedpilot.federated.cli.tune import tune
from fedpilot.federated.config import load_config
from fedpilot.federated.core.execution.autotune import Disturbed, Timing, judged
from fedpilot.federated.core.execution.facts import Execution, ExecutionKind
from fedpilot.federated.prepare.execution import tuning

ALONE, FOLDED = Execution(ExecutionKind.SEQUENTIAL, 64), Execution(ExecutionKind.FOLDED, 8)
CONFIG = """\
# mine
federation:
  number_of_clients: 6
model:
  model_type: mlp
  options:
    hidden: [4]  # small
data:
  dataset_type: synthetic
  options: {samples: 90, features: 5, classes: 3}
  data_distribution_kind: iid
training:
  learning_rate: 0.1
"""


def test_the_fastest_is_the_one_of_least_cpu_time() -> None:
    found = judged(
        {
            ALONE: [Timing(3.0, 3.0), Timing(2.0, 2.1)],
            FOLDED: [Timing(1.0, 1.0), Timing(9.0, 9.0)],
        }
    )
    assert found.fastest == FOLDED
    assert found.seconds == {ALONE: 2.0, FOLDED: 1.0}


def test_a_busy_machine_is_refused() -> None:
    with pytest.raises(Disturbed, match=r"3\.0 times their CPU time"):
        judged({ALONE: [Timing(1.0, 3.0)], FOLDED: [Timing(0.1, 0.3), Timing(0.1, 0.1)]})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing else computes."""
    monkeypatch.setattr(tuning.time, "perf_counter", tuning.time.thread_time)


@pytest.mark.usefixtures("quiet")
def test_what_was_measured_is_told_and_nothing_is_written(config: Path) -> None:
    done = CliRunner().invoke(tune, [str(config), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    kinds = {row["execution"] for row in told["measured"]}
    assert kinds == {"sequential", "compiled", "folded", "mapped"}
    assert all(row["seconds_per_step"] > 0 for row in told["measured"])
    assert told["auto"] == {"execution": "compiled", "chunk_size": 6}
    assert (told["refused"], told["written"]) == ({}, None)
    assert config.read_text() == CONFIG


@pytest.mark.usefixtures("quiet")
def test_the_fastest_is_written_and_comments_stay(config: Path) -> None:
    done = CliRunner().invoke(tune, [str(config), "--write"])
    assert done.exit_code == 0, done.output
    text = config.read_text()
    assert text.startswith("# mine")
    assert "# small" in text
    training = load_config(config).training
    assert training.execution != "auto"
    assert (
        f"wrote execution: {training.execution}, chunk_size: {training.chunk_size}" in done.stdout
    )


def test_a_busy_machine_ends_with_1_and_writes_nothing(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: 4 * tuning.time.thread_time())
    done = CliRunner().invoke(tune, [str(config), "--write"])
    assert done.exit_code == 1
    assert "4.0 times their CPU time" in done.stderr
    assert config.read_text() == CONFIG


def test_what_cannot_be_measured_here_is_bad_input(config: Path) -> None:
    done = CliRunner().invoke(tune, [str(config), "--set", "resources.gpus_per_worker=1"])
    assert done.exit_code == 2
    assert "resources.gpus_per_worker" in done.stderr
    assert CliRunner().invoke(tune, [str(config.with_name("none.yaml"))]).exit_code == 2
