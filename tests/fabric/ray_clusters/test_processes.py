"""The processes of `raycluster serve`: neither needs the other, and all end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedpilot.fabric.errors import SpecError
from fedpilot.fabric.ray_clusters.declarations.documents import AUTOSCALER, LIFECYCLE_MANAGER
from fedpilot.fabric.ray_clusters.declarations.records import RoleName
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.processes import serve
from real_ray import free_port

PATIENCE_S = 120.0


class Serving:
    """`fedpilot raycluster serve` with a store of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.store = RayClusterStore(folder / "declared.sqlite")
        words = ["raycluster", "serve", "--store", str(self.store.path), *options]
        self.process = subprocess.Popen([sys.executable, "-m", "fedpilot", *words])

    def holder(self, role: RoleName) -> int:
        """The process that has a role; 0 if none has."""
        lease = self.store.last_lease(role)
        held = lease is not None and self.store.is_held(role)
        return int(lease.holder.rpartition(":")[2]) if held and lease is not None else 0

    def holds(self, role: RoleName, but: int = 0) -> Callable[[], bool]:
        return lambda: self.holder(role) not in (0, but)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    try:
        until(serving.holds(LIFECYCLE_MANAGER))
        until(serving.holds(AUTOSCALER))
        yield serving
    finally:
        serving.process.kill()
        serving.process.wait()
        serving.store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "role", [LIFECYCLE_MANAGER, pytest.param(AUTOSCALER, marks=pytest.mark.soak)]
)
def test_a_process_that_is_killed_starts_again_and_the_other_goes_on(
    serving: Serving, role: RoleName
) -> None:
    other = AUTOSCALER if role == LIFECYCLE_MANAGER else LIFECYCLE_MANAGER
    before, beside = serving.holder(role), serving.holder(other)
    os.kill(before, signal.SIGKILL)
    until(serving.holds(role, but=before))
    assert serving.holder(other) == beside


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, marks=pytest.mark.soak),
        signal.SIGKILL,
    ],
)
def test_both_end_with_it_however_it_ends(serving: Serving, number: signal.Signals) -> None:
    serving.process.send_signal(number)
    code = serving.process.wait(PATIENCE_S)
    assert code == (-number if number == signal.SIGKILL else 0)
    until(lambda: not serving.store.is_held(LIFECYCLE_MANAGER))
    until(lambda: not serving.store.is_held(AUTOSCALER))


@pytest.mark.slow
def test_without_an_autoscaler_there_is_the_manager_alone(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "--no-autoscaler")
    try:
        until(serving.holds(LIFECYCLE_MANAGER))
        time.sleep(0.5)
        assert not serving.store.is_held(AUTOSCALER)
    finally:
        serving.process.terminate()
        serving.process.wait(PATIENCE_S)
        serving.store.close()


@pytest.mark.slow
def test_metrics_are_in_a_file_and_at_an_address_and_end_with_it(tmp_path: Path) -> None:
    file, port = tmp_path / "rays.prom", free_port()
    outlets = ["--metrics-file", str(file), "--metrics-listen", str(port)]
    serving = Serving(tmp_path, "--no-autoscaler", *outlets)
    try:
        until(lambda: file.exists() and "fedpilot_raycluster_managed 1.0\n" in file.read_text())
        until(lambda: b"fedpilot_raycluster_managed 1.0\n" in told_at(port))
    finally:
        serving.process.kill()
        serving.process.wait(PATIENCE_S)
        serving.store.close()
    until(lambda: not told_at(port))
    assert list(tmp_path.glob("rays.prom*")) == [file]


def told_at(port: int) -> bytes:
    """The metrics at a port; nothing if nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def test_an_outlet_of_metrics_that_cannot_be_used_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--metrics-file"):
        serve(tmp_path / "declared.sqlite", metrics_file=tmp_path / "gone" / "rays.prom")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["no_such_module:decide", "json:no_such_function", "json"])
def test_a_decision_that_is_not_there_is_refused_before_anything_starts(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="cannot be imported"):
        serve(tmp_path / "declared.sqlite", decides=name)
    assert not any(tmp_path.iterdir())
