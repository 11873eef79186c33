"""Small files of a provider: private, durable, and whole or not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedpilot.common.host.whole_files import replacing

from ...errors import ProviderFailed


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all. OSError."""
    with replacing(path, 0o600, durable=True) as aside:
        aside.write_text(text)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise ProviderFailed for an OSError, or for a file that says something else."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ProviderFailed(f"{what}: {error}") from error
