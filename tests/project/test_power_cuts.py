"""What must survive a power cut is on disk before anybody is told of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedpilot.federated.engine.tensor_files import write_tensors
from fedpilot.federated.site.disclosure.content_pin import hold_to
from fedpilot.mediator.core.rules.roles import Role
from fedpilot.mediator.identity.acts import LocalAct, record
from fedpilot.mediator.identity.files import SECRET, write_text
from fedpilot.mediator.identity.index import CertificateIndex, Issued
from power_cuts import Disk

ISSUED = Issued(serial="1", name="paris", role=Role.SITE, issued_at=1.0, expires_at=2.0)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        pytest.param(
            lambda folder: write_text(folder / "key", "secret", SECRET), "key", id="a key"
        ),
        pytest.param(
            lambda folder: write_tensors(folder / "m", {"w": np.zeros(3)}, durable=True),
            "m",
            id="a finished model",
        ),
        pytest.param(
            lambda folder: hold_to(folder, "paris", "scans", "digest"),
            "paris.data.json",
            id="the content that a site's data had",
        ),
    ],
)
def test_a_replaced_file_is_synced_renamed_and_its_folder_synced(
    write: Callable[[Path], None], name: str, tmp_path: Path, disk: Disk
) -> None:
    write(tmp_path)
    (aside, renamed, folder) = disk.acts
    assert aside[0] == "fsync"
    assert aside[1].parent == tmp_path
    assert (renamed, folder) == (("rename", tmp_path / name), ("fsync", tmp_path))


def test_a_model_of_a_checkpoint_costs_no_sync(tmp_path: Path, disk: Disk) -> None:
    write_tensors(tmp_path / "m", {"w": np.zeros(3)})
    assert disk.acts == [("rename", tmp_path / "m")]


def test_an_index_of_certificates_is_in_its_folder_and_each_change_is_in_it(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "index"
    index = CertificateIndex.create(path)
    assert disk.acts == [("fsync", path), ("fsync", tmp_path)]
    disk.acts.clear()
    index.change(lambda _: [ISSUED])
    assert disk.acts == [("fsync", path)]


def test_what_was_done_by_hand_is_in_a_file_that_is_in_its_folder(
    tmp_path: Path, disk: Disk
) -> None:
    act = LocalAct(at=1.0, who="alice", act="revoke", what="paris", outcome="done")
    record(tmp_path, act)
    (written, folder) = disk.acts
    assert written[0] == "fsync"
    assert (written[1].parent, folder) == (tmp_path, ("fsync", tmp_path))
    record(tmp_path, act)
    assert disk.acts[2:] == [written]
