"""A question to a run and its answer on the wire: a first message, then tensors in pieces.

The tensors of each are one safetensors file; the first message has its size and SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import MediatorFailed
from ..proto import federation_pb2 as pb
from .blobs.errors import BadBlob
from .messages import BadMessage, blob_of

PIECE_BYTES = 1 << 20


def question_messages(first: pb.AskRunRequest, path: Path) -> Iterator[pb.AskRunRequest]:
    """Yield all messages of a question; its tensors, if any, are in the file."""
    yield first
    if first.blob.digest:
        with path.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                yield pb.AskRunRequest(tensors=data)


def whole_answer(replies: Iterable[pb.AskRunReply], path: Path) -> pb.AskRunReply:
    """Write an answer's tensors to a file; return its first message. MediatorFailed."""
    stream = iter(replies)
    first = next(stream, None)
    if first is None:
        raise MediatorFailed("the mediator ended the answer before it had begun")
    try:
        blob = blob_of(first.done.blob)
    except (BadBlob, BadMessage) as error:
        raise MediatorFailed(f"the mediator answered with no blob: {error}") from error
    size, digest, came = (blob.size, blob.digest, 0) if blob else (0, "", 0)
    summed = hashlib.sha256()
    with path.open("wb") as file:
        for each in stream:
            came += len(each.tensors)
            if came > size:
                break
            summed.update(each.tensors)
            file.write(each.tensors)
    if came != size or (blob is not None and summed.hexdigest() != digest):
        wrong = f"{came} came" if came != size else f"those that came are {summed.hexdigest()}"
        raise MediatorFailed(
            f"the answer should have {size} bytes of tensors, of SHA-256 {digest or '-'}; {wrong}"
        )
    return first
