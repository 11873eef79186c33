"""What this computer offers to an embedded Ray, and how busy it is."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.records import Machine, MachineId
from ..core.resources import Resources


def local_machine(num_cpus: int | None = None, num_gpus: int | None = None) -> Machine:
    """This computer as an embedded Ray describes it, but with all of its memory."""
    amounts: dict[str, float] = {
        "CPU": usable_cpus() if num_cpus is None else num_cpus,
        "GPU": usable_gpus() if num_gpus is None else num_gpus,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    hostname = socket.gethostname()
    return Machine(id=MachineId(hostname), hostname=hostname, total=Resources.of(amounts))


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


def niceness_of_workers(gcs_address: str, processes: Path = Path("/proc")) -> int | None:
    """The niceness of a Ray cluster's workers on this computer; None if none is visible."""
    parents: dict[int, tuple[int, int, bytes]] = {}
    for folder in processes.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # the process has just ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
            parents[int(folder.name)] = int(fields[1]), int(fields[16]), command
    flag = os.fsencode(f"--gcs-address={gcs_address}")
    raylets = {
        pid
        for pid, (_, _, command) in parents.items()
        if b"raylet" in command.partition(b"\0")[0] and flag in command.split(b"\0")
    }
    found = [
        nice
        for parent, nice, command in parents.values()
        if parent in raylets and command.startswith(b"ray::")
    ]
    return max(found, default=None)


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
