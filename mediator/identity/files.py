"""Files of keys and certificates: written whole or not at all, keys for their owner only."""

from __future__ import annotations

from pathlib import Path

from fedpilot.common.host.whole_files import replacing

from .certificates import LARGEST_PEM
from .errors import IdentityError

SECRET, PUBLIC = 0o600, 0o644


def write_text(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically, even across a power cut."""
    with replacing(path, mode, durable=True) as aside:
        aside.write_text(text)


def read_text(path: Path) -> str:
    """Read a small ASCII text; IdentityError if it is larger than any key or certificate."""
    with path.open("rb") as file:
        found = file.read(LARGEST_PEM + 1)
    if len(found) > LARGEST_PEM:
        raise IdentityError(f"{path} is larger than any key or certificate")
    try:
        return found.decode("ascii")
    except UnicodeDecodeError as error:
        raise IdentityError(f"{path} is not in PEM") from error


def read_secret(path: Path) -> str:
    """Read a secret text; IdentityError if other accounts could read the file."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise IdentityError(
            f"{path} can be read by others (mode {mode:04o}); `chmod 600 {path}`, "
            "and ask whether anybody did"
        )
    return read_text(path)
