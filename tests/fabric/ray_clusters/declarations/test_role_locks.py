"""A role is locked by the file that is there now, not by a removed one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from fedpilot.fabric.ray_clusters.declarations.records import RoleName
from fedpilot.fabric.ray_clusters.declarations.role_locks import RoleLocks, locked

MANAGER = RoleName("manager")


def test_a_file_that_is_removed_while_it_is_being_locked_is_locked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / "manager.lock", fcntl.flock
    removals = iter([True])

    def removing(descriptor: int, how: int) -> None:
        if next(removals, False):
            path.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removing)
    descriptor = locked(path)
    assert descriptor is not None
    assert locked(path) is None
    os.close(descriptor)


def test_a_closed_lock_is_free(tmp_path: Path) -> None:
    first, second = (RoleLocks(tmp_path / "declared.sqlite") for _ in range(2))
    assert first.take(MANAGER)
    assert not second.take(MANAGER)
    second.drop(MANAGER)
    assert not second.take(MANAGER)
    first.close()
    first.close()
    assert second.take(MANAGER)
    second.close()


def test_a_link_is_no_lock_file(tmp_path: Path) -> None:
    """It would lock, and create, the file of another folder."""
    (tmp_path / "declared.sqlite.manager.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        RoleLocks(tmp_path / "declared.sqlite").take(MANAGER)
    assert not (tmp_path / "elsewhere").exists()
