"""Owns the surroundings of a Ray inside this process: a folder, a token, variables."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "fedpilot-"
OWNER = "owner"
LONGEST_ROOT = 25
"""Ray puts sockets below its folder, and a socket's path has at most 107 characters."""

LINGER_S = 5.0
"""How long the processes of a Ray that was shut down may take to end."""


@contextmanager
def own_folder(root: Path | None = None) -> Iterator[Path]:
    """Make a temporary folder, whose file OWNER is locked until its owner has ended."""
    if root is None:
        usual = Path(tempfile.gettempdir())
        root = usual if len(str(usual)) <= LONGEST_ROOT else Path("/tmp")
    sweep(root)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    try:
        with (folder / "owner.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            (folder / "owner.new").rename(folder / OWNER)  # appears with its lock already held
            yield folder
    finally:
        # A process of Ray that is just starting would make the folder again.
        _unused_by(folder, time.monotonic() + LINGER_S)
        _remove(folder)


def sweep(root: Path, linger_s: float = 0.0) -> None:
    """Remove the folders of dead owners; wait at most `linger_s` for processes that use them."""
    deadline = time.monotonic() + linger_s
    for folder in root.glob(f"{PREFIX}*"):
        # An OSError means that it is in use, that it is not ours, or that it has just gone.
        with suppress(OSError), (folder / OWNER).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _unused_by(folder, deadline):
                _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder, its owner file last: until then a later sweep can finish the removal."""
    for entry in folder.iterdir():
        if entry.name != OWNER:
            shutil.rmtree(entry, ignore_errors=True)
            with suppress(OSError):
                entry.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _unused_by(folder: Path, deadline: float) -> bool:
    """Wait until no process uses the folder; False after the deadline."""
    while _is_used(folder):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def _is_used(folder: Path) -> bool:
    """Whether a process has the folder in its command line, as all of Ray's processes have."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has just ended
            if os.fsencode(folder) in command.read_bytes():
                return True
    return False


def write_token(folder: Path) -> Path:
    """Write a new secret that only this user can read."""
    path = folder / "token"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and restore the old values at the end of the block."""
    with unchanged(values):
        os.environ.update(values)
        yield


@contextmanager
def unchanged(names: Iterable[str]) -> Iterator[None]:
    """Restore these variables at the end of the block."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
