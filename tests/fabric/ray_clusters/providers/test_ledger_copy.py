"""Copies of a ledger of virtual clusters, for a head that starts on another host."""

from __future__ import annotations

import json
import secrets
import zlib
from base64 import b64encode
from pathlib import Path

import pytest

from fedpilot.fabric.errors import ProviderFailed
from fedpilot.fabric.manager.files.ledger_file import LedgerFile
from fedpilot.fabric.ray_clusters.providers.ledger_copy import (
    FOLDER,
    PART,
    packed,
    put_back,
    stamp,
    unpacked,
)


def kept(folder: Path) -> Path:
    """Where the ledger of a cluster's folder lies."""
    home = folder / FOLDER
    home.mkdir(parents=True)
    return home


def test_a_copy_has_what_was_written_although_it_is_in_use(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    file = LedgerFile(kept(here) / "ledger.sqlite")
    file.write_note("queues", ["a"])
    (here / FOLDER / "head.json").write_text("{}")
    before = stamp(here)
    parts = packed(here)
    file.write_note("queues", ["b"])
    assert stamp(here) != before

    put_back(there, unpacked(parts))
    moved = LedgerFile(there / FOLDER / "ledger.sqlite")
    assert (moved.name, moved.note("queues")) == (file.name, ["a"])
    assert (there / FOLDER / "head.json").read_text() == "{}"
    assert (there / FOLDER / "head.json").stat().st_mode & 0o777 == 0o600
    for each in (file, moved):
        each.close()


def test_a_copy_replaces_all_that_was_there(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    LedgerFile(kept(here) / "ledger.sqlite").close()
    old = LedgerFile(kept(there) / "ledger.sqlite")
    old.write_note("queues", ["old"])  # it stays in the log beside the file
    (there / FOLDER / "head.json").write_text("old")
    put_back(there, unpacked(packed(here)))
    moved = LedgerFile(there / FOLDER / "ledger.sqlite")
    assert moved.note("queues") is None
    assert not (there / FOLDER / "head.json").exists()
    for each in (old, moved):
        each.close()


def test_where_nothing_is_nothing_can_be_copied(tmp_path: Path) -> None:
    assert stamp(tmp_path) == []
    with pytest.raises(ProviderFailed, match="cannot copy the ledger"):
        packed(tmp_path)
    (kept(tmp_path) / "ledger.sqlite").write_text("not a ledger, and longer than a header" * 9)
    with pytest.raises(ProviderFailed, match="cannot copy the ledger"):
        packed(tmp_path)


def test_a_copy_of_any_size_travels_in_parts_of_one_size(tmp_path: Path) -> None:
    file = LedgerFile(kept(tmp_path) / "ledger.sqlite")
    file.write_note("queues", secrets.token_hex(1_000_000))
    parts = packed(tmp_path)
    assert len(parts) > 3
    assert {len(each) for each in parts[:-1]} == {PART}
    assert unpacked(parts).keys() == {"ledger.sqlite"}
    file.close()


@pytest.mark.parametrize(
    "harm", ["nothing of it", "half of it", "another", "no text", "a file more"]
)
def test_a_copy_that_is_damaged_is_refused(tmp_path: Path, harm: str) -> None:
    LedgerFile(kept(tmp_path) / "ledger.sqlite").close()
    parts = packed(tmp_path)
    files = {"ledger.sqlite": "", "../../.ssh/authorized_keys": ""}
    text = b64encode(zlib.compress(json.dumps(files).encode())).decode()
    harmed = {
        "nothing of it": [],
        "half of it": [parts[0][: len(parts[0]) // 8 * 4]],
        "another": [b64encode(zlib.compress(b"null")).decode()],
        "no text": ["\0"],
        "a file more": [text],
    }
    with pytest.raises(ProviderFailed, match="a copy of the ledger is damaged"):
        unpacked(harmed[harm])
