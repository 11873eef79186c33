"""A store gives back what was put under a digest, within its limit, and nothing else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from blob_files import blob_of, put
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.errors import BadBlob, NoRoom
from fedpilot.mediator.wire.blobs.store import BlobStore


def test_the_longest_unused_makes_room(store: BlobStore) -> None:
    old, older, young = (
        put(store, text * 30, at) for text, at in ((b"a", 20), (b"b", 10), (b"c", 30))
    )
    new = put(store, b"d" * 30)
    assert [store.has(blob) for blob in (older, old, young, new)] == [False, True, True, True]


def test_using_a_blob_keeps_it(store: BlobStore) -> None:
    first, second = put(store, b"a" * 40, 10), put(store, b"b" * 40, 20)
    assert store.has(first)
    put(store, b"c" * 40)
    assert [store.has(first), store.has(second)] == [True, False]


def test_a_pinned_blob_stays_until_it_was_unpinned_as_often(store: BlobStore) -> None:
    pinned = put(store, b"a" * 60, 10)
    store.pin(pinned.digest)
    store.pin(pinned.digest)
    store.unpin(pinned.digest)
    with pytest.raises(NoRoom, match="10 more than are free or unpinned of the 100"):
        put(store, b"b" * 50)
    assert store.has(pinned)
    store.unpin(pinned.digest)
    put(store, b"b" * 50)
    assert not store.has(pinned)
    with pytest.raises(ValueError, match="not pinned"):
        store.unpin(pinned.digest)


def test_a_pin_may_come_before_its_blob(store: BlobStore) -> None:
    data = b"a" * 60
    with store.pinned(blob_of(data).digest):
        put(store, data, 10)
        with pytest.raises(NoRoom):
            put(store, b"b" * 50)
    put(store, b"b" * 50)


def test_a_pin_holds_against_another_process_until_its_own_ends(store: BlobStore) -> None:
    blob = put(store, b"a" * 60, 10)
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1])\n"
        "fcntl.flock(file, fcntl.LOCK_SH)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(store.path(blob.digest))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(NoRoom):
            put(store, b"b" * 50)
        other.kill()
    put(store, b"b" * 50)
    assert not store.has(blob)


def test_what_can_never_fit_removes_nothing(store: BlobStore) -> None:
    there = put(store, b"a" * 60)
    with pytest.raises(NoRoom, match="raise its limit"):
        store.open_part(Blob("b" * 64, 101))
    assert store.has(there)


def test_an_open_part_takes_all_its_room_at_once(store: BlobStore) -> None:
    part = store.open_part(Blob("a" * 64, 60))
    with pytest.raises(NoRoom):
        store.open_part(Blob("b" * 64, 60))
    part.close()
    store.open_part(Blob("b" * 64, 60)).close()


def test_a_store_with_room_is_not_looked_through_for_each_blob(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.limit_bytes = 1_000
    looks = 0
    scandir = os.scandir

    def counted(path: Path) -> Any:
        nonlocal looks
        looks += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    for number in range(100):
        put(store, bytes([number]) * 10)
    assert 1 <= looks <= 20
    with pytest.raises(NoRoom):
        store.open_part(Blob("a" * 64, 1_001))
    for number in range(100, 105):
        put(store, bytes([number]) * 10)
    assert sum(each.stat().st_size for each in store.folder.iterdir()) == 1_000


def test_a_file_that_is_not_whole_is_no_blob(store: BlobStore) -> None:
    blob = put(store, b"right")
    store.path(blob.digest).write_bytes(b"")
    assert not store.has(blob)
    assert os.listdir(store.folder) == []


def test_cleaning_removes_blobs_that_nobody_has_needed_for_long_if_asked_to(
    store: BlobStore,
) -> None:
    unused, pinned, used = put(store, b"a", 10), put(store, b"b", 10), put(store, b"c", 90)
    with store.pinned(pinned.digest):
        assert store.clean(now=100, stale_after_s=60) == 0
        assert store.clean(now=100, stale_after_s=60, blobs_too=True) == unused.size
        assert set(os.listdir(store.folder)) == {pinned.digest, used.digest}


def test_cleaning_removes_what_was_left_half_done_and_long_ago(store: BlobStore) -> None:
    kept = put(store, b"a", 10)
    for name, size, at in (
        (f"{'b' * 64}.part", 5, 10),
        (".x.tmp", 7, 10),
        (f"{'c' * 64}.part", 11, 90),
    ):
        (store.folder / name).write_bytes(bytes(size))
        os.utime(store.folder / name, (at, at))
    written = store.open_part(Blob("d" * 64, 3))
    os.utime(store.folder / f"{'d' * 64}.part", (10, 10))
    assert store.clean(now=100, stale_after_s=60) == 12
    assert sorted(os.listdir(store.folder)) == sorted(
        [kept.digest, f"{'c' * 64}.part", f"{'d' * 64}.part"]
    )
    written.close()


def test_a_blob_is_removed_unless_it_is_pinned_here_or_elsewhere(store: BlobStore) -> None:
    blob = put(store, b"right")
    elsewhere = BlobStore(store.folder, 100)
    for holder in (store, elsewhere):
        with holder.pinned(blob.digest):
            assert not store.remove(blob.digest)
            assert store.has(blob)
    assert store.remove(blob.digest)
    assert not store.has(blob)
    assert store.remove(blob.digest)
    with pytest.raises(BadBlob):
        store.remove("../right")


def test_a_pin_of_another_process_holds_when_the_same_blob_is_written_again(
    store: BlobStore,
) -> None:
    blob = put(store, b"right")
    elsewhere = BlobStore(store.folder, 100)
    with elsewhere.pinned(blob.digest):
        put(store, b"right")
        assert not store.remove(blob.digest)
        assert elsewhere.has(blob)
    assert store.remove(blob.digest)


def test_whoever_removes_an_old_file_spares_the_new_one_of_its_name(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = put(store, b"right")
    elsewhere = BlobStore(store.folder, 100)
    aside = store.folder / "again"
    aside.write_bytes(b"right")
    adopting = threading.Thread(target=elsewhere.adopt, args=(aside, blob))
    lock = fcntl.flock

    def locked(file: int, how: int) -> None:
        lock(file, how)
        if how == fcntl.LOCK_EX | fcntl.LOCK_NB and adopting.ident is None:
            # The old file is locked and about to be removed: another one takes its name now.
            adopting.start()
            adopting.join(0.2)

    monkeypatch.setattr(fcntl, "flock", locked)
    assert store.remove(blob.digest)
    adopting.join(60)
    assert elsewhere.has(blob)


def test_a_blob_that_is_pinned_is_finished_by_whoever_writes_it(store: BlobStore) -> None:
    """Its writer's lock and the pin's are on one file, and must go together."""
    blob = blob_of(b"right")
    done: list[Path] = []
    with store.pinned(blob.digest):
        part = store.open_part(blob)
        part.write(b"right")
        finishing = threading.Thread(target=lambda: done.append(part.finish()), daemon=True)
        finishing.start()
        finishing.join(60)
        assert done == [store.path(blob.digest)]


@pytest.mark.parametrize("comes_again", [True, False])
def test_a_pin_is_on_the_file_that_has_the_name(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, comes_again: bool
) -> None:
    blob = put(store, b"right")
    elsewhere = BlobStore(store.folder, 100)
    lock, removed = fcntl.flock, list[bool]()

    def locked(file: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not removed:
            # The file is open here and not locked yet: another process removes it now.
            removed.append(True)
            assert elsewhere.remove(blob.digest)
            if comes_again:
                put(elsewhere, b"right")
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", locked)
    with store.pinned(blob.digest):
        assert store.has(blob) == comes_again
        if not comes_again:
            put(elsewhere, b"right")
            assert store.has(blob)
        assert not elsewhere.remove(blob.digest)
    assert elsewhere.remove(blob.digest)
