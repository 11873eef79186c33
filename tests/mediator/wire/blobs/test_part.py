"""A blob comes together from pieces, by one writer at a time."""

from __future__ import annotations

import fcntl
import os

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from blob_files import blob_of
from fedpilot.mediator.wire.blobs.errors import BadBlob, BlobBusy
from fedpilot.mediator.wire.blobs.store import BlobStore


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
