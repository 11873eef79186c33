"""Files that are there as a whole or not at all, in the order that a power cut demands."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from fedpilot.common.host.whole_files import replacing
from power_cuts import Disk


@pytest.mark.parametrize("before", [None, "before"])
def test_a_file_has_its_new_text_or_the_one_before(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_text(before)
    with contextlib.suppress(ZeroDivisionError), replacing(path) as aside:
        aside.write_text("half")
        raise ZeroDivisionError
    assert (path.read_text() if path.exists() else None) == before
    with replacing(path) as aside:
        aside.write_text("whole")
        assert (path.read_text() if path.exists() else None) == before
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_has_its_mode_whoever_wrote_it(tmp_path: Path) -> None:
    path, mask = tmp_path / "file", os.umask(0o027)
    try:
        with replacing(path) as aside:
            aside.unlink()  # as safetensors does, with a private file of its own
            aside.touch(0o600)
        assert path.stat().st_mode & 0o777 == 0o640
        with replacing(path, 0o600) as aside:
            aside.write_text("secret")
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(mask)


def test_a_durable_file_is_on_disk_before_it_has_its_name_and_its_name_before_it_is_said(
    tmp_path: Path, disk: Disk
) -> None:
    with replacing(tmp_path / "file", durable=True) as aside:
        aside.write_text("whole")
    assert disk.acts == [("fsync", aside), ("rename", tmp_path / "file"), ("fsync", tmp_path)]
