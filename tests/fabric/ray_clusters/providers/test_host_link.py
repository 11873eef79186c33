"""What a site makes of hosts: those that answer, and those that do not, or lie."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fedpilot.fabric.errors import ProviderFailed
from fedpilot.fabric.ray_clusters.providers.host_link import HostLink, line_unless_silent
from fedpilot.fabric.ray_clusters.providers.on_host import reached_at, versions
from fedpilot.fabric.ray_clusters.providers.ssh import HOST_SIDE, ssh_command, uid_on

PATIENCE_S = 120.0
SHARED = {"token": "secret", "address": "10.0.0.9:6379"}
GREETING = json.dumps({"greets": versions(), "address": "10.0.0.1"})
VIEW = json.dumps({"machines": {"c-w-1": None}, "address": None, "ledger": []})
TAKEN = json.dumps({"answers": 0, "failed": "", "found": None})
TROUBLED = json.dumps({"troubled": "no \u001b[2J disk"})


def real_host(folder: Path, *, before: str = "") -> list[str]:
    """A host's side of the link, as `ssh` would start it."""
    settings = f"SSH_CONNECTION='10.0.0.2 5 10.0.0.1 22' XDG_STATE_HOME={folder}"
    return ["sh", "-c", f"{before} exec env {settings} {sys.executable} -m {HOST_SIDE} abc"]


def says(*lines: str, then: str = "sleep 600") -> list[str]:
    """A host that says these lines, each answer once it is asked."""
    told = "; ".join(f"{'read line; ' * ('answers' in line)}echo '{line}'" for line in lines)
    return ["sh", "-c", f"{told}; exec {then}"]


@asynccontextmanager
async def linked(command: list[str], patience_s: float = 5.0) -> AsyncIterator[HostLink]:
    link = HostLink("far", command, lambda: SHARED, lambda: None, patience_s)
    try:
        yield link
    finally:
        await link.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_a_host_is_told_what_its_cluster_shares_and_answers(tmp_path: Path) -> None:
    async def story() -> None:
        async with linked(real_host(tmp_path, before="echo Welcome!; echo '{\"a\": 1}';")) as link:
            await until(lambda: not link.silence)
            assert link.machines == {}
            assert link.address == ""  # it is not one of this host's
            home = tmp_path / "fedpilot/machines/abc"
            assert (home / "token").read_text() == SHARED["token"]
            assert (home / "token").stat().st_mode & 0o777 == 0o600
            with pytest.raises(ProviderFailed, match="host far: 'tea' cannot be asked of a host"):
                await link.ask("tea")
            await link.ask("stop", name="c-w-1")  # it is not there, which is no error
            await link.ask("forget")
            assert not home.exists()

    run(story())


def test_a_host_whose_link_ends_is_reached_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with linked(real_host(tmp_path)) as link:
            await until(lambda: not link.silence)
            assert link._process is not None
            os.kill(link._process.pid, 9)
            await until(lambda: link.silence == "ssh has ended")
            with pytest.raises(ProviderFailed, match="host far: ssh has ended"):
                await link.ask("forget")
            await until(lambda: not link.silence)

    run(story())


def test_a_host_ends_when_its_site_hangs_up(tmp_path: Path) -> None:
    async def story() -> None:
        process = await asyncio.create_subprocess_exec(
            *real_host(tmp_path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert "greets" in json.loads(await process.stdout.readline())
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0

    run(story())


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/nowhere/ssh"], "No such file or directory: '/nowhere/ssh'"),
        (["sh", "-c", "echo Host key verification failed. >&2; exit 255"], "Host key verification"),
        (["sh", "-c", "exit 0"], "ssh has ended"),
        (says(*["hello"] * 200), "it prints, and does not greet"),
        (says('{"greets": {"Python": "2.7"}, "address": "x"}'), "it has Python 2.7 (here 3."),
        (
            says(json.dumps({"greets": versions(), "address": ""})),
            "it does not say by which address it is reached",
        ),
        (says(GREETING, TROUBLED), r"no \u001b[2J disk"),
        (says(GREETING, VIEW.replace("c-w-1", "../x")), "it says what no host says"),
        (says(GREETING, "[]"), "it says what no host says"),
        (says(GREETING, "no JSON"), "it says what no host says"),
        (says(GREETING, '{"machines": 5}'), "it says what no host says"),
        (says(GREETING, VIEW, '{"answers": 0, "failed": "the disk is full"}'), "the disk is full"),
    ],
)
def test_why_a_host_does_not_answer_is_said(command: list[str], why: str) -> None:
    async def story() -> None:
        async with linked(command) as link:
            await link.tried()
            await until(lambda: why in link.silence)

    run(story())


def test_a_host_that_says_nothing_any_more_is_silent_and_then_reached_anew() -> None:
    async def story() -> None:
        async with linked(says(GREETING, VIEW, TAKEN, VIEW), 1.0) as link:
            await until(lambda: not link.silence)
            assert [*link.machines] == ["c-w-1"]
            process = link._process
            await until(lambda: link.silence == "it has been silent for 1 s")
            assert link._process is process, "a host that speaks again is not reached anew"
            assert link.silent_s >= 1.0
            await until(lambda: link._process is not process)

    run(story())


def test_a_host_that_speaks_again_is_silent_no_more(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "later")
    later = os.open(tmp_path / "later", os.O_RDWR)
    command = says(GREETING, VIEW, TAKEN, VIEW, then=f"cat {tmp_path / 'later'}")

    async def story() -> None:
        async with linked(command, 0.5) as link:
            missed = asyncio.Event()

            def heard() -> None:
                if link.silence and link._tried.is_set():
                    link.patience_s = PATIENCE_S
                    missed.set()

            link._changed = heard
            await missed.wait()
            process = link._process
            os.write(later, VIEW.encode() + b"\n")
            await until(lambda: not link.silence)
            assert link._process is process

    run(story())
    os.close(later)


def test_a_host_has_its_time_before_its_silence_counts() -> None:
    async def story() -> None:
        async with linked(["sleep", "600"]) as link:
            assert link.silence
            assert link.silent_s < 0

    run(story())


def test_no_host_is_silent_because_its_site_was() -> None:
    async def story() -> None:
        lines = asyncio.StreamReader()
        reads, writes = os.pipe()
        link, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reads, "rb")
        )
        heard = asyncio.create_task(line_unless_silent(lines, 0.2))
        await asyncio.sleep(0)  # it waits from now on
        time.sleep(0.3)
        os.write(writes, b"here\n")
        assert await heard == b"here\n"
        os.close(writes)
        link.close()

    run(story())


def test_the_shell_of_a_host_gets_quoted_words() -> None:
    command = ssh_command("ann@far", "uid", "/opt/my python/bin/python", "/etc/ssh config")
    assert command[0] == "ssh"
    assert command[-2:] == ["ann@far", f"exec '/opt/my python/bin/python' -m {HOST_SIDE} uid"]
    assert command[command.index("-F") + 1] == "/etc/ssh config"
    assert "-oStrictHostKeyChecking=yes" in command


def test_a_cluster_has_another_name_on_each_host() -> None:
    assert uid_on("a", "u") != uid_on("b", "u")
    assert uid_on("a", "u").startswith("u-")


@pytest.mark.parametrize(
    ("connection", "address"), [("10.0.0.2 50022 10.0.0.1 22", "10.0.0.1"), ("", ""), ("x", "")]
)
def test_a_host_is_reached_where_ssh_has_reached_it(connection: str, address: str) -> None:
    assert reached_at(connection) == address
