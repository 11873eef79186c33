"""The store's file is its user's alone, and what cannot be a store is refused with the reason."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
from fedpilot.fabric.errors import StoreUnusable
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED, RoleName
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.declarations.store_file import StoreFile, default_store
from power_cuts import Disk
from small_disks import excused, small_disk

TEAM = RayClusterName("team")
NOBODY = 65534
needs_disk = pytest.mark.skipif(bool(excused()), reason=excused())
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_its_user_can_read_what_is_declared(tmp_path: Path) -> None:
    path = tmp_path / "state" / "fedpilot" / "declared.sqlite"
    with RayClusterStore(path) as store, store.watch():
        store.apply(TEAM, {}, saw=UNDECLARED, by="ann", at=1.0)
        assert store.acquire(RoleName("manager"), "first") is not None
        made = {each.name: mode(each) for each in path.parent.iterdir()}
    assert made == {
        "declared.sqlite": 0o600,
        "declared.sqlite-shm": 0o600,
        "declared.sqlite-wal": 0o600,
        "declared.sqlite.manager.lock": 0o600,
        "declared.sqlite.watch": 0o700,
    }
    assert [mode(tmp_path / "state"), mode(path.parent)] == [0o700, 0o700]


def test_a_file_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "declared.sqlite"
    StoreFile(path).close()
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    StoreFile(path).close()
    assert (mode(path), mode(tmp_path)) == (0o600, 0o755)


def test_new_folders_are_on_disk_before_the_first_write(tmp_path: Path, disk: Disk) -> None:
    StoreFile(tmp_path / "a" / "b" / "declared.sqlite").close()
    folders = [path for act, path in disk.acts if act == "fsync"]
    assert folders == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 1)])
def test_a_durable_commit_is_synced(tmp_path: Path, durable: bool, level: int) -> None:
    """2 is FULL, 1 is NORMAL (https://www.sqlite.org/pragma.html#pragma_synchronous)."""
    with closing(StoreFile(tmp_path / "declared.sqlite")) as file:
        for _ in range(2):
            with file.writing(durable=not durable):
                pass
            with file.writing(durable=durable) as connection:
                assert connection.execute("PRAGMA synchronous").fetchone() == (level,)


def test_the_default_store_is_among_the_users_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_store() == tmp_path / "fedpilot" / "ray-clusters" / "declared.sqlite"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_store().is_relative_to(Path.home() / ".local" / "state" / "fedpilot")


def no_database(path: Path) -> None:
    path.write_text("this is no database, and never was one " * 100)


def short_text(path: Path) -> None:
    path.write_text("short")


def folder(path: Path) -> None:
    path.mkdir()


def file_above(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("no folder")


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE ledger (name TEXT)")
        file.execute("PRAGMA user_version = 1")


def of_format(number: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        StoreFile(path).close()
        with closing(sqlite3.connect(path)) as file:
            file.execute(f"PRAGMA user_version = {number}")

    return make


def damaged(path: Path) -> None:
    StoreFile(path).close()
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996  # the first page, behind the header
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        pytest.param(no_database, "it is no SQLite database", id="text is no store"),
        pytest.param(short_text, "it is no SQLite database", id="a short text is no store"),
        pytest.param(folder, "it is no file", id="a folder is no store"),
        pytest.param(file_above, "/state: it is no folder", id="a file is no folder"),
        pytest.param(of_another_program, "of another program", id="a ledger is no store"),
        pytest.param(of_format(2), "format 2.*reads format 1; a newer", id="a newer format"),
        pytest.param(of_format(0), "format 0.*reads format 1$", id="a format that never was"),
        pytest.param(damaged, "it is damaged", id="a damaged file"),
    ],
)
def test_what_is_no_store_is_refused_and_stays_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], told: str
) -> None:
    path = tmp_path / "state" / "declared.sqlite"
    path.parent.mkdir(mode=0o700)
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreUnusable, match=told) as refused:
        RayClusterStore(path)
    assert refused.value.path == str(path)
    assert before is None or path.read_bytes() == before


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "declared.sqlite"
    path.touch()
    with RayClusterStore(path) as store:
        assert store.declarations() == ()


@needs_root
@pytest.mark.parametrize("which", ["it", "its folder"])
def test_another_users_store_is_refused(tmp_path: Path, which: str) -> None:
    path = tmp_path / "state" / "declared.sqlite"
    StoreFile(path).close()
    os.chown(path if which == "it" else path.parent, NOBODY, NOBODY)
    with pytest.raises(StoreUnusable, match=f"store of Ray clusters: {which} belongs to nobody"):
        RayClusterStore(path)


@needs_root
def test_who_may_not_enter_the_folder_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "state" / "declared.sqlite"
    StoreFile(path).close()
    os.seteuid(NOBODY)
    try:
        with pytest.raises(StoreUnusable, match=f"{path}.*: Permission denied"):
            RayClusterStore(path)
    finally:
        os.seteuid(0)


@needs_disk
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as there:
        path, new = there.folder / "declared.sqlite", there.folder / "new.sqlite"
        StoreFile(path).close()
        subprocess.run(["mount", "-o", "remount,ro", str(there.folder)], check=True)
        with pytest.raises(StoreUnusable, match=r"cannot be written to|Read-only file system"):
            RayClusterStore(path)
        with pytest.raises(StoreUnusable, match="Read-only file system"):
            RayClusterStore(new)


@needs_disk
def test_on_a_full_disk_writes_are_refused_and_what_is_there_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as there:
        path = there.folder / "declared.sqlite"
        with RayClusterStore(path) as store:
            kept = store.apply(TEAM, {"a": 1}, saw=UNDECLARED, by="ann", at=1.0)
            there.fill()
            with pytest.raises(StoreUnusable, match="its disk is full"):
                store.apply(TEAM, {"a": "x" * (1 << 20)}, saw=kept.revision, by="ann", at=2.0)
            assert store.find(TEAM) == kept
            there.free()
            later = store.apply(TEAM, {"a": 2}, saw=kept.revision, by="ann", at=3.0)
        with RayClusterStore(path) as store:
            assert store.find(TEAM) == later


@pytest.mark.parametrize(
    ("replace", "told"),
    [
        pytest.param(False, "it was removed while it was open", id="removed"),
        pytest.param(True, "it was replaced by another file", id="replaced"),
    ],
)
def test_no_write_goes_to_a_file_that_is_gone(tmp_path: Path, replace: bool, told: str) -> None:
    path = tmp_path / "declared.sqlite"
    with RayClusterStore(path) as store:
        path.rename(tmp_path / "aside")
        if replace:
            path.touch()
        with pytest.raises(StoreUnusable, match=told):
            store.apply(TEAM, {}, saw=UNDECLARED, by="ann", at=1.0)


def test_a_closed_store_is_refused(tmp_path: Path) -> None:
    store = RayClusterStore(tmp_path / "declared.sqlite")
    store.close()
    store.close()
    with pytest.raises(StoreUnusable, match="closed"):
        store.declarations()


def test_several_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def opened(_: int) -> RayClusterStore:
        together.wait()
        return RayClusterStore(tmp_path / "declared.sqlite")

    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(opened, range(4)))
    written = stores[0].apply(TEAM, {}, saw=UNDECLARED, by="ann", at=1.0)
    for store in stores:
        assert store.find(TEAM) == written
        store.close()


def test_a_new_store_waits_for_who_reads_the_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself gives up sooner, and at once where it might wait for ever."""
    path = tmp_path / "declared.sqlite"
    path.touch()
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sqlite_master")

        def end(*_: float) -> float:
            reader.execute("COMMIT")
            return 0.0

        monkeypatch.setattr(random, "uniform", end)
        with closing(StoreFile(path, busy_s=0.01)) as file, file.reading() as connection:
            assert connection.execute("SELECT revision FROM counter").fetchone() == (0,)
        assert not reader.in_transaction


def test_another_processs_transaction_is_waited_for_within_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "declared.sqlite"
    with (
        closing(StoreFile(path)) as first,
        closing(StoreFile(path, busy_s=0.05)) as second,
        first.writing(),
    ):
        with second.reading() as connection:  # readers do not wait
            assert connection.execute("SELECT revision FROM counter").fetchone() == (0,)
        with pytest.raises(StoreUnusable, match="another process holds it"), second.writing():
            pass
