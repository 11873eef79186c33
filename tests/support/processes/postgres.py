"""A real PostgreSQL for the length of a `with`, in a folder of its own, ended by its pid.

It refuses to work as root, so it then works as the user `postgres` or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE_S = 60.0
"""For initdb, for the first answer, and for the end."""
USER, PASSWORD = "fedpilot", "of the tests"


def missing() -> str:
    """Why there can be no PostgreSQL here; empty if there can."""
    absent = [program for program in ("initdb", "postgres") if shutil.which(program) is None]
    return f"{' and '.join(absent)} not in PATH" if absent else ""


def excused() -> str:
    """Why a test may do without PostgreSQL; empty where it may not, as wherever `CI` is set."""
    return "" if "CI" in os.environ else missing()


class Server:
    """A PostgreSQL of a folder, which may be killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data, self._log = folder, folder / "data", folder / "log"
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self._port}"
        """To which a database's name is added."""
        _give_to_user(folder)
        _make(folder, self._data)

    def start(self) -> None:
        """Start it and wait until it answers; RuntimeError, with what it has logged, if not."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *_as_user(), _path("postgres"), "-D", str(self._data), "-h", "127.0.0.1",
                    "-p", str(self._port), "-k", str(self._folder), "-c", "fsync=off",
                    "-c", "max_connections=20", "-c", "shared_buffers=16MB",
                ],
                stdout=out,
                stderr=out,
                cwd=self._folder,
            )  # fmt: skip
        _wait_for(self._port, self._process, self._log)

    def start_if_stopped(self) -> None:
        """Have it there again after a test."""
        if self._process is None:
            self.start()

    def stop(self) -> None:
        """End all sessions and the server at once; what was committed stays."""
        if self._process is not None:
            _end(self._process)
            self._process = None


@contextmanager
def server() -> Iterator[Server]:
    """A PostgreSQL that is running, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        made = Server(Path(name))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@contextmanager
def postgres() -> Iterator[str]:
    """Start it on a port of 127.0.0.1; the URL of its server, to which a database's name is added.

    RuntimeError, with what it has logged, where it does not start.
    """
    with server() as made:
        yield made.url


@contextmanager
def database(server: str) -> Iterator[str]:
    """A database of its own on a server; its URL."""
    import psycopg

    name = f"test_{secrets.token_hex(4)}"

    def do(statement: str) -> None:
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(statement.encode())

    do(f"CREATE DATABASE {name}")
    try:
        yield f"{server}/{name}"
    finally:
        do(f"DROP DATABASE {name} WITH (FORCE)")


def _make(folder: Path, data: Path) -> None:
    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)  # the folder is closed to others
    done = subprocess.run(
        [
            *_as_user(), _path("initdb"), "-D", str(data), "-U", USER, "-A", "scram-sha-256",
            "--pwfile", str(password), "--no-sync", "-E", "UTF8", "--locale", "C",
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=folder,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"initdb ended with {done.returncode}: {done.stderr}")


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + DEADLINE_S
    where = f"host=127.0.0.1 port={port} user={USER} password='{PASSWORD}' dbname=postgres"
    while True:
        try:
            psycopg.connect(where, connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() >= deadline:
                raise RuntimeError(f"no PostgreSQL: {log.read_text()}") from error
        time.sleep(0.05)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Fast shutdown: sessions are ended. Then the hard way."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(DEADLINE_S)


def _other_user() -> pwd.struct_passwd | None:
    """Whom it works as, if not as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL refuses root, and there is no user `postgres` or `nobody`")


_PROGRAM = """\
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[2]))
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""`Popen(user=...)` would fork beside the threads of gRPC, which does not survive that."""


def _as_user() -> list[str]:
    """How a command begins that is not to be root's."""
    user = _other_user()
    if user is None:
        return []
    return [sys.executable, "-c", _PROGRAM, str(user.pw_gid), str(user.pw_uid)]


def _give_to_user(folder: Path) -> None:
    user = _other_user()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)


def _path(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise RuntimeError(f"{program} is not in PATH")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
