"""What a site keeps on hosts over SSH, and what it tells them; here `ssh` is a script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import (
    HEAD,
    DeclaredRayCluster,
    MachineGroup,
    RayClusterName,
)
from fedpilot.fabric.manager.files.ledger_file import LedgerFile
from fedpilot.fabric.ray_clusters.providers.host_link import HostLink
from fedpilot.fabric.ray_clusters.providers.ssh import SshMachines, uid_on

PATIENCE_S = 120.0
SSH = """\
#!/bin/sh
for each; do host="$before"; before="$each"; done
test ! -e {folder}/$host.down || {{ echo $host is down >&2; exit 255; }}
test ! -e {folder}/$host.hangs || exec sleep 600
export SSH_CONNECTION="10.0.0.9 5 10.0.0.1 22" XDG_STATE_HOME={folder}/$host
exec sh -c "$each"
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a folder for each host that `ssh` reaches."""
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(SSH.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    return tmp_path


def on(*hosts: str, python: str = sys.executable) -> DeclaredRayCluster:
    head = MachineGroup(name=HEAD, hosts=hosts)
    return DeclaredRayCluster(name=RayClusterName("c"), provider="ssh", head=head, python=python)


def home(hosts: Path, host: str) -> Path:
    return hosts / host / "fedpilot/machines" / uid_on(host, "uid")


def ledger(hosts: Path, host: str, queues: str) -> None:
    """Write a ledger, as the manager of virtual clusters does."""
    folder = home(hosts, host) / "virtual-clusters"
    folder.mkdir(exist_ok=True)
    file = LedgerFile(folder / "ledger.sqlite")
    file.write_note("queues", queues)
    file.close()


def queues(hosts: Path, host: str) -> object:
    """What the ledger on a host says."""
    path = home(hosts, host) / "virtual-clusters/ledger.sqlite"
    if not path.exists():
        return None
    file = LedgerFile(path)
    try:
        return file.note("queues")
    finally:
        file.close()


def told(declared: DeclaredRayCluster, hosts: Path, story: Callable[[SshMachines], Any]) -> None:
    async def whole() -> None:
        machines = SshMachines(declared, "uid", hosts / "site")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await story(machines)
        finally:
            await machines.close()

    asyncio.run(whole())


async def until(machines: SshMachines, holds: Callable[[], bool]) -> None:
    while not holds():
        await machines.look()
        await asyncio.sleep(0.02)


def begins(machines: SshMachines, host: str) -> Coroutine[Any, Any, None]:
    """All that comes before a head starts on a host."""
    return machines._bring_ledger(machines._link(host))


def test_the_ledger_follows_the_head_and_the_newest_one_counts(hosts: Path) -> None:
    async def story(machines: SshMachines) -> None:
        await machines.look()
        await begins(machines, "a")
        ledger(hosts, "a", "first")
        await until(machines, machines._ledger_copy.exists)
        ledger(hosts, "a", "second")
        await until(machines, lambda: bool(machines._links["a"].ledger))
        await begins(machines, "b")  # a answers, so what it has said last comes along
        assert queues(hosts, "b") == "second"
        ledger(hosts, "b", "third")
        await until(machines, lambda: machines._copied[0] == "b")
        await until(machines, lambda: machines._copied[1] == machines._links["b"].ledger)
        (hosts / "b.down").touch()
        machines._links["b"]._process.kill()  # type: ignore[union-attr]
        await until(machines, lambda: machines._links["b"].silence == "b is down")
        await begins(machines, "a")  # which has an older one
        assert queues(hosts, "a") == "third"

    told(on("a", "b"), hosts, story)


def test_a_host_that_has_lost_its_ledger_gets_the_copy(hosts: Path) -> None:
    async def story(machines: SshMachines) -> None:
        await machines.look()
        await begins(machines, "a")
        ledger(hosts, "a", "kept")
        await until(machines, machines._ledger_copy.exists)
        (home(hosts, "a") / "virtual-clusters/ledger.sqlite").unlink()
        await until(machines, lambda: not machines._links["a"].ledger)
        await begins(machines, "a")
        assert queues(hosts, "a") == "kept"

    told(on("a"), hosts, story)


def test_a_successor_knows_what_was_copied_from_a_host_that_is_declared_no_more(
    hosts: Path,
) -> None:
    async def first(machines: SshMachines) -> None:
        await machines.look()
        await begins(machines, "a")
        ledger(hosts, "a", "kept")
        await until(machines, machines._ledger_copy.exists)

    async def second(machines: SshMachines) -> None:
        assert {*machines._known} == {"a", "b"}
        await machines.look()
        await begins(machines, "b")
        assert queues(hosts, "b") == "kept"

    told(on("a"), hosts, first)
    (hosts / "a.down").touch()
    told(on("b"), hosts, second)


def test_a_corrected_declaration_has_effect_at_once(hosts: Path) -> None:
    async def story(machines: SshMachines) -> None:
        assert "not found" in (await machines.look()).silent_hosts["a"]
        machines.declare(on("a", "b"))
        assert (await machines.look()).silent_hosts == {}
        assert home(hosts, "b").exists()

    told(on("a", python="/nowhere/python"), hosts, story)


def test_a_host_that_is_declared_no_more_is_let_go(hosts: Path) -> None:
    async def story(machines: SshMachines) -> None:
        await machines.look()
        assert home(hosts, "b").exists()
        machines.declare(on("a"))
        await until(machines, lambda: "b" not in machines._known)
        assert not home(hosts, "b").exists()
        assert (await machines.look()).silent_hosts == {}

    told(on("a", "b"), hosts, story)


def test_a_host_that_is_let_go_is_looked_at_no_more(
    hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(machines: SshMachines) -> None:
        await machines.look()
        machines.declare(on("a"))
        await until(machines, closing.is_set)
        await machines.look()
        assert {*machines._links} == {"a"}

    closing, close = asyncio.Event(), HostLink.close

    async def slowly(link: HostLink) -> None:
        closing.set()
        await asyncio.sleep(1)
        await close(link)

    monkeypatch.setattr(HostLink, "close", slowly)
    told(on("a", "b"), hosts, story)


def test_nothing_of_a_deleted_cluster_stays_on_hosts_that_answer(hosts: Path) -> None:
    (hosts / "c.down").touch()

    async def story(machines: SshMachines) -> None:
        assert [*(await machines.look()).silent_hosts] == ["c"]
        assert home(hosts, "a").exists()
        await machines.forget()
        for host in "ab":
            assert not home(hosts, host).exists()
        assert not (hosts / "site").exists()

    told(on("a", "b", "c"), hosts, story)


def test_a_host_that_does_not_answer_delays_no_other(hosts: Path) -> None:
    (hosts / "b.hangs").touch()

    async def story(machines: SshMachines) -> None:
        await machines.look()
        await until(machines, lambda: not machines._links["a"].silence)
        silent = (await machines.look()).silent_hosts
        assert silent == {"b": "it has not been reached yet"}

    told(on("a", "b"), hosts, story)
