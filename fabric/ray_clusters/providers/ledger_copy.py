"""Copies of what the manager of a Ray cluster's virtual clusters keeps, for heads that move.

It lies on the head's host, and the site has a copy that is a beat old at most. A head that starts
on another host starts with that copy. It travels in parts, as a link carries other lines as well.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from fedpilot.common.host.folders import make_folder
from fedpilot.common.host.whole_files import replacing

from ...core.ray_clusters.declaration import HEAD_FILE, LEDGER_FILE
from ...errors import ProviderFailed
from .files import explained

FOLDER = "virtual-clusters"
"""The folder of the ledger, in a cluster's own."""
BESIDE = ("-wal", "-shm")
"""What SQLite has beside a file."""
PART = 256 * 2**10
"""Characters of a part."""
MOST_PARTS = 4096
LARGEST = 2**30
"""Bytes of a copy, unpacked."""


def stamp(folder: Path) -> list[int]:
    """Equal as long as nothing has changed in a cluster's folder; empty without a ledger."""
    found = list[int]()
    for name in (LEDGER_FILE, f"{LEDGER_FILE}-wal", HEAD_FILE):
        try:
            seen = (folder / FOLDER / name).stat()
        except OSError:
            continue
        found += [seen.st_size, seen.st_mtime_ns]
    return found if (folder / FOLDER / LEDGER_FILE).exists() else []


def packed(folder: Path) -> list[str]:
    """What is in a cluster's folder now, in parts of text. ProviderFailed."""
    ledger, head = folder / FOLDER / LEDGER_FILE, folder / FOLDER / HEAD_FILE
    found = dict[str, bytes]()
    with explained("cannot copy the ledger of virtual clusters"):
        if head.exists():
            found[HEAD_FILE] = head.read_bytes()
        try:
            with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as file:
                found[LEDGER_FILE] = file.serialize()
        except sqlite3.Error as error:
            raise ProviderFailed(f"cannot copy the ledger of virtual clusters: {error}") from error
    files = {name: b64encode(content).decode() for name, content in found.items()}
    text = b64encode(zlib.compress(json.dumps(files).encode())).decode()
    return [text[at : at + PART] for at in range(0, len(text), PART)]


def unpacked(parts: Sequence[str]) -> dict[str, bytes]:
    """The files of a copy, by name. ProviderFailed if it is not one."""
    try:
        packing = zlib.decompressobj()
        text = packing.decompress(b64decode("".join(parts), validate=True), LARGEST)
        if not packing.eof:
            raise ValueError("it is too large, or not whole")
        files = {
            name: b64decode(content, validate=True) for name, content in json.loads(text).items()
        }
        if not {LEDGER_FILE} <= files.keys() <= {LEDGER_FILE, HEAD_FILE}:
            raise ValueError(f"it has {len(files)} files")
        json.loads(files.get(HEAD_FILE, b"{}"))
        _check_ledger(files[LEDGER_FILE])
    except (ValueError, TypeError, AttributeError, zlib.error, sqlite3.Error) as error:
        raise ProviderFailed(f"a copy of the ledger is damaged: {error}") from error
    return files


def _check_ledger(content: bytes) -> None:
    """Raise sqlite3.Error or ValueError for a ledger that cannot be read."""
    with tempfile.NamedTemporaryFile(suffix=LEDGER_FILE) as file:
        file.write(content)
        file.flush()
        with closing(sqlite3.connect(file.name)) as ledger:
            ledger.execute("PRAGMA journal_mode = DELETE")  # it leaves nothing beside it
            (found,) = ledger.execute("PRAGMA quick_check(1)").fetchone()
            ledger.execute("SELECT name FROM ledger").fetchone()
    if found != "ok":
        raise ValueError(found)


def put_back(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a copy into a cluster's folder, before its head starts. ProviderFailed."""
    home = folder / FOLDER
    with explained("cannot put the ledger of virtual clusters back"):
        make_folder(home)
        for each in BESIDE:
            (home / f"{LEDGER_FILE}{each}").unlink(missing_ok=True)
        for name in (LEDGER_FILE, HEAD_FILE):
            if name in files:
                with replacing(home / name, 0o600, durable=True) as aside:
                    aside.write_bytes(files[name])
            else:
                (home / name).unlink(missing_ok=True)
