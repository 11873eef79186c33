"""Payloads come back as they were, and a file of a stranger is refused before it costs anything."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from fedpilot.mediator.wire.blobs.errors import NoRoom
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.payloads import (
    DTYPES,
    BadPayload,
    header_json,
    read,
    read_tensors,
    write,
)
from fedpilot.mediator.workload import Payload

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
less_often = settings(in_one_folder, max_examples=settings().max_examples // 3)
plain_names = (
    st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=40)
    .filter(str.isprintable)
    .filter(
        lambda name: "/" not in name and "\\" not in name and name not in ("..", "__metadata__")
    )
)
arrays = hnp.arrays(
    st.sampled_from(list(DTYPES.values())),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
tensors = st.dictionaries(plain_names, arrays, max_size=6)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé"), inner, max_size=4),
    max_leaves=20,
)


def file_of(index: Any, data: bytes = b"") -> bytes:
    """A tensor file with any header."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# -- what is written is read ------------------------------------------------------------------


@less_often
@given(tensors=tensors, header=st.dictionaries(st.text("abc"), json_values, max_size=4))
def test_a_payload_comes_back_as_it_was(
    tmp_path: Path, tensors: dict[str, Any], header: dict[str, Any]
) -> None:
    text, blob = write(Payload(kind="k", header=header, tensors=tensors), tmp_path)
    assert (blob is None) == (not tensors)
    found = read("k", text, tmp_path / blob.digest if blob else None)
    assert found.header == header
    assert found.tensors.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found.tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(found.tensors[name], array)


@less_often
@given(tensors=tensors.filter(bool))
def test_the_bytes_are_those_of_the_safetensors_library(
    tmp_path: Path, tensors: dict[str, Any]
) -> None:
    _, blob = write(Payload(kind="k", tensors=tensors), tmp_path)
    assert blob is not None
    assert (tmp_path / blob.digest).read_bytes() == save(dict(reversed(tensors.items())))


def test_other_byte_orders_and_strides_are_written_as_values(tmp_path: Path) -> None:
    values = np.arange(12, dtype=">i4").reshape(3, 4).T[::-1]
    _, blob = write(Payload(kind="k", tensors={"a": values}), tmp_path)
    assert blob is not None
    found = read_tensors(tmp_path / blob.digest)["a"]
    assert found.dtype == "<i4"
    np.testing.assert_array_equal(found, values)


def test_what_is_read_is_a_view_that_outlives_the_file_and_cannot_be_changed(
    tmp_path: Path,
) -> None:
    _, blob = write(Payload(kind="k", tensors={"a": np.ones(1_000_000)}), tmp_path)
    assert blob is not None
    tracemalloc.start()
    found = read_tensors(tmp_path / blob.digest)["a"]
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (tmp_path / blob.digest).unlink()
    assert taken < 100_000
    assert found.flags.aligned
    assert not found.flags.writeable
    assert found.sum() == 1_000_000


def test_a_store_makes_room_for_what_is_written_or_refuses_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1_000)
    _, first = write(Payload(kind="k", tensors={"a": np.zeros(80)}), store)
    _, second = write(Payload(kind="k", tensors={"a": np.ones(80)}), store)
    assert first is not None
    assert second is not None
    assert [store.has(first), store.has(second)] == [False, True]
    with pytest.raises(NoRoom, match="may hold 1000"):
        write(Payload(kind="k", tensors={"a": np.ones(200)}), store)
    assert os.listdir(tmp_path) == [second.digest]


@pytest.mark.parametrize(
    ("header", "tensors", "says"),
    [
        pytest.param({"a": float("nan")}, {}, "JSON", id="a NaN in the header"),
        pytest.param({"a": b"x"}, {}, "JSON", id="bytes in the header"),
        pytest.param({}, {"a": np.zeros(1, complex)}, "complex128", id="a type without a name"),
        pytest.param({}, {"a/../b": np.zeros(1)}, "no path", id="a path in a name"),
        pytest.param({}, {"__metadata__": np.zeros(1)}, "__metadata__", id="the reserved name"),
    ],
)
def test_what_a_reader_would_refuse_is_not_written(
    tmp_path: Path, header: dict[str, Any], tensors: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadPayload, match=says):
        write(Payload(kind="k", header=header, tensors=tensors), tmp_path)
    assert os.listdir(tmp_path) == []


# -- strangers --------------------------------------------------------------------------------

EIGHT = bytes(8)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "it has 0 in all", id="an empty file"),
        pytest.param(b"\x01\x02", "it has 2 in all", id="a cut length"),
        pytest.param(struct.pack("<Q", 10 << 40) + b"{}", "claims 10995116277760", id="10 TB"),
        pytest.param(struct.pack("<Q", 2**64 - 1), "claims", id="the largest length there is"),
        pytest.param(struct.pack("<Q", 100) + b"{}", "the file has 10", id="a cut header"),
        pytest.param(file_of(b"{"), "no JSON", id="half an object"),
        pytest.param(file_of(b"\xff\xfe"), "no JSON", id="no UTF-8"),
        pytest.param(file_of(b"[]"), "JSON list", id="a list"),
        pytest.param(file_of(b"[" * 100_000), "nests too deeply", id="a deep nest"),
        pytest.param(
            file_of(b'{"a":' + b"9" * 5_000 + b"}"), "no JSON", id="a number of 5000 digits"
        ),
        pytest.param(file_of(b'{"a":NaN}'), "not finite", id="a NaN in the index"),
        pytest.param(file_of(b'{"a":1e999}'), "not finite", id="an infinity by overflow"),
        pytest.param(file_of(b'{"a":{},"a":{}}'), "twice", id="a name twice"),
        pytest.param(file_of({"a": 1}), "needs a dtype", id="a number for a tensor"),
        pytest.param(
            file_of({"a": {**entry(), "more": 1}}, EIGHT), "nothing else", id="a word too many"
        ),
        pytest.param(file_of({"__metadata__": {"a": "b"}}), "__metadata__", id="metadata"),
        pytest.param(file_of({"a": entry("BF16", [4])}, EIGHT), "BF16", id="a type of no numpy"),
        pytest.param(file_of({"a": entry([["F32"]])}, EIGHT), "none of", id="a list for a type"),
        pytest.param(file_of({"a": entry(shape=[-2])}, EIGHT), "shape", id="a negative size"),
        pytest.param(file_of({"a": entry(shape=[True, 2])}, EIGHT), "shape", id="true for a size"),
        pytest.param(file_of({"a": entry(shape=[2.0])}, EIGHT), "shape", id="a size with a point"),
        pytest.param(file_of({"a": entry(shape=[1] * 33)}, EIGHT), "shape", id="33 dimensions"),
        pytest.param(
            file_of({"a": entry(shape=[2**40, 2**40])}, EIGHT), "too large", id="2^80 elements"
        ),
        pytest.param(
            file_of({"a": entry(shape=[0, 2**60, 2**60], offsets=[0, 0])}),
            "too large",
            id="no elements of a shape that numpy refuses",
        ),
        pytest.param(file_of({"a": entry(shape=[3])}, EIGHT), "needs 12 bytes", id="a wrong shape"),
        pytest.param(file_of({"a": entry(offsets=[8, 0])}, EIGHT), "offsets", id="a backward span"),
        pytest.param(file_of({"a": entry(offsets=[0])}, EIGHT), "offsets", id="one offset"),
        pytest.param(file_of({"a": entry()}, bytes(7)), "end at byte 8", id="truncated data"),
        pytest.param(file_of({"a": entry()}, bytes(9)), "end at byte 8", id="bytes behind"),
        pytest.param(file_of({"a": entry(offsets=[4, 12])}, bytes(12)), "leaves a gap", id="a gap"),
        pytest.param(
            file_of({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
            "overlaps",
            id="an overlap",
        ),
        pytest.param(file_of({"": entry()}, EIGHT), "1 to 512", id="no name"),
        pytest.param(file_of({"a" * 513: entry()}, EIGHT), "1 to 512", id="a long name"),
        pytest.param(file_of({"a\0": entry()}, EIGHT), "control", id="a NUL in a name"),
        pytest.param(file_of({"a\x1b[2J": entry()}, EIGHT), "control", id="an escape in a name"),
        pytest.param(file_of({"\ud800": entry()}, EIGHT), "control", id="half a character"),
        pytest.param(file_of({"../../etc/x": entry()}, EIGHT), "no path", id="a way up"),
        pytest.param(file_of({"a\\..\\b": entry()}, EIGHT), "no path", id="a way up in Windows"),
        pytest.param(file_of({"/etc/passwd": entry()}, EIGHT), "no path", id="an absolute path"),
        pytest.param(file_of({"C:\\x": entry()}, EIGHT), "no path", id="a drive"),
    ],
)
def test_a_bad_file_is_refused_by_what_is_wrong_with_it(
    tmp_path: Path, data: bytes, says: str
) -> None:
    (tmp_path / "file").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(BadPayload, match=says):
        read_tensors(tmp_path / "file")
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 4_000_000


def test_a_path_with_no_way_up_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(file_of({"encoder/layer..0": entry()}, EIGHT))
    assert list(read_tensors(tmp_path / "file")) == ["encoder/layer..0"]


def test_limits_are_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = {"a": np.zeros(1), "b": np.zeros(1)}
    _, blob = write(Payload(kind="k", tensors=pair), tmp_path)
    assert blob is not None
    for limit, value in {"MOST_TENSORS": 1, "LARGEST_HEADER": 10, "LARGEST_INDEX": 120}.items():
        monkeypatch.setattr(f"fedpilot.mediator.wire.payloads.{limit}", value)
    with pytest.raises(BadPayload, match="2 tensors, over 1"):
        read_tensors(tmp_path / blob.digest)
    with pytest.raises(BadPayload, match="2 tensors, over 1"):
        write(Payload(kind="k", tensors=pair), tmp_path)
    with pytest.raises(BadPayload, match="over 10"):
        read("k", '{"a": "bcdefg"}', None)
    with pytest.raises(BadPayload, match="over 120"):
        write(Payload(kind="k", tensors={"a" * 100: np.zeros(1)}), tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("[]", "a JSON list", id="a list"),
        pytest.param('{"a": Infinity}', "not finite", id="an infinity"),
        pytest.param('{"a": -1e999}', "not finite", id="an infinity by overflow"),
        pytest.param('{"a": ' + "[" * 100_000, "too deeply", id="a deep nest"),
        pytest.param("", "no JSON", id="nothing"),
        pytest.param('{"a": "' + "x" * (4 << 20) + '"}', "over 4194304", id="too long"),
    ],
)
def test_a_bad_header_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadPayload, match=says):
        read("k", text, None)


@in_one_folder
@given(data=st.binary(max_size=300))
def test_random_bytes_are_a_bad_payload_and_nothing_else(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with contextlib.suppress(BadPayload):
        assert isinstance(read("k", data, None).header, dict)
    with contextlib.suppress(BadPayload):
        assert read_tensors(tmp_path / "file") == {}  # no room for more


@less_often
@given(
    tensors=tensors.filter(bool),
    changes=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4)), max_size=4),
    cut=st.integers(0, 400) | st.none(),
)
def test_a_changed_file_is_refused_or_has_sound_tensors(
    tmp_path: Path, tensors: dict[str, Any], changes: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(save(tensors))
    for at, change in changes:
        data[at : at + len(change)] = change
    (tmp_path / "file").write_bytes(data[:cut])
    try:
        found = read_tensors(tmp_path / "file")
    except BadPayload:
        return
    length = 8 + struct.unpack("<Q", data[:8])[0]
    assert sum(array.nbytes for array in found.values()) == len(data[:cut]) - length


@settings(max_examples=settings().max_examples // 3)
@given(header=st.dictionaries(st.text("ab"), json_values, max_size=3))
def test_a_header_survives_its_text(header: dict[str, Any]) -> None:
    assert read("k", header_json(header).encode(), None).header == header
