"""SshMachines: the machines of a declared Ray cluster on hosts that are reached by OpenSSH.

Each host has its own as `local` has them; a process of the site's, which `ssh` starts there, looks
after them. The site keeps the cluster's secret and the address of its head, and tells them to every
host. A host needs Python with the site's versions of fedpilot and Ray, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from fedpilot.common.host.folders import make_folder

from ...core.ray_clusters.declaration import DeclaredRayCluster, MachineName
from ...errors import ProviderFailed
from .files import explained, write_private
from .host_link import HostLink
from .protocol import MachineOrder, ProvidedMachine, ProviderView
from .ray_start import TOKEN, MachineStart

log = logging.getLogger(__name__)

OPTIONS = (
    "-T",
    "-oBatchMode=yes",  # nobody is there to answer questions
    "-oStrictHostKeyChecking=yes",
    "-oConnectTimeout=5",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=2",
)
HOST_SIDE = "fedpilot.fabric.ray_clusters.providers.on_host"


def ssh_command(host: str, uid: str, python: str, config: str = "") -> list[str]:
    """The command that opens the link to a host; its shell gets words that are quoted."""
    remote = shlex.join([python, "-m", HOST_SIDE, uid])
    return ["ssh", *OPTIONS, *(("-F", config) if config else ()), host, f"exec {remote}"]


def uid_on(host: str, uid: str) -> str:
    """What names a cluster on one host: other than on others, which may share a file system."""
    return f"{uid}-{sha256(host.encode()).hexdigest()[:8]}"


class SshMachines:
    """The machines of one declared Ray cluster on its hosts."""

    def __init__(
        self, uid: str, folder: Path, hosts: Sequence[str], *, python: str, config: str = ""
    ) -> None:
        """`folder` keeps what belongs to the cluster, at the site; `python` and `config` are
        those of the declaration."""
        self._uid, self._folder, self._python, self._config = uid, folder, python, config
        self._woken = asyncio.Event()
        with explained("cannot make the folder of the cluster"):
            for each in (folder.parent, folder):
                make_folder(each)
                each.chmod(0o700)
        self._hosts = dict.fromkeys((*hosts, *self._known_hosts()))
        self._links: dict[str, HostLink] = {}
        self._copying: asyncio.Task[None] | None = None
        self._copied: tuple[str, Sequence[int]] = ("", ())
        """From which host the ledger was copied last, and its stamp there."""

    @classmethod
    def of(cls, declared: DeclaredRayCluster, uid: str, folder: Path) -> SshMachines:
        hosts = dict.fromkeys(host for group in declared.groups for host in group.hosts)
        return cls(
            uid,
            folder,
            tuple(hosts),
            python=declared.python or sys.executable,
            config=declared.ssh_config,
        )

    def _link(self, host: str) -> HostLink:
        """The link to a host, which is remembered for as long as the cluster is there."""
        if host not in self._links:
            self._hosts[host] = None
            with explained("cannot remember a host"):
                write_private(self._folder / "hosts", json.dumps([*self._hosts]))
            uid = uid_on(host, self._uid)
            self._links[host] = HostLink(
                host,
                ssh_command(host, uid, self._python, self._config),
                lambda: {"token": self.token, "address": self.address or ""},
                self._woken.set,
            )
        return self._links[host]

    async def _all(self) -> list[HostLink]:
        """The links to all hosts, each of which has answered, or has not."""
        links = [self._link(host) for host in self._hosts]
        await asyncio.gather(*(each.tried() for each in links))
        return links

    def _known_hosts(self) -> list[str]:
        """The hosts that have been declared before; something may be left there."""
        with explained("cannot read the hosts of the cluster"):
            file = self._folder / "hosts"
            return list(json.loads(file.read_text())) if file.exists() else []

    # -- what is there -----------------------------------------------------------------------------

    async def look(self) -> ProviderView:
        found: dict[MachineName, ProvidedMachine] = {}
        for link in await self._all():
            if not link.silence:
                found |= link.machines
        self._follow_ledger()
        silent = {host: link.silence for host, link in self._links.items() if link.silence}
        return ProviderView(machines=dict(sorted(found.items())), silent_hosts=silent)

    async def changed(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    # -- starting and ending -----------------------------------------------------------------------

    async def start(self, order: MachineOrder) -> None:
        start, link = MachineStart.of(order), self._link(order.machine.host)
        if not start.head:
            await link.ask("take", token=self.token, address=self.address or "")
        else:
            await self._bring_ledger(link, order.machine.host)
        await link.ask("start", machine=asdict(start))
        if start.head and link.address and link.address != self.address:
            with explained("cannot keep the address of the head"):
                write_private(self._folder / "address", link.address)

    async def stop(self, name: MachineName, host: str) -> None:
        if host:
            await self._link(host).ask("stop", name=name)
            return
        for link in await self._all():
            if name in link.machines:
                await link.ask("stop", name=name)

    # -- the ledger of virtual clusters ------------------------------------------------------------

    @property
    def _head_host(self) -> str:
        """The host on which the head was started last."""
        file = self._folder / "head-host"
        return file.read_text() if file.exists() else ""

    @property
    def _ledger_copy(self) -> Path:
        return self._folder / "ledger"

    async def _bring_ledger(self, link: HostLink, host: str) -> None:
        """Give a host on which the head was not started last what the site has of the ledger."""
        if host != self._head_host and self._ledger_copy.exists():
            await link.ask("put ledger back", copies=json.loads(self._ledger_copy.read_text()))
        with explained("cannot keep the host of the head"):
            write_private(self._folder / "head-host", host)

    def _follow_ledger(self) -> None:
        """Copy the ledger from the head's host, if it has changed."""
        host = self._head_host
        link = self._links.get(host)
        if link is None or link.silence or not link.ledger or self._copied == (host, link.ledger):
            return
        if self._copying is None or self._copying.done():
            self._copying = asyncio.create_task(self._copy_ledger(host, link))

    async def _copy_ledger(self, host: str, link: HostLink) -> None:
        known = link.ledger
        try:
            copied = json.dumps(await link.ask("ledger"))
            with explained("cannot keep a copy of the ledger"):
                write_private(self._ledger_copy, copied)
        except ProviderFailed as error:
            log.warning("%s; it is tried again", error)
        else:
            self._copied = host, known

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
        for link in await self._all():
            if not link.silence:
                await link.ask("forget")
        await self.close()
        with explained("cannot remove what the cluster has left"):
            if self._folder.exists():
                await asyncio.to_thread(shutil.rmtree, self._folder)

    async def close(self) -> None:
        if self._copying is not None:
            self._copying.cancel()
        links = [*self._links.values()]
        self._links.clear()
        await asyncio.gather(*(each.close() for each in links))
