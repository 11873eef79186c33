"""Copies of what the manager of a Ray cluster's virtual clusters keeps, for heads that move.

It lies on the head's host, and the site has a copy that is a beat old at most. A head that starts
on another host starts with that copy.
"""

from __future__ import annotations

import os
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from fedpilot.common.host.folders import make_folder

from ...core.ray_clusters.declaration import HEAD_FILE, LEDGER_FILE
from ...errors import ProviderFailed
from .files import explained

FOLDER = "virtual-clusters"
"""The folder of the ledger, in a cluster's own."""
BESIDE = ("-wal", "-shm")
"""What SQLite has beside a file."""


def stamp(folder: Path) -> list[int]:
    """Equal as long as nothing has changed in a cluster's folder; empty if nothing is there."""
    found = list[int]()
    for name in (LEDGER_FILE, f"{LEDGER_FILE}-wal", HEAD_FILE):
        try:
            seen = (folder / FOLDER / name).stat()
        except OSError:
            continue
        found += [seen.st_size, seen.st_mtime_ns]
    return found


def copies_of(folder: Path) -> dict[str, str]:
    """The files in a cluster's folder as they are now, by name, as base64. ProviderFailed."""
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
    return {name: b64encode(content).decode() for name, content in found.items()}


def put_back(folder: Path, copies: Mapping[str, str]) -> None:
    """Write copies into a cluster's folder, before its head starts. ProviderFailed."""
    home = folder / FOLDER
    with explained("cannot put the ledger of virtual clusters back"):
        make_folder(home)
        for each in BESIDE:
            (home / f"{LEDGER_FILE}{each}").unlink(missing_ok=True)
        for name in (LEDGER_FILE, HEAD_FILE):
            aside, flags = home / f".{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY
            with os.fdopen(os.open(aside, flags, 0o600), "wb") as file:
                file.write(b64decode(copies.get(name, "")))
            if name in copies:
                aside.replace(home / name)
            else:
                aside.unlink()
                (home / name).unlink(missing_ok=True)
