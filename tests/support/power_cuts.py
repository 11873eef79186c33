"""In which order a process has files and folders on disk: what a power cut would leave."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """Notes each fsync and each rename, which are done as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acts: list[tuple[str, Path]] = []
        fsync, replace, rename = os.fsync, os.replace, os.rename

        def syncing(descriptor: int) -> None:
            self.acts.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
            fsync(descriptor)

        def replacing(source: Any, target: Any, **kwargs: Any) -> None:
            self.acts.append(("rename", Path(target)))
            replace(source, target, **kwargs)

        def renaming(source: Any, target: Any, **kwargs: Any) -> None:
            self.acts.append(("rename", Path(target)))
            rename(source, target, **kwargs)

        monkeypatch.setattr(os, "fsync", syncing)
        monkeypatch.setattr(os, "replace", replacing)
        monkeypatch.setattr(os, "rename", renaming)
