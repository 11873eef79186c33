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
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


@contextmanager
def postgres() -> Iterator[str]:
    """Start it on a port of 127.0.0.1; the URL of its server, to which a database's name is added.

    RuntimeError, with what it has logged, where it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _give_to_user(folder)
        data, log = folder / "data", folder / "log"
        _make(folder, data)
        port = _free_port()
        with log.open("wb") as out:
            server = subprocess.Popen(
                [
                    _path("postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port),
                    "-k", str(folder), "-c", "fsync=off", "-c", "max_connections=20",
                    "-c", "shared_buffers=16MB",
                ],
                stdout=out,
                stderr=out,
                cwd=folder,
                **_as_user(),
            )  # fmt: skip
        try:
            _wait_for(port, server, log)
            yield f"postgresql://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}"
        finally:
            _end(server)


@contextmanager
def database(server: str) -> Iterator[str]:
    """A database of its own on a server; its URL."""
    import psycopg

    name = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield f"{server}/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _make(folder: Path, data: Path) -> None:
    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)  # the folder is closed to others
    done = subprocess.run(
        [
            _path("initdb"), "-D", str(data), "-U", USER, "-A", "scram-sha-256",
            "--pwfile", str(password), "--no-sync", "-E", "UTF8", "--locale", "C",
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=folder,
        **_as_user(),
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


def _as_user() -> dict[str, Any]:
    user = _other_user()
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


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
