"""Copies of a ledger of virtual clusters, for a head that starts on another host."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.fabric.errors import ProviderFailed
from fedpilot.fabric.manager.files.ledger_file import LedgerFile
from fedpilot.fabric.ray_clusters.providers.ledger_copy import (
    FOLDER,
    copies_of,
    put_back,
    stamp,
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
    copies = copies_of(here)
    file.write_note("queues", ["b"])
    assert stamp(here) != before

    put_back(there, copies)
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
    put_back(there, copies_of(here))
    moved = LedgerFile(there / FOLDER / "ledger.sqlite")
    assert moved.note("queues") is None
    assert not (there / FOLDER / "head.json").exists()
    for each in (old, moved):
        each.close()


def test_where_nothing_is_nothing_can_be_copied(tmp_path: Path) -> None:
    assert stamp(tmp_path) == []
    with pytest.raises(ProviderFailed, match="cannot copy the ledger"):
        copies_of(tmp_path)
    (kept(tmp_path) / "ledger.sqlite").write_text("not a ledger, and longer than a header" * 9)
    with pytest.raises(ProviderFailed, match="cannot copy the ledger"):
        copies_of(tmp_path)
