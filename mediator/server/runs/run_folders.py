"""RunFolders: each run's files at the mediator, from submission to removal."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.rules.roles import Role
from ...errors import RunExists
from ...wire.messages import check_run
from ..store import RunRecord

LOG = "coordinator.log"
CONFIG = "config.yaml"
SUBMISSION = "submission.json"
CODE = "code.zip"
TURN = "turn.json"
"""What the mediator tells a coordinator about the turn that its run has."""
REMOVED = ".removed-"
"""Prefix of the folders of removed runs."""
MOST_FILES = 10_000


@dataclass(frozen=True)
class RunFolders:
    """One folder per run, below one root; all methods but `of` wait for the disk."""

    _root: Path

    def of(self, run: str) -> Path:
        """The folder of a run."""
        return self._root / check_run(run)

    def write(self, record: RunRecord, role: Role, code: bytes) -> None:
        """Write a run's submission once, for its coordinator. RunExists if its code differs."""
        folder = self.of(record.id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = {
            "name": record.name,
            "interactive": record.interactive,
            "user": {"name": record.owner, "role": role},
            "code": hashlib.sha256(code).hexdigest() if code else "",
        }
        if (there := folder / SUBMISSION).exists():
            if json.loads(there.read_bytes()).get("code", "") != facts["code"]:
                raise RunExists(
                    f"there is another run called {record.id}, of other code; a new run needs an "
                    "id of its own"
                )
            return
        files = {CODE: code} if code else {}
        files[CONFIG] = record.config_yaml.encode()
        files[SUBMISSION] = f"{json.dumps(facts)}\n".encode()  # last: see `is_whole`
        for name, content in files.items():
            path = folder / name
            aside = path.with_suffix(".tmp")
            aside.write_bytes(content)
            aside.replace(path)

    def write_turn(self, run: str, sites: Sequence[str]) -> None:
        """Name the sites that had room when a run got its turn. OSError."""
        path = self.of(run) / TURN
        aside = path.with_suffix(".tmp")
        aside.write_text(f"{json.dumps({'sites': list(sites)})}\n")
        aside.replace(path)

    def is_whole(self, run: str) -> bool:
        """Whether all files of a submission were written; this one is the last."""
        return (self.of(run) / SUBMISSION).exists()

    def user(self, run: str) -> dict[str, Any]:
        """The name and role of a run's owner."""
        found = json.loads((self.of(run) / SUBMISSION).read_bytes())["user"]
        return {"name": str(found["name"]), "role": str(found["role"])}

    def remove(self, run: str) -> None:
        """Rename a run's folder, then remove it; after a crash, `sweep` removes the rest."""
        aside = self._root / f"{REMOVED}{run}.{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            self.of(run).rename(aside)
            shutil.rmtree(aside)

    def sweep(self) -> None:
        """Finish interrupted removals. OSError."""
        for path in self._root.glob(f"{REMOVED}*"):
            shutil.rmtree(path)


def files_of(folder: Path) -> list[tuple[str, int]]:
    """The plain files of a run with their sizes, without hidden files and links."""
    found: list[tuple[str, int]] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root) / name
            if name.startswith(".") or path.is_symlink():
                continue
            found.append((path.relative_to(folder).as_posix(), path.stat().st_size))
            if len(found) >= MOST_FILES:
                return found
    return found


def read_at(path: Path, offset: int, nbytes: int) -> bytes:
    """Read bytes of a file; none at its end, or if there is no such file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(file, nbytes, offset)
    finally:
        os.close(file)
