"""SshMachines: the machines of a declared Ray cluster on hosts that are reached by OpenSSH.

Each host has its own as `local` has them; a process of the site's, which `ssh` starts there, looks
after them. The site keeps the cluster's secret and the address of its head, and tells them to every
host. A host needs Python with the site's versions of fedpilot and Ray, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import shlex
import shutil
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedpilot.common.host.folders import make_folder

from ...core.ray_clusters.declaration import SILENT_PART, DeclaredRayCluster, MachineName
from ...core.ray_clusters.machines import MachinePlace
from ...errors import ProviderFailed
from .files import explained, write_private
from .host_link import HostLink
from .ledger_copy import MOST_PARTS, unpacked
from .protocol import MachineOrder, ProvidedMachine, ProviderView
from .ray_start import TOKEN, MachineStart

log = logging.getLogger(__name__)

OPTIONS = (
    "-T",
    "-oBatchMode=yes",  # no person is there to answer questions
    "-oStrictHostKeyChecking=yes",
    "-oAddressFamily=inet",  # Ray's addresses are `host:port`
    "-oConnectTimeout=5",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=2",
)
BEATS, SLOWEST_BEAT_S = 5, 1.0
"""How often a host speaks in the time after which it counts as silent, and how seldom at most."""
HOST_SIDE = "fedpilot.fabric.ray_clusters.providers.on_host"
FIRST_LOOK_S = 6.0
"""How long the first look waits for hosts; those that have not answered by then count as silent."""


def ssh_command(host: str, uid: str, python: str, config: str = "") -> list[str]:
    """The command that opens the link to a host; its shell gets words that are quoted."""
    remote = shlex.join([python or sys.executable, "-m", HOST_SIDE, uid])
    return ["ssh", *OPTIONS, *(("-F", config) if config else ()), host, f"exec {remote}"]


def uid_on(host: str, uid: str) -> str:
    """What names a cluster on one host: other than on others, which may share a file system."""
    return f"{uid}-{sha256(host.encode()).hexdigest()[:8]}"


class SshMachines:
    """The machines of one declared Ray cluster on its hosts."""

    def __init__(self, declared: DeclaredRayCluster, uid: str, folder: Path) -> None:
        """`folder` keeps what belongs to the cluster, at the site. ProviderFailed."""
        self._uid, self._folder = uid, folder
        self._woken = asyncio.Event()
        with explained("cannot make the folder of the cluster"):
            for each in (folder.parent, folder):
                make_folder(each)
                each.chmod(0o700)
        self._links: dict[str, HostLink] = {}
        self._aside: set[asyncio.Task[None]] = set()
        """What goes on beside everything else."""
        self._busy: set[str] = set()
        """The hosts about which something of that goes on."""
        self._copied: tuple[str, list[int]] = ("", [])
        """From which host the ledger was copied last, and its stamp there."""
        self._known = self._known_hosts()
        """Hosts where something may be left, declared or not, in order."""
        self.declare(declared)

    def declare(self, declared: DeclaredRayCluster) -> None:
        """Take another declaration: other hosts, or another way to them."""
        self._declared = dict.fromkeys(host for group in declared.groups for host in group.hosts)
        self._python, self._config = declared.python, declared.ssh_config
        self._patience_s = SILENT_PART * declared.host_timeout_s
        self._known = {**self._known, **self._declared}
        for host, link in [*self._links.items()]:
            if link.command != tuple(self._command(host)):
                del self._links[host]  # the next look opens another one
                self._begin(host, link.close())
            elif link.patience_s != self._patience_s:
                link.patience_s = self._patience_s
                self._begin(host, link.ask("take", **self._shared()))

    def _command(self, host: str) -> list[str]:
        return ssh_command(host, uid_on(host, self._uid), self._python, self._config)

    def _begin(self, host: str, work: Coroutine[Any, Any, None]) -> None:
        """Do something about a host aside."""

        async def done() -> None:
            try:
                await work
            except ProviderFailed as error:
                log.warning("%s; it is tried again", error)
            finally:
                self._busy.discard(host)

        self._busy.add(host)
        task = asyncio.create_task(done())
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    def _link(self, host: str) -> HostLink:
        """The link to a host, which is known for as long as something may be left there."""
        if host not in self._links:
            self._known[host] = None
            with explained("cannot remember a host"):
                write_private(self._folder / "hosts", json.dumps([*self._known]))
            self._links[host] = HostLink(
                host, self._command(host), self._shared, self._woken.set, self._patience_s
            )
        return self._links[host]

    def _shared(self) -> dict[str, Any]:
        """What a host is told before it does anything."""
        beat_s = min(self._patience_s / BEATS, SLOWEST_BEAT_S)
        return {"token": self.token, "address": self.address or "", "beat_s": beat_s}

    async def _all(self) -> list[HostLink]:
        """The links to all hosts; each has answered once, or had its time to do so."""
        opened = [self._link(host) for host in self._known if host not in self._links]
        waiting = [asyncio.ensure_future(each.tried()) for each in opened]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=FIRST_LOOK_S)
            for each in late:
                each.cancel()
        return [self._link(host) for host in self._known]

    def _known_hosts(self) -> dict[str, None]:
        """The hosts that have been declared before."""
        with explained("cannot read the hosts of the cluster"):
            file = self._folder / "hosts"
            return dict.fromkeys(json.loads(file.read_text())) if file.exists() else {}

    # -- what is there -----------------------------------------------------------------------------

    async def look(self) -> ProviderView:
        found: dict[MachinePlace, ProvidedMachine] = {}
        silent, silent_s = {}, {}
        for link in await self._all():
            if link.silence:
                silent[link.host], silent_s[link.host] = link.silence, link.silent_s
                continue
            found |= {(link.host, name): each for name, each in link.machines.items()}
            left = link.host not in self._declared and not link.machines
            if left and link.host not in self._busy:
                self._begin(link.host, self._let_go(link))
        self._follow_head()
        machines = dict(sorted(found.items()))
        return ProviderView(machines=machines, silent_hosts=silent, silent_s=silent_s)

    async def _let_go(self, link: HostLink) -> None:
        """Keep nothing on a host that is declared no more and has no machines."""
        await link.ask("forget")
        self._links.pop(link.host, None)  # together with the host, or a look opens another one
        if link.host not in self._declared:
            self._known.pop(link.host, None)
        await link.close()
        with explained("cannot forget a host"):
            write_private(self._folder / "hosts", json.dumps([*self._known]))

    async def changed(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    # -- starting and ending -----------------------------------------------------------------------

    async def start(self, order: MachineOrder) -> None:
        start, link = MachineStart.of(order), self._link(order.machine.host)
        if start.head:
            await self._bring_ledger(link)
        else:
            await link.ask("take", **self._shared())
        await link.ask("start", machine=asdict(start))
        if start.head:
            self._keep_address(link)

    async def stop(self, name: MachineName, host: str) -> None:
        await self._link(host).ask("stop", name=name)

    # -- the head ----------------------------------------------------------------------------------

    @property
    def _head_host(self) -> str:
        """The host on which the head was started last."""
        file = self._folder / "head-host"
        return file.read_text() if file.exists() else ""

    def _keep_address(self, link: HostLink) -> None:
        """Keep the address of the head that its host tells."""
        if link.address and link.address != self.address:
            with explained("cannot keep the address of the head"):
                write_private(self._folder / "address", link.address)

    def _follow_head(self) -> None:
        """Keep up with the head's address, and with the ledger on its host."""
        link = self._links.get(self._head_host)
        if link is None or link.silence:
            return
        if link.machines:
            self._keep_address(link)
        changed = link.ledger and self._copied != (link.host, link.ledger)
        if changed and link.host not in self._busy:
            self._begin(link.host, self._copy_ledger(link))

    @property
    def _ledger_copy(self) -> Path:
        return self._folder / "ledger"

    async def _copy_ledger(self, link: HostLink) -> None:
        """Copy the ledger from the head's host. ProviderFailed."""
        stamp = [*link.ledger]
        count = await link.ask("ledger")
        if not isinstance(count, int) or not 0 < count <= MOST_PARTS:
            raise ProviderFailed(f"host {link.host}: its ledger is too large to be copied")
        parts = [str(await link.ask("part of the ledger", part=part)) for part in range(count)]
        await asyncio.to_thread(unpacked, parts)  # a damaged one replaces none that is whole
        with explained("cannot keep a copy of the ledger"):
            await asyncio.to_thread(write_private, self._ledger_copy, json.dumps(parts))
        self._copied = link.host, stamp

    async def _bring_ledger(self, link: HostLink) -> None:
        """See that the newest ledger is on a host, before a head starts there. ProviderFailed."""
        before = self._links.get(self._head_host)
        if before is not None and before is not link and before.ledger and not before.silence:
            await self._copy_ledger(before)
        elsewhere = link.host != self._head_host or not link.ledger
        if elsewhere and self._ledger_copy.exists():
            with explained("cannot read the copy of the ledger"):
                parts = json.loads(self._ledger_copy.read_text())
            await link.ask("begin a ledger")
            for text in parts:
                await link.ask("continue the ledger", text=text)
            await link.ask("put the ledger back")
        with explained("cannot keep the host of the head"):
            write_private(self._folder / "head-host", link.host)

    # -- what the cluster shares -------------------------------------------------------------------

    @property
    def address(self) -> str | None:
        file = self._folder / "address"
        return file.read_text() if file.exists() else None

    @property
    def token(self) -> str:
        return Path(self.token_file).read_text()

    @property
    def token_file(self) -> str:
        file = self._folder / TOKEN
        if not file.exists():
            write_private(file, secrets.token_hex(32))
        return str(file)

    async def forget(self) -> None:
        """Keep nothing of the cluster on hosts that answer, and nothing here."""
        links = await self._all()
        await asyncio.gather(*(_forget(each) for each in links if not each.silence))
        await self.close()
        with explained("cannot remove what the cluster has left"):
            if self._folder.exists():
                await asyncio.to_thread(shutil.rmtree, self._folder)

    async def close(self) -> None:
        links, aside = [*self._links.values()], [*self._aside]
        self._links.clear()
        for task in aside:
            task.cancel()
        await asyncio.gather(*aside, *(each.close() for each in links), return_exceptions=True)


async def _forget(link: HostLink) -> None:
    """Keep nothing on a host, which would be told the secret anew if its link stayed."""
    await link.ask("forget")
    with contextlib.suppress(ProviderFailed):
        await link.close()
