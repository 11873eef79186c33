"""Say how a runner's process ended: by a signal, for lack of memory, or with an exit code.

The kernel only counts the processes that it kills for lack of memory. So its count is read when the
process starts, and again when it has ended.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SYSTEM = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory, in our control group if told."""
    root, own, whole = SYSTEM
    for path in (*_of_group(root, own), whole):
        with suppress(OSError):
            if found := _COUNT.search(path.read_text()):
                return int(found[1])
    return 0


def _of_group(root: Path, own: Path) -> Iterable[Path]:
    """The files with the count of our own control group: of version 2, and of version 1."""
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield root / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield root / "memory" / path.lstrip("/") / "memory.oom_control"


def how_it_ended(code: int | None, *, out_of_memory: bool = False) -> str:
    """How a process ended, as in `was killed by SIGKILL`; `code` is None if it is unknown."""
    if code is None:
        return "ended without a word"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if out_of_memory and -code == signal.SIGKILL:
        return f"was killed by {name}: the machine was out of memory"
    return f"was killed by {name}"
