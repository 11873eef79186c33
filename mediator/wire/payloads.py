"""A Payload on a wire: a JSON header, and a safetensors file for its tensors.

`read` checks all sizes, names, types and offsets before it allocates anything, and says what is
wrong. It returns arrays that are read-only views of the file. Equal tensors make equal bytes, the
same as the safetensors library's.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import re
import reprlib
import struct
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MediatorError
from ..workload import Payload
from .blobs.blob import Blob
from .blobs.store import BlobStore

LARGEST_HEADER = 4 << 20
"""Bytes of a payload's JSON header."""
LARGEST_INDEX = 4 << 20
"""Bytes of a tensor file's header; parsing it takes up to 20 times as much memory."""
MOST_TENSORS = 65_536
LONGEST_NAME = 512
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in (
        ("U64", "<u8"),
        ("I64", "<i8"),
        ("F64", "<f8"),
        ("F32", "<f4"),
        ("U32", "<u4"),
        ("I32", "<i4"),
        ("F16", "<f2"),
        ("U16", "<u2"),
        ("I16", "<i2"),
        ("I8", "|i1"),
        ("U8", "|u1"),
        ("BOOL", "|b1"),
    )
}
"""By safetensors names, in the order of a file's tensors: wide ones first, for alignment."""
_RANK = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_BLOCK = 1 << 20
_MOST_DIMENSIONS = 32
_ADDRESSABLE = 1 << 62
_LONGEST_SHOWN = 80
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlist = 2, 8


class BadPayload(MediatorError):
    """A malformed payload; the text says what is wrong."""


# -- writing --------------------------------------------------------------------------------------


def write(payload: Payload, to: BlobStore | Path) -> tuple[str, Blob | None]:
    """Write the tensors as a blob; return the header as JSON, and the blob if there are tensors.

    BadPayload if a reader would refuse it, NoRoom if the store is full.
    """
    header = header_json(payload.header)
    if not payload.tensors:
        return header, None
    arrays = {name: _little_endian(name, array) for name, array in payload.tensors.items()}
    order = sorted(arrays, key=lambda name: (_RANK[arrays[name].dtype], name))
    head = _index(arrays, order)
    folder = to if isinstance(to, Path) else to.folder
    if isinstance(to, BlobStore):
        to.make_room_for(len(head) + sum(array.nbytes for array in arrays.values()))
    file, aside = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
    path = Path(aside)
    try:
        blob = _write_file(file, head, (arrays.pop(name) for name in order))
        if isinstance(to, BlobStore):
            to.adopt(path, blob)
        else:
            path.replace(folder / blob.digest)
    finally:
        os.close(file)
        path.unlink(missing_ok=True)
    return header, blob


def header_json(header: Mapping[str, Any]) -> str:
    """A header's JSON text; BadPayload if it is too large or has other than finite JSON values."""
    try:
        text = json.dumps(dict(header), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadPayload(f"the header cannot be written as JSON: {error}") from error
    if size > LARGEST_HEADER:
        raise BadPayload(f"the header has {size} bytes of JSON, over {LARGEST_HEADER}")
    return text


def _little_endian(name: str, array: npt.ArrayLike) -> npt.NDArray[Any]:
    """The array in little endian, copied only if it has another byte order."""
    found = np.asarray(array)
    dtype = found.dtype.newbyteorder("<")
    if dtype not in _RANK:
        raise BadPayload(f"tensor {name!r} is of {found.dtype}, which is none of {_known()}")
    return found.astype(dtype, copy=False)


def _index(arrays: Mapping[str, npt.NDArray[Any]], order: list[str]) -> bytes:
    if len(order) > MOST_TENSORS:
        raise BadPayload(f"there are {len(order)} tensors, over {MOST_TENSORS}")
    index, end = {}, 0
    for name in order:
        _check_name(name)
        begin, end = end, end + arrays[name].nbytes
        index[name] = {
            "dtype": _NAMES[arrays[name].dtype],
            "shape": arrays[name].shape,
            "data_offsets": (begin, end),
        }
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_INDEX:
        raise BadPayload(
            f"names and shapes of {len(order)} tensors take {len(text)} bytes, over {LARGEST_INDEX}"
        )
    return _LENGTH.pack(len(text)) + text


def _write_file(file: int, head: bytes, arrays: Iterable[npt.NDArray[Any]]) -> Blob:
    """Write and hash block by block, so that each block stays in the processor's cache."""
    digest, size = hashlib.sha256(), 0

    def write_all(rest: memoryview) -> None:
        digest.update(rest)
        while rest:
            rest = rest[os.write(file, rest) :]

    write_all(memoryview(head))
    size += len(head)
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for start in range(0, len(flat), _BLOCK):
            write_all(flat[start : start + _BLOCK])
        size += len(flat)
    return Blob(digest.hexdigest(), size)


# -- reading --------------------------------------------------------------------------------------


def read(kind: str, header: str | bytes, path: Path | None) -> Payload:
    """Read a payload from a header's JSON and a tensor file; BadPayload if any of it is wrong.

    The tensors are views of the file, which may be removed meanwhile but not changed.
    """
    values = _json_object("the header", header, LARGEST_HEADER)
    tensors = {} if path is None else read_tensors(path)
    return Payload(kind=kind, header=values, tensors=tensors)


def read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read-only views of a safetensors file's tensors, by name; BadPayload says what is wrong."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH.size:
            raise BadPayload(f"a tensor file begins with 8 bytes of length; it has {size} in all")
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > LARGEST_INDEX:
            raise BadPayload(f"its header claims {length} bytes, over {LARGEST_INDEX}")
        data = _LENGTH.size + length
        if data > size:
            raise BadPayload(f"its header claims {length} bytes and the file has {size}")
        places = _places(file.read(length), size - data)
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    return {
        name: np.ndarray(shape, dtype, buffer=mapped, offset=data + begin)
        for name, (dtype, shape, begin) in places.items()
    }


def _places(text: bytes, space: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Each tensor's type, shape and offset; BadPayload unless they fill the data without gaps."""
    index = _json_object("the tensor file's header", text, LARGEST_INDEX)
    if len(index) > MOST_TENSORS:
        raise BadPayload(f"there are {len(index)} tensors, over {MOST_TENSORS}")
    found, spans = {}, []
    for name, entry in index.items():
        _check_name(name)
        dtype, shape, (begin, end) = _entry(name, entry)
        spans.append((begin, end, name))
        found[name] = (dtype, shape, begin)
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            wrong = "leaves a gap before it" if begin > at else "overlaps another"
            raise BadPayload(f"tensor {name!r} begins at {begin} instead of {at}: it {wrong}")
        at = end
    if at != space:
        raise BadPayload(f"the tensors end at byte {at} and the file's data at {space}")
    return found


def _entry(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, int]]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadPayload(f"tensor {name!r} needs a dtype, a shape and data_offsets, nothing else")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise BadPayload(f"tensor {name!r} is of {_excerpt(entry['dtype'])}, none of {_known()}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        raise BadPayload(
            f"the shape of tensor {name!r} is {_excerpt(shape)}, not up to {_MOST_DIMENSIONS} sizes"
        )
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadPayload(f"the offsets of tensor {name!r} are {_excerpt(offsets)}, not two sizes")
    # numpy refuses even an empty array if the sizes beside the 0 are too large.
    if math.prod(size for size in shape if size) * dtype.itemsize > _ADDRESSABLE:
        raise BadPayload(f"the shape of tensor {name!r} is {_excerpt(shape)}, too large for memory")
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise BadPayload(
            f"tensor {name!r} of {entry['dtype']} {_excerpt(shape)} needs {needed} bytes and has"
            f" {offsets[1] - offsets[0]}"
        )
    return dtype, tuple(shape), (offsets[0], offsets[1])


def _sizes(found: Any) -> bool:
    """Whether a value is a list of sizes; booleans are not sizes."""
    return isinstance(found, list) and all(
        type(each) is int and 0 <= each <= _ADDRESSABLE for each in found
    )


def _check_name(name: str) -> None:
    """Raise BadPayload unless a tensor's name is printable and stays inside a folder."""
    if not 1 <= len(name) <= LONGEST_NAME:
        raise BadPayload(
            f"a tensor's name has 1 to {LONGEST_NAME} characters, not {len(name)}: {_excerpt(name)}"
        )
    if not name.isprintable():
        raise BadPayload(f"a tensor's name has no control characters: {_excerpt(name)}")
    if name == "__metadata__":
        raise BadPayload("a tensor file of a payload has no __metadata__")
    parts = re.split(r"[/\\]", name)
    if ".." in parts or (len(parts) > 1 and (not parts[0] or parts[0].endswith(":"))):
        raise BadPayload(f"a tensor's name is no path, as this one is: {_excerpt(name)}")


def _json_object(what: str, text: str | bytes, largest: int) -> dict[str, Any]:
    size = len(text)
    if size > largest:
        raise BadPayload(f"{what} has {size} bytes of JSON, over {largest}")
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode(),
            object_pairs_hook=_once_each,
            parse_constant=_finite,
            parse_float=_finite,
        )
    except RecursionError:
        raise BadPayload(f"{what} nests too deeply") from None
    except ValueError as error:
        raise BadPayload(f"{what} is no JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise BadPayload(f"{what} is a JSON {type(value).__name__} instead of an object")
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not finite")
    return value


def _known() -> str:
    return ", ".join(DTYPES)


def _excerpt(found: Any) -> str:
    return _BRIEF.repr(found) if not isinstance(found, str) else ascii(found[:_LONGEST_SHOWN])
