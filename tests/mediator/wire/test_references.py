"""Tensors that came as a blob are sent on as that blob, which stays as long as they are used."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from fedpilot.mediator import Payload
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.references import BlobTensors, Keeping

STATES = {"w": np.arange(6, dtype=np.float32)}


@pytest.fixture
def sender(tmp_path: Path) -> Keeping:
    return Keeping(BlobStore(tmp_path, 1 << 20), discard=True)


@pytest.fixture
def receiver(tmp_path: Path) -> Keeping:
    """Of another process, on the same folder."""
    return Keeping(BlobStore(tmp_path, 1 << 20), discard=True)


def blobs(keeping: Keeping) -> list[str]:
    return sorted(path.name for path in keeping.store.folder.iterdir() if len(path.name) == 64)


def test_tensors_that_came_as_a_blob_are_not_written_again(
    sender: Keeping, receiver: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused: list[str] = []
    done = sender.keep(Payload(kind="states", tensors=STATES))
    came = receiver.read(done, unused.append)
    sender.let_go(done.blob.digest)
    monkeypatch.setattr("fedpilot.mediator.wire.references.done_message", None)
    sent = receiver.keep(Payload(kind="other", header={"step": 1}, tensors=came.tensors))
    assert (sent.kind, sent.header_json, sent.blob) == ("other", '{"step":1}', done.blob)


def test_a_blob_stays_as_long_as_its_tensors_are_used(sender: Keeping, receiver: Keeping) -> None:
    unused: list[str] = []
    done = sender.keep(Payload(kind="states", tensors=STATES))
    came = receiver.read(done, unused.append)
    sender.let_go(done.blob.digest)
    assert blobs(receiver) == [done.blob.digest]
    assert isinstance(came.tensors, BlobTensors)
    assert (came.tensors["w"] == STATES["w"]).all()
    assert unused == []
    del came
    gc.collect()
    assert unused == [done.blob.digest]
    receiver.unused(unused.pop())
    assert blobs(receiver) == []


def test_what_ends_before_its_tensors_leaves_no_blob(sender: Keeping, receiver: Keeping) -> None:
    unused: list[str] = []
    done = sender.keep(Payload(kind="states", tensors=STATES))
    came = [receiver.read(done, unused.append) for _ in range(2)]
    sender.let_go(done.blob.digest)
    receiver.close()
    assert blobs(receiver) == []
    assert (came[0].tensors["w"] == STATES["w"]).all()
    del came
    gc.collect()
    for digest in unused:
        receiver.unused(digest)


def test_a_blob_that_has_gone_meanwhile_is_written_again(
    sender: Keeping, receiver: Keeping
) -> None:
    came = receiver.read(sender.keep(Payload(kind="states", tensors=STATES)), print)
    for name in blobs(receiver):
        (receiver.store.folder / name).unlink()
    sent = receiver.keep(Payload(kind="states", tensors=came.tensors))
    assert blobs(receiver) == [sent.blob.digest]
