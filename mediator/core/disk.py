"""How much of a disk stays free, and when a site's disk is too full to work with.

A cache gives its files up before the disk is full. What is left then is for logs, journals and
certificates, and half of it for models where the cache has nothing left to give. A site whose disk
has less than half of that is in trouble, until all of it is free again: otherwise it would come and
go with every file.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedpilot.fabric.core.text.amounts import in_bytes

MOST_KEPT_FREE = 512 << 20
"""Bytes that stay free of a large disk."""
PART_KEPT_FREE = 20
"""Of a small one this part stays free: one in so many."""


@dataclass(frozen=True, slots=True)
class Space:
    """What a disk has, in bytes."""

    total: int
    free: int

    @property
    def kept_free(self) -> int:
        """What caches leave free."""
        return min(MOST_KEPT_FREE, self.total // PART_KEPT_FREE)


def disk_trouble(space: Space, folder: str, *, before: bool) -> str:
    """Why no work is taken with such a disk; empty if there is room. `before`: so it was."""
    least = space.kept_free if before else space.kept_free // 2
    if space.free >= least:
        return ""
    return (
        f"the disk of {folder} is full: {in_bytes(space.free)} of {in_bytes(space.total)} are "
        f"free, and {in_bytes(space.kept_free)} have to be"
    )
