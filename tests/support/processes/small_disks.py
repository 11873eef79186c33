"""A small disk for a test: a file system in memory that can be filled to its last byte."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BLOCK = 1 << 16


def excused() -> str:
    """Why a test may do without; empty where it may not, as wherever `CI` is set."""
    return "" if "CI" in os.environ or os.geteuid() == 0 else "only root mounts file systems"


class SmallDisk:
    """What is mounted in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (BLOCK, 1):
                with suppress(OSError):
                    while file.write(b"\1" * size):
                        pass

    def free(self) -> None:
        """Give back what was filled."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a disk of so many MB in a new folder; it is unmounted, and the folder stays."""
    folder.mkdir(parents=True, exist_ok=True)
    size = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
