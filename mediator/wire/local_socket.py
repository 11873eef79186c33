"""Where a mediator and its coordinators meet: a socket in a folder that only their user reaches."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

SOCKET = "coordinators.sock"
LONGEST_PATH = 100
"""Bytes; Linux takes 107 as the name of a socket."""


class LocalSocket:
    """The socket's address, good while this is open.

    A folder whose path is too long for a socket is reached by an open descriptor instead.
    """

    def __init__(self, folder: Path) -> None:
        path = folder.resolve() / SOCKET
        self._descriptor: int | None = None
        if len(os.fsencode(path)) > LONGEST_PATH:
            self._descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            path = Path(f"/proc/self/fd/{self._descriptor}") / SOCKET
        self.address = f"unix:{path}"
        """As gRPC wants it."""

    def close(self) -> None:
        """May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
