"""Files of keys and certificates: written whole or not at all, keys for their owner only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from .certificates import LARGEST_PEM
from .errors import IdentityError

SECRET, PUBLIC = 0o600, 0o644


def write_text(path: Path, text: str, mode: int) -> None:
    """Replace what was there; after a power cut there is the one or the other."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_text(path: Path) -> str:
    """A small text; IdentityError for anything larger than keys and certificates are."""
    with path.open("rb") as file:
        found = file.read(LARGEST_PEM + 1)
    if len(found) > LARGEST_PEM:
        raise IdentityError(f"{path} is larger than any key or certificate")
    try:
        return found.decode("ascii")
    except UnicodeDecodeError as error:
        raise IdentityError(f"{path} is not in PEM") from error


def read_secret(path: Path) -> str:
    """A text that is nobody else's to read; IdentityError if others could."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise IdentityError(
            f"{path} can be read by others (mode {mode:04o}); `chmod 600 {path}`, "
            "and ask whether anybody did"
        )
    return read_text(path)
