"""How writers tell watchers of the store, in other processes, that something has changed.

Each watcher binds a datagram socket in a folder beside the store. After its commit a writer sends
one byte to each of them and waits for none. The byte only says when to look: a watcher compares the
store's numbers, and does so every second in any case, so a lost byte costs a second at most.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from fedpilot.common.host.folders import make_folder

from .records import Revision
from .store_file import StoreFile

LOOK_S = 1.0
"""How often a watcher looks at the store without being told."""
BUSY_WATCHER_S = 1.0
"""How long a watcher may wait for the store; it reads one row, for which WAL has no locks."""


def watch_folder(store: Path) -> Path:
    """Where the watchers of a store have their sockets."""
    return store.with_name(f"{store.name}.watch")


def tell(folder: Path) -> None:
    """Tell all watchers, and remove the sockets of dead ones; it never waits and never fails."""
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        _short(folder) as short,
    ):
        sender.setblocking(False)
        for name in os.listdir(short):
            try:
                sender.sendto(b"\n", f"{short}/{name}")
            except ConnectionRefusedError:
                with suppress(OSError):
                    os.unlink(f"{short}/{name}")
            except OSError:  # its queue is full, so it is told already, or it has just ended
                continue


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A path of a folder by descriptor: a socket's path has 107 bytes at most. OSError."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class StoreWatch:
    """Wakes when any process changes the store; for one task of one event loop."""

    def __init__(self, path: Path, *, declarations_only: bool = False) -> None:
        """Watch from now on; with `declarations_only` neither status nor events. StoreUnusable."""
        self._column = "declared" if declarations_only else "revision"
        self._file = StoreFile(path, busy_s=BUSY_WATCHER_S)
        self._folder = watch_folder(self._file.path)
        self._name = secrets.token_hex(8)
        self._socket: socket.socket | None = None
        try:
            self._listen()
            self.seen = self._number()
            """The store's number when this watch last looked."""
        except BaseException:
            self.close()
            raise

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until something changes; whether it did, since the watch began or last said so.

        False after `timeout_s`. StoreUnusable.
        """
        loop = asyncio.get_running_loop()
        deadline = float("inf") if timeout_s is None else loop.time() + timeout_s
        while not self._changed():
            left_s = min(LOOK_S, deadline - loop.time())
            if left_s <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    if (listening := self._listen()) is None:
                        await asyncio.sleep(left_s)
                    else:
                        await loop.sock_recv(listening, 1)
        return True

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._stop_listening()
        with suppress(OSError):
            (self._folder / self._name).unlink()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _changed(self) -> bool:
        before, self.seen = self.seen, self._number()
        return self.seen != before

    def _number(self) -> Revision:
        with self._file.reading() as connection:
            (number,) = connection.execute(f"SELECT {self._column} FROM counter").fetchone()
        return Revision(number)

    def _listen(self) -> socket.socket | None:
        """The socket, which is made anew if its file is gone; None while there can be none.

        A writer that tells it between its file's creation and its binding takes it for dead.
        """
        try:
            make_folder(self._folder)
            with _short(self._folder) as short:
                address = f"{short}/{self._name}"
                if self._socket is not None and os.path.exists(address):
                    return self._socket
                self._stop_listening()
                listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
                try:
                    listening.bind(address)
                except BaseException:
                    listening.close()
                    raise
                self._socket = listening
        except OSError:  # as on a full disk: it looks every second
            self._stop_listening()
        return self._socket

    def _stop_listening(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
