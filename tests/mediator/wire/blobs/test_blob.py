"""A blob is named by a digest and a size, and by nothing else."""

from __future__ import annotations

import pytest

from fedpilot.mediator.wire.blobs.blob import LARGEST_BLOB, Blob
from fedpilot.mediator.wire.blobs.errors import BadBlob


@pytest.mark.parametrize(
    ("digest", "size"),
    [
        pytest.param("a" * 63, 1, id="a digit too few"),
        pytest.param("A" * 64, 1, id="capitals"),
        pytest.param("../" + "a" * 61, 1, id="a path"),
        pytest.param("a" * 64 + "\n", 1, id="a line"),
        pytest.param("a" * 64, -1, id="less than nothing"),
        pytest.param("a" * 64, LARGEST_BLOB + 1, id="too many bytes"),
    ],
)
def test_what_names_no_blob_is_refused(digest: str, size: int) -> None:
    with pytest.raises(BadBlob):
        Blob(digest, size)
