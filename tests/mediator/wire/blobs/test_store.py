"""A store gives back what was put under a digest, within its limit, and nothing else."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fedpilot.mediator.wire.blobs.store import (
    LARGEST_BLOB,
    BadBlob,
    Blob,
    BlobBusy,
    BlobStore,
    NoRoom,
)


def blob_of(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data))


def put(store: BlobStore, data: bytes, used_at: int | None = None) -> Blob:
    """A blob of these bytes in the store, last used at a time of the tests' own."""
    aside = store.folder / "aside"
    aside.write_bytes(data)
    blob = store.adopt(aside)
    if used_at is not None:
        os.utime(store.path(blob.digest), (used_at, used_at))
    return blob


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", 100)


@pytest.mark.parametrize(
    ("digest", "size"),
    [
        pytest.param("a" * 63, 1, id="a digit too few"),
        pytest.param("A" * 64, 1, id="capitals"),
        pytest.param("../" + "a" * 61, 1, id="a path"),
        pytest.param("a" * 64 + "\n", 1, id="a line"),
        pytest.param("a" * 64, -1, id="less than nothing"),
        pytest.param("a" * 64, LARGEST_BLOB + 1, id="too many bytes"),
    ],
)
def test_what_names_no_blob_is_refused(digest: str, size: int) -> None:
    with pytest.raises(BadBlob):
        Blob(digest, size)


# -- parts ------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_a_blob_comes_together_whatever_cut_it(
    store: BlobStore, data: bytes, cuts: list[int]
) -> None:
    blob = blob_of(data)
    for cut in [*sorted(cuts), len(data)]:
        part = store.open_part(blob)
        assert part.size == store.under_way(blob)
        part.write(data[part.size : max(cut, part.size)])
        part.close()
    path = store.open_part(blob).finish()
    assert path.read_bytes() == data
    assert store.has(blob)
    assert os.listdir(store.folder) == [blob.digest]
    path.unlink()


def test_a_part_with_other_bytes_is_gone_when_it_is_finished(store: BlobStore) -> None:
    blob = blob_of(b"right")
    part = store.open_part(blob)
    part.write(b"wrong")
    with pytest.raises(BadBlob, match="what came are 5 bytes"):
        part.finish()
    assert part.closed
    assert os.listdir(store.folder) == []
    assert store.open_part(blob).size == 0


def test_a_part_takes_no_more_than_its_blob_has(store: BlobStore) -> None:
    part = store.open_part(blob_of(b"right"))
    part.write(b"rig")
    with pytest.raises(BadBlob, match="3 more came after 3"):
        part.write(b"hts")
    part.write(b"h", b"t")
    assert part.finish().read_bytes() == b"right"


def test_a_part_that_is_longer_than_its_blob_begins_anew(store: BlobStore) -> None:
    blob = blob_of(b"right")
    (store.folder / f"{blob.digest}.part").write_bytes(b"right and more")
    assert store.under_way(blob) == 0
    assert store.open_part(blob).size == 0


def test_a_part_has_one_writer_at_a_time(store: BlobStore) -> None:
    blob = blob_of(b"right")
    part = store.open_part(blob)
    with pytest.raises(BlobBusy):
        store.open_part(blob)
    part.close()
    part.close()
    with pytest.raises(BlobBusy):
        part.write(b"r")
    store.open_part(blob).close()


def test_parts_of_different_owners_do_not_touch_each_other(store: BlobStore) -> None:
    blob = blob_of(b"right")
    bad, good = store.open_part(blob, "lyon"), store.open_part(blob, "paris")
    bad.write(b"wrong")
    good.write(b"right")
    with pytest.raises(BadBlob):
        bad.finish()
    assert good.finish().read_bytes() == b"right"
    with pytest.raises(BadBlob, match="file's name"):
        store.open_part(blob, "../lyon")


def test_a_part_is_dropped_unless_somebody_writes_it(store: BlobStore) -> None:
    blob = blob_of(b"right")
    part = store.open_part(blob, "paris")
    store.drop_part(blob, "paris")
    part.write(b"rig")
    part.close()
    assert store.under_way(blob, "paris") == 3
    store.drop_part(blob, "paris")
    assert store.under_way(blob, "paris") == 0


# -- the limit --------------------------------------------------------------------------------


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


# -- removing ---------------------------------------------------------------------------------


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


def test_a_part_is_written_to_the_file_that_has_the_name(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = blob_of(b"right")
    path = store.folder / f"{blob.digest}.part"
    lock, removed = fcntl.flock, list[bool]()

    def locked(file: int, how: int) -> None:
        if how == fcntl.LOCK_EX | fcntl.LOCK_NB and not removed:
            # The part is open here and not locked yet: another process removes it now.
            removed.append(True)
            path.unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", locked)
    part = store.open_part(blob)
    part.write(b"right")
    assert path.read_bytes() == b"right"
    assert part.finish().read_bytes() == b"right"
