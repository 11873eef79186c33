"""Who has no certificate costs a mediator little: no connection for long, no place, no log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpilot.mediator.server.connections.rate_limiter import LINES_AT_ONCE, LogPace
from mediators import Here, eventually, mediating
from real_ray import ENVIRONMENT, eventually as until

GARBAGE = b"GET / HTTP/1.1\r\n\r\n"


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


def place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def strangers(address: str, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections that say this, and then nothing."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection(place(address), 20)))
            made[-1].sendall(say)
            made[-1].setblocking(False)
        yield made


def open_of(connections: list[socket.socket]) -> int:
    """How many of these the other side has not closed."""
    found = 0
    for each in connections:
        try:
            found += each.recv(1 << 16) != b""
        except BlockingIOError:
            found += 1
        except OSError:
            pass
    return found


def hello() -> bytes:
    """What a TLS client says first."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that name where connections came from."""
    return [each.message for each in caplog.records if "came to nothing" in each.message]


def port_of(here: Here, name: str) -> str:
    return here.address if name == "sites" else here.join_address


@pytest.mark.parametrize("port", ["sites", "join"])
@pytest.mark.parametrize("say", [b"", hello()], ids=["says nothing", "stops after its hello"])
def test_a_stranger_is_not_waited_for(tmp_path: Path, port: str, say: bytes) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", handshake_s=0.5) as here, here.agent("paris"):
            await here.state("paris", "ready")
            with strangers(port_of(here, port), 20, say) as made:
                await eventually(lambda: not open_of(made), "they are closed", 60)
            assert (await here.state("paris", "ready", "suspect"))["name"] == "paris"

    run(test())


def test_who_shakes_hands_to_join_and_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", handshake_s=0.5, stranger_s=1.0) as here:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            reader, writer = await asyncio.open_connection(*place(here.join_address), ssl=context)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1 << 16):
                        pass
            writer.close()

    run(test())


def test_too_many_strangers_are_closed_and_those_who_are_known_stay(tmp_path: Path) -> None:
    async def test() -> None:
        patient: dict[str, Any] = {"handshake_s": 60.0, "stranger_s": 60.0}
        async with (
            mediating(tmp_path / "m", strangers=5, **patient) as here,
            here.agent("paris") as paris,
        ):
            await here.state("paris", "ready")
            with strangers(here.address, 40) as made:
                await eventually(lambda: open_of(made) <= 5, "all but five are closed", 60)
                assert open_of(made) == 5
                async with here.agent("oslo") as oslo:  # there is room for who comes
                    await here.state("oslo", "ready")
                    assert not oslo.refusals
            assert not paris.refusals, "its session went on"

    run(test())


def test_of_one_address_so_many_may_be_known(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", connections_per_address=2) as here:
            await here.sites()  # the admin's connection is the first
            async with here.agent("paris") as paris:
                await here.state("paris", "ready")
                async with here.agent("oslo") as oslo:
                    await eventually(lambda: oslo.refusals, "the third is closed", 60)
                assert not paris.refusals

    run(test())


def test_strangers_that_leave_at_once_are_named_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris"):
            await here.state("paris", "ready")
            with strangers(here.address, 30, GARBAGE) as made:
                await eventually(lambda: not open_of(made), "they are closed", 60)
            await eventually(lambda: named(caplog), "the door has looked", 60)

    caplog.set_level(logging.INFO)
    run(test())
    lines = named(caplog)
    assert 1 <= len(lines) <= 2, "the first, and what was left at the end"
    assert 15 <= sum(int(line.split()[0]) for line in lines) <= 30, lines
    assert all("from 127.0.0.1: " in line for line in lines)
    assert "ended without an admitted call" in lines[0]


def test_a_mediators_log_stays_short_and_it_takes_the_descriptors_that_it_may(
    tmp_path: Path,
) -> None:
    command = ("mediator", "start", "--folder", "m", "--listen", "127.0.0.1:0", "--join-port", "0")
    log = tmp_path / "log"
    with log.open("wb") as out:
        started = subprocess.Popen(
            [sys.executable, "-m", "fedpilot", *command, "--json"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1_000)),
        )
    assert started.stdout is not None
    try:
        ready = started.stdout.readline()
        address = ready.partition('"address": "')[2].partition('"')[0]
        assert address, f"it did not start: {ready}\n{log.read_text()}"
        assert resource.prlimit(started.pid, resource.RLIMIT_NOFILE) == (1_000, 1_000)
        for _ in range(25):
            with strangers(address, 20, GARBAGE) as made:
                until(lambda made=made: not open_of(made), 60, "they are closed")
        os.kill(started.pid, signal.SIGTERM)
        assert started.wait(60) == 0
    finally:
        started.kill()
        started.wait()
        started.stdout.close()
    said = log.read_text()
    assert "Handshake failed" not in said
    assert "1000 descriptors (RLIMIT_NOFILE): 595 connections are taken at once, not 4096" in said
    lines = [line for line in said.splitlines() if "came to nothing" in line]
    named = sum(int(line.split("WARNING ")[1].split()[0]) for line in lines)
    # The kernel forgets what a busy mediator does not hear in time, and tells of the last too late.
    assert 250 <= named <= 500, said
    assert len(said.splitlines()) < 12, said


# -- the log --------------------------------------------------------------------------------------


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def test_lines_of_one_kind_are_paced_and_those_of_others_are_not() -> None:
    now = 0.0
    lines, log = Lines(), logging.Logger("paced")
    lines.addFilter(LogPace(lambda: now))
    log.addHandler(lines)
    for number in range(1_000):
        log.warning("refused %s", number)
    assert lines.said == [f"refused {number}" for number in range(int(LINES_AT_ONCE))]
    log.warning("something else")
    assert lines.said[-1] == "something else"
    now = 10.0
    log.warning("refused %s", "again")
    assert lines.said[-1] == "refused again (and 970 more of this kind before it)"
    now = 20.0
    log.warning("refused %s", "again")
    assert lines.said[-1] == "refused again"
