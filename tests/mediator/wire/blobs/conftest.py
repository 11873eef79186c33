"""A small store, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.mediator.wire.blobs.store import BlobStore


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", 100)
