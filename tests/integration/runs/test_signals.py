"""A run that is ended by a signal, whenever it comes, ends in order: 130, and nothing is left."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from real_ray import eventually, fedpilot, session_of

pytestmark = pytest.mark.ray

CONFIG = """
federation: {number_of_clients: 24, clients_per_round: 16, rounds: 400}
model: {model_type: mlp}
data: {dataset_type: digits}
resources: {workers: 2, ray: {num_cpus: 2}}
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files of one run; its path is short, since sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="fp-") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("awaited", "later_s", "numbers", "whole_group"),
    [
        pytest.param(
            *("round_finished", 0.0, [signal.SIGTERM], True),
            id="SIGTERM to the group, as `timeout`",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("run_started", 0.1, [signal.SIGINT], True),
            id="Ctrl-C as Ray is imported",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *("run_started", 1.0, [signal.SIGTERM], False),
            id="SIGTERM as Ray starts",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *("gang_reserved", 0.2, [signal.SIGINT], True),
            id="Ctrl-C as workers start",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *("round_finished", 0.0, [signal.SIGINT] * 3, True),
            id="Ctrl-C three times in a row",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("round_finished", 0.0, [signal.SIGHUP], False),
            id="a terminal that is closed",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_it_ends_in_order(
    tmp_path: Path,
    temporary: Path,
    awaited: str,
    later_s: float,
    numbers: list[signal.Signals],
    whole_group: bool,
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = ["run", "config.yaml", "--json", "--run-id", "r"]
    with fedpilot(command, tmp_path, TMPDIR=str(temporary)) as run:
        run.wait_for(awaited)
        time.sleep(later_s)
        for number in numbers:
            run.signal(number, whole_group=whole_group)
            time.sleep(0.1)
        assert run.finish(30) == 130
        assert run.error() == ""
        assert run.last("run_finished")["status"] == "interrupted"
        eventually(lambda: session_of(run.pid) == [], 60, "no process is left")
    assert list(temporary.glob("fedpilot-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param([], id="as text"),
        pytest.param(["--json"], marks=pytest.mark.soak, id="as events"),
    ],
)
def test_a_run_trains_to_its_end_after_its_reader_has_left(
    tmp_path: Path, temporary: Path, how: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = ["run", "config.yaml", "--run-id", "r", "--set", "federation.rounds=3", *how]
    with fedpilot(command, tmp_path, TMPDIR=str(temporary)) as run:
        assert run.process.stdout is not None
        assert run.process.stdout.readline()
        run.process.stdout.close()
        assert run.process.wait(300) == 0
        assert run.error() == ""
        eventually(lambda: session_of(run.pid) == [], 60, "no process is left")
    assert list(temporary.glob("fedpilot-*")) == []
    manifest = json.loads((tmp_path / "runs" / "r" / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert len((tmp_path / "runs" / "r" / "metrics.jsonl").read_text().splitlines()) == 3
