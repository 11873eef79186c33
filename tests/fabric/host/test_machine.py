"""This computer is described without Ray, and as Ray would."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.fabric import local_machine
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.host.machine import (
    Load,
    _cpu_quota,
    load,
    niceness_of_workers,
    usable_cpus,
    usable_gpus,
)


def test_given_counts_are_taken_as_they_are() -> None:
    machine = local_machine(num_cpus=3, num_gpus=2)
    assert machine.total["CPU"] == 3 * UNIT
    assert machine.total["GPU"] == 2 * UNIT
    assert machine.total["memory"] > 0


def test_there_is_a_cpu_to_run_this() -> None:
    assert usable_cpus() >= 1
    assert local_machine().total["CPU"] == usable_cpus() * UNIT


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({"cpu.max": "150000 100000"}, 1.5, id="version 2 with a quota"),
        pytest.param({"cpu.max": "max 100000"}, None, id="version 2 without a quota"),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2.0,
            id="version 1 with a quota",
        ),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
            id="version 1 without a quota",
        ),
        pytest.param({}, None, id="no control groups"),
    ],
)
def test_the_quota_of_the_control_group(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        pytest.param(None, 2, id="all devices"),
        pytest.param("1", 1, id="one is visible"),
        pytest.param("", 0, id="none is visible"),
        pytest.param("0,1,2", 2, id="no more than there are"),
    ],
)
def test_gpus_are_devices_that_cuda_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert usable_gpus(tmp_path) == count


def test_how_busy_it_is_is_said_in_words() -> None:
    assert str(Load(16.25, 2, 15)) == "load 16.2 on 2 CPUs, workers at niceness 15"
    assert str(Load(0.0, 1)) == "load 0.0 on 1 CPU"
    assert load(3).niceness == 3
    assert load().cpus == usable_cpus()


def processes(folder: Path, *found: tuple[int, int, int, str]) -> Path:
    """What the system shows of processes: pid, parent, niceness, command line."""
    for pid, parent, nice, command in found:
        own = folder / str(pid)
        own.mkdir()
        fields = ["S", str(parent), *["0"] * 14, str(nice), "1"]
        (own / "stat").write_text(f"{pid} (a (strange) name) {' '.join(fields)}\n")
        (own / "cmdline").write_text("\0".join(command.split()))
    (folder / "999").mkdir()  # one that has just ended
    return folder


RAYLET = "/site-packages/ray/core/src/ray/raylet/raylet --gcs-address=10.0.0.5:6379 --x"
OTHER = "/site-packages/ray/core/src/ray/raylet/raylet --gcs-address=10.0.0.5:6380"


def test_the_niceness_of_workers_is_that_of_their_own_ray(tmp_path: Path) -> None:
    shown = processes(
        tmp_path,
        (1, 0, 0, RAYLET),
        (2, 1, 15, "ray::IDLE"),
        (3, 1, 0, "python dashboard_agent.py"),
        (4, 0, 0, OTHER),
        (5, 4, 19, "ray::IDLE"),
        (6, 0, 3, "ray::somebody"),
    )
    assert niceness_of_workers("10.0.0.5:6379", shown) == 15
    assert niceness_of_workers("10.0.0.5:6380", shown) == 19
    assert niceness_of_workers("10.0.0.5:7", shown) is None
