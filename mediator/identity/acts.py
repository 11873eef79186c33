"""The log of manual acts on an authority: a line of JSON for each, in the authority's folder.

`fedpilot certs` appends to the file, whether or not a mediator runs. A mediator that uses the
folder shows the acts in its audit log.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpilot.common.host.whole_files import sync

from .errors import IdentityError

ACTS = "acts.jsonl"
LONGEST = 1_000
"""Longer texts of an act are cut to this many characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAct:
    """An act, perhaps a failed one, by an account of the authority's machine."""

    at: float
    """Epoch seconds."""
    who: str
    act: str
    what: str
    outcome: str


def account() -> str:
    """The account of this process: its name, or its uid without one."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def record(folder: Path, act: LocalAct) -> None:
    """Append an act to a folder's file and fsync it; OSError."""
    shown = {
        name: value[:LONGEST] if isinstance(value, str) else value
        for name, value in asdict(act).items()
    }
    descriptor = os.open(folder / ACTS, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        owner = folder.stat()
        with suppress(PermissionError):  # only root can change the owner, and only root needs to
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        first = not os.fstat(descriptor).st_size
        os.write(descriptor, json.dumps(shown).encode() + b"\n")
        os.fsync(descriptor)
        if first:
            sync(folder)
    finally:
        os.close(descriptor)


def acts_of(folder: Path, last: int) -> tuple[LocalAct, ...]:
    """The last acts, oldest first, without an unfinished line; IdentityError for a damaged file."""
    try:
        text = (folder / ACTS).read_bytes()
    except FileNotFoundError:
        return ()
    lines = text.split(b"\n")[:-1]
    return tuple(_act(folder, line) for line in lines[max(0, len(lines) - last) :])


def _act(folder: Path, line: bytes) -> LocalAct:
    try:
        found: Mapping[str, Any] = json.loads(line)
        texts = {name: str(found[name]) for name in ("who", "act", "what", "outcome")}
        return LocalAct(at=float(found["at"]), **texts)
    except (KeyError, TypeError, ValueError) as error:
        raise IdentityError(
            f"{folder / ACTS} is damaged: one of its lines is "
            f"{line[:80].decode(errors='replace')!r}"
        ) from error
