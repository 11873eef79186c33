"""The archive of a user's source files: equal files make equal bytes, anywhere.

It is a zip file that any tool opens. Python's zipfile does not write it, since its output may
change between versions. `unpacked` accepts an archive only if `packed` writes the same bytes: so it
hides and compresses nothing, one digest means one code, and reading it takes no more memory than
its size. Nothing is written to disk.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Mapping

from ...errors import CodeRefused

LARGEST_ARCHIVE = 4 << 20
"""Bytes."""
MOST_FILES = 2_000
LONGEST_NAME = 255
"""Bytes of a file's name, folders included."""
ENDING = ".py"
RESERVED = frozenset({"fedpilot"}) | sys.stdlib_module_names
"""Modules and packages that are never the user's own."""
INSTALLED = frozenset({"site-packages", "dist-packages"})

_FILE, _ENTRY, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_FILE_HEAD = struct.Struct("<4s5H3I2H")
_ENTRY_HEAD = struct.Struct("<4s6H3I5H2I")
_END_HEAD = struct.Struct("<4s4H2IH")
_VERSION, _UNIX = 20, 3 << 8
_NAMES_ARE_UTF8 = 0x0800
_STORED = 0
_MIDNIGHT, _FIRST_DAY = 0, 1 << 5 | 1
"""In 1980, the first year of zip files."""
_PLAIN_FILE = 0o100644 << 16
_MOST_ENTRIES, _FARTHEST = 0xFFFF, 0xFFFFFFFF


def packed(files: Mapping[str, bytes]) -> bytes:
    """The archive of any files, by name; `unpacked` reads only files that pass `check`."""
    parts: list[bytes] = []
    index: list[bytes] = []
    at = 0
    for name in sorted(files):
        content, called = files[name], name.encode()
        facts = (_NAMES_ARE_UTF8, _STORED, _MIDNIGHT, _FIRST_DAY, zlib.crc32(content))
        size = min(len(content), _FARTHEST)
        head = _FILE_HEAD.pack(_FILE, _VERSION, *facts, size, size, len(called), 0)
        parts += (head, called, content)
        index.append(
            _ENTRY_HEAD.pack(
                *(_ENTRY, _UNIX | _VERSION, _VERSION, *facts, size, size, len(called)),
                *(0, 0, 0, 0, _PLAIN_FILE, min(at, _FARTHEST)),
            )
            + called
        )
        at += len(head) + len(called) + len(content)
    entries = b"".join(index)
    count = min(len(files), _MOST_ENTRIES)
    end = _END_HEAD.pack(_END, 0, 0, count, count, len(entries), min(at, _FARTHEST), 0)
    return b"".join((*parts, entries, end))


def check(files: Mapping[str, bytes]) -> None:
    """Raise CodeRefused for too many files, too large ones, or invalid names."""
    if not 1 <= len(files) <= MOST_FILES:
        raise CodeRefused(f"{len(files)} files; an archive has 1 to {MOST_FILES}")
    for name in files:
        _check_name(name)
    size = len(packed(files))
    if size > LARGEST_ARCHIVE:
        raise CodeRefused(
            f"an archive of {size} bytes in {len(files)} files; at most {LARGEST_ARCHIVE}"
        )


def unpacked(archive: bytes) -> dict[str, bytes]:
    """The files of an archive, by name; raises CodeRefused unless every byte is right."""
    if len(archive) > LARGEST_ARCHIVE:
        raise CodeRefused(f"an archive of {len(archive)} bytes; at most {LARGEST_ARCHIVE}")
    files: dict[str, bytes] = {}
    at = 0
    while archive.startswith(_FILE, at):
        if len(files) == MOST_FILES:
            raise CodeRefused(f"an archive of more than {MOST_FILES} files")
        if at + _FILE_HEAD.size > len(archive):
            break
        *_, size, length, _ = _FILE_HEAD.unpack_from(archive, at)
        named = at + _FILE_HEAD.size
        begin, end = named + length, named + length + size
        if end > len(archive):
            break
        name = archive[named:begin].decode(errors="replace")
        _check_name(name)
        files[name] = archive[begin:end]
        at = end
    if not files or packed(files) != archive:
        raise CodeRefused(
            f"{len(archive)} bytes that are no archive of fedpilot: files stored uncompressed, "
            "once each and in order"
        )
    return files


def _check_name(name: str) -> None:
    """Raise CodeRefused unless the name is a relative path to a module that Python can import."""
    folders, _, last = name.rpartition("/")
    parts = [*(folders.split("/") if folders else ()), last.removesuffix(ENDING)]
    plain = last.endswith(ENDING) and all(part.isidentifier() for part in parts)
    if not plain or len(name.encode()) > LONGEST_NAME:
        raise CodeRefused(
            f"a file called {name[:80]!a}; an archive has only modules, such as `my/nets.py`"
        )
    if parts[0] in RESERVED:
        raise CodeRefused(
            f"{name[:80]!a}, which has the name of a module of Python or of fedpilot; rename it"
        )
