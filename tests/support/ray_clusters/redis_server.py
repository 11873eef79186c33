"""A Redis of a test's own, with a password, which can go away and come back."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PASSWORD = "not 'for' \"everybody\""
PATIENCE_S = 120.0


@dataclass
class RedisServer:
    """It keeps what it has on disk, so that it comes back with it."""

    folder: Path
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def password_file(self) -> Path:
        return self.folder / "password"

    def start(self) -> None:
        quoted = PASSWORD.replace('"', '\\"')
        settings = (
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            "appendonly yes\nappendfsync no\nsave ''\n"
            f'requirepass "{quoted}"\n'
        )
        process = subprocess.Popen(
            ["redis-server", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.processes.append(process)
        assert process.stdin is not None
        process.stdin.write(settings.encode())
        process.stdin.close()
        deadline = time.monotonic() + PATIENCE_S
        while self._asked("PING") != "PONG":
            assert process.poll() is None, "Redis has ended"
            assert time.monotonic() < deadline, "Redis does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def keys(self) -> set[str]:
        return {*filter(None, self._asked("KEYS", "*").split("\n"))}

    def put(self, key: str) -> None:
        assert self._asked("SET", key, "1") == "OK"

    def _asked(self, *words: str) -> str:
        done = subprocess.run(
            ["redis-cli", "-p", str(self.port), *words],
            env={**os.environ, "REDISCLI_AUTH": PASSWORD},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """A Redis that runs; its password is in `password_file`."""
    if shutil.which("redis-server") is None:
        assert "CI" not in os.environ, "redis-server is missing"
        pytest.skip("redis-server is missing")
    folder.mkdir()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        server = RedisServer(folder, one.getsockname()[1])
    server.password_file.write_text(f"{PASSWORD}\n")
    try:
        server.start()
        yield server
    finally:
        server.kill()
