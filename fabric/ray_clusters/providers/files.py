"""Small files of a provider: private, and whole or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ...errors import ProviderFailed


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all. OSError."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    aside.replace(path)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise ProviderFailed for an OSError, with what could not be done."""
    try:
        yield
    except OSError as error:
        raise ProviderFailed(f"{what}: {error}") from error
