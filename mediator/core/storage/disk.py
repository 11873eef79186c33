"""How much disk space caches leave free, and when a site's disk is too full to take work.

The reserve is for logs, journals and certificates; models may fill half of it once the caches are
empty. A site with less than half of the reserve free is in trouble until all of it is free again;
otherwise its state would change with every file.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpilot.common.text.amounts import in_bytes

MOST_KEPT_FREE = 512 << 20
"""Bytes that stay free of a large disk."""
PART_KEPT_FREE = 20
"""On a small disk, 1/20 stays free."""


@dataclass(frozen=True, slots=True)
class Space:
    """Disk space in bytes."""

    total: int
    free: int

    @property
    def kept_free(self) -> int:
        """Bytes that caches leave free."""
        return min(MOST_KEPT_FREE, self.total // PART_KEPT_FREE)


def disk_trouble(space: Space, folder: str, *, before: bool) -> str:
    """Why a disk is too full to take work; empty if it has room. `before`: it was too full."""
    least = space.kept_free if before else space.kept_free // 2
    if space.free >= least:
        return ""
    return (
        f"the disk of {folder} is full: {in_bytes(space.free)} of {in_bytes(space.total)} are "
        f"free, and {in_bytes(space.kept_free)} have to be"
    )
