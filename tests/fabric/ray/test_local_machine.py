"""This computer is described as an embedded Ray would describe it."""

from __future__ import annotations

from pathlib import Path

from fedpilot.common.host.machine import usable_cpus
from fedpilot.fabric import local_machine
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.ray.local_machine import niceness_of_workers


def test_given_counts_are_taken_as_they_are() -> None:
    machine = local_machine(num_cpus=3, num_gpus=2)
    assert machine.total["CPU"] == 3 * UNIT
    assert machine.total["GPU"] == 2 * UNIT
    assert machine.total["memory"] > 0


def test_without_counts_it_has_the_cpus_that_this_process_may_use() -> None:
    assert local_machine().total["CPU"] == usable_cpus() * UNIT


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
