"""This computer as an embedded Ray describes it, and how much its workers yield to others."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from fedpilot.common.host.machine import usable_cpus, usable_gpus

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
