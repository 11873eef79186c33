"""`fedpilot runs verify` on real Ray: what it finds, how it ends, and that nothing is left."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from real_ray import Command, fedpilot, session_of
from waiting_runs import calm_run

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CONFIG = """
federation: {number_of_clients: 12, clients_per_round: 6, rounds: 3}
model: {model_type: mlp}
data: {dataset_type: digits}
training: {execution: sequential}
resources: {workers: 2, ray: {num_cpus: 2}}
outputs: {curves: false}
"""


def ended(command: Command) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command that left no process behind."""
    out, error = command.process.communicate(timeout=120)
    assert [process.name() for process in session_of(command.pid)] == []
    return command.process.returncode, out, error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs are: `alone`, whose clients train one after another."""
    made = tmp_path_factory.mktemp("verify")
    (made / "config.yaml").write_text(CONFIG)
    calm_run(made / "config.yaml", "alone")
    return made


@pytest.fixture
def together(folder: Path) -> str:
    """Another run, which computes chunks in another way."""
    calm_run(folder / "config.yaml", "together", "training.execution=folded")
    return "together"


def test_a_run_is_verified(folder: Path) -> None:
    with fedpilot(["runs", "verify", "alone", "--replay", "all"], folder) as command:
        code, out, error = ended(command)
    assert code == 0, error
    assert "rounds 1 to 3, trained again from the start: the same bits" in out
    assert out.endswith("alone is verified\n")


@pytest.mark.soak
def test_two_runs_part_in_clients_and_tensors_that_are_named(folder: Path, together: str) -> None:
    with fedpilot(["runs", "verify", "alone", together, "--json"], folder) as command:
        code, out, error = ended(command)
    assert code == 1, error
    found: dict[str, Any] = json.loads(out)
    assert found["comparison"]["round"] == 1
    assert found["round"]["reproduced"] == {"alone": True, "together": True}
    clients = found["round"]["clients"]
    assert clients["differing"] == len(clients["shown"]) <= clients["compared"] == 6
    for client in clients["shown"]:
        assert all(0 < tensor["largest"] < 1e-5 for tensor in client["tensors"])


@pytest.mark.soak
def test_it_can_be_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from real_ray import ENVIRONMENT

    scratch = folder / "scratch"
    scratch.mkdir()
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(scratch))
    config = folder / "long.yaml"
    config.write_text(CONFIG.replace("rounds: 3", "rounds: 3000"))
    with fedpilot(["run", "long.yaml", "--run-id", "long", "--json"], folder) as run:
        run.wait_for("round_finished", round=300)
        run.signal(signal.SIGINT)
        assert run.finish() == 130
    command = ["runs", "verify", "long", "--replay", "all"]
    with fedpilot(command, folder) as verifying:
        assert verifying.process.stdout is not None
        lines = [verifying.process.stdout.readline() for _ in range(3)]
        assert "identity" in lines[2]
        verifying.signal(signal.SIGINT)
        code, _, error = ended(verifying)
    assert code == 130, error
    assert "Traceback" not in error
    assert list(scratch.glob("fedpilot-verify-*")) == []
