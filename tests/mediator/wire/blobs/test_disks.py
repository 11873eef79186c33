"""A disk that fills up: caches give way to others, and an error that comes of it is known."""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError

from fedpilot.mediator.core.storage.disk import MOST_KEPT_FREE, Space, disk_trouble
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.errors import NoRoom, NoRoomOnDisk
from fedpilot.mediator.wire.blobs.full_disk import is_full
from fedpilot.mediator.wire.blobs.store import BlobStore

MB = 1_000_000


class Disk:
    """A disk of 1,000 bytes, 50 of which are to stay free; others have filled a part of it."""

    def __init__(self, folder: Path, others: int) -> None:
        self.folder, self.others = folder, others

    def __call__(self, folder: Path) -> Space:
        mine = sum(path.stat().st_size for path in self.folder.iterdir())
        return Space(total=1_000, free=1_000 - self.others - mine)


def put(store: BlobStore, data: bytes) -> Blob:
    """Bring some bytes into a store."""
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
    part = store.open_part(blob)
    try:
        part.write(data)
        part.finish()
    finally:
        part.close()
    return blob


def test_what_others_leave_of_the_disk_bounds_a_store(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1 << 36, space=Disk(tmp_path, others=500))
    blobs = [put(store, bytes([number]) * 100) for number in range(20)]
    there = [number for number, blob in enumerate(blobs) if store.has(blob)]
    assert there == [16, 17, 18, 19], "those that were used last, and 50 bytes are free"


def test_a_store_gives_way_to_others_but_keeps_what_is_pinned(tmp_path: Path) -> None:
    disk = Disk(tmp_path, others=0)
    store = BlobStore(tmp_path, 1 << 36, space=disk)
    blobs = [put(store, bytes([number]) * 100) for number in range(4)]
    for number, blob in enumerate(blobs):
        os.utime(store.path(blob.digest), (number, number))
    store.pin(blobs[0].digest)
    disk.others = 600
    store.give_way()
    there = [store.path(blob.digest).exists() for blob in blobs]
    assert there == [True, False, True, True]
    disk.others = 900
    store.give_way()
    assert [store.path(blob.digest).exists() for blob in blobs] == [True, False, False, False]


def test_a_blob_that_the_disk_has_no_room_for_is_refused_with_what_is_free(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1 << 36, space=Disk(tmp_path, others=890))
    with pytest.raises(NoRoomOnDisk, match=f"the disk of {tmp_path} has [0-9]+ B free"):
        put(store, bytes(100))
    assert put(store, bytes(60)).size == 60


def test_a_store_with_nothing_to_give_works_until_the_site_is_in_trouble(tmp_path: Path) -> None:
    """Otherwise the site would be asked, refuse, and be asked again, over and over."""
    disk = Disk(tmp_path, others=960)
    store = BlobStore(tmp_path, 1 << 36, space=disk)
    store.pin(put(store, bytes(10)).digest)
    with pytest.raises(NoRoomOnDisk):
        put(store, bytes(20))
    assert not disk_trouble(disk(tmp_path), "its home", before=False)
    assert disk_trouble(replace(disk(tmp_path), free=10), "its home", before=False)


def test_a_file_that_is_there_already_needs_no_more_room(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1 << 36, space=Disk(tmp_path, others=850))
    path = tmp_path / "made.tmp"
    path.write_bytes(bytes(100))
    assert store.has(store.adopt(path))


def test_several_that_are_under_way_do_not_take_the_same_room(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1 << 36, space=Disk(tmp_path, others=700))
    first = store.open_part(Blob("a" * 64, 150))
    with pytest.raises(NoRoomOnDisk):
        store.open_part(Blob("b" * 64, 150))
    first.close()
    store.open_part(Blob("b" * 64, 150)).close()


@pytest.mark.parametrize(
    ("total", "free", "before", "full"),
    [
        pytest.param(1_000 * MB, 26 * MB, False, False, id="half of what stays free is left"),
        pytest.param(1_000 * MB, 24 * MB, False, True, id="less than half is left"),
        pytest.param(1_000 * MB, 26 * MB, True, True, id="it was full, and is not free yet"),
        pytest.param(1_000 * MB, 51 * MB, True, False, id="it was full, and is free again"),
        pytest.param(10**12, MOST_KEPT_FREE, True, False, id="a large disk"),
        pytest.param(10**12, MOST_KEPT_FREE // 2 - 1, False, True, id="a large disk, full"),
    ],
)
def test_a_disk_is_in_trouble_until_it_has_room_again(
    total: int, free: int, before: bool, full: bool
) -> None:
    found = disk_trouble(Space(total=total, free=free), "/srv/site", before=before)
    assert bool(found) is full
    if full:
        assert found.startswith("the disk of /srv/site is full: ")


def _caused(by: BaseException) -> Exception:
    try:
        raise ValueError("a checkpoint cannot be written") from by
    except ValueError as error:
        return error


class SaysLittle(Exception):
    """An error of a worker as Ray brings it home."""

    cause = OSError(errno.ENOSPC, "No space left on device")


def _sqlite_full() -> Exception:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("PRAGMA max_page_count = 3")
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    return caught.value


@pytest.mark.parametrize(
    ("error", "full"),
    [
        pytest.param(OSError(errno.ENOSPC, "No space left"), True, id="the system says so"),
        pytest.param(OSError(errno.EDQUOT, "Disk quota exceeded"), True, id="a quota"),
        pytest.param(NoRoomOnDisk("no room"), True, id="a store of blobs"),
        pytest.param(_caused(OSError(errno.ENOSPC, "No space left")), True, id="a cause"),
        pytest.param(SaysLittle(), True, id="a cause in a worker"),
        pytest.param(
            SafetensorError("Error while serializing: No space left on device (os error 28)"),
            True,
            id="safetensors, in words",
        ),
        pytest.param(_sqlite_full(), True, id="SQLite"),
        pytest.param(NoRoom("raise its limit"), False, id="a limit of a store"),
        pytest.param(OSError(errno.EACCES, "Permission denied"), False, id="no right"),
        pytest.param(ValueError("No space left on device"), False, id="somebody's words"),
    ],
)
def test_an_error_is_known_as_of_a_full_disk(error: Exception, full: bool) -> None:
    assert is_full(error) is full
