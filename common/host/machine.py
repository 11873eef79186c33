"""What this computer has, and how busy it is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Load:
    """How busy this computer is, which decides how long a start takes."""

    average: float
    """The load average: processes that ran or were ready to run in the last minute."""
    cpus: int
    niceness: int | None = None
    """The niceness of Ray's workers here, if known."""

    def __str__(self) -> str:
        cpus = "1 CPU" if self.cpus == 1 else f"{self.cpus} CPUs"
        nice = "" if self.niceness is None else f", workers at niceness {self.niceness}"
        return f"load {self.average:.1f} on {cpus}{nice}"


def load(niceness: int | None = None) -> Load:
    """How busy this computer is now."""
    return Load(round(os.getloadavg()[0], 1), usable_cpus(), niceness)


def usable_cpus() -> int:
    """Count the CPUs that this process may use: its affinity and its control group's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cpu_quota()
    return count if quota is None else max(1, min(count, int(quota)))


def _cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # no control groups here, or "max": no quota
        return None


def usable_gpus(devices: Path = Path("/dev")) -> int:
    """Count the NVIDIA GPUs that this process may use: its devices minus those hidden from CUDA."""
    present = sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in devices.glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, sum(bool(one.strip()) for one in visible.split(",")))
