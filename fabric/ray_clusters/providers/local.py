"""LocalMachines: raylets of this computer, each in a session of its own.

Hosts over SSH have them as well: there, a process of the site's asks them.

A machine has a folder, from before its processes start until nothing of it is left; its processes
are known by their mark. So a manager that follows another one finds all that there is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fedpilot.common.host.folders import make_folder
from fedpilot.common.host.marked_processes import (
    MarkedProcess,
    handle,
    marked_processes,
    signal_all,
)

from ...core.ray_clusters.declaration import HEAD, DeclaredRayCluster, MachineName
from ...errors import ProviderFailed
from ...ray.home import LONGEST_ROOT
from ...ray.starting.machine import FAILED, REDIS
from .files import explained, write_private
from .protocol import MachineOrder, ProvidedMachine, ProviderView
from .ray_start import MARK, TOKEN, MachineStart, environment, flags, mark_of
from .redis_storage import RedisStorage

STARTER = "fedpilot.fabric.ray.starting.machine"
RAYLET, CONTROL_PLANE = "raylet", "gcs_server"
LOG = "start.log"
SESSIONS = "fedpilot-ray-"
"""What the names of folders of Ray's sessions begin with."""
GRACE_S = 2.0
"""How long a raylet, then the control plane, may take to end in order before they are killed."""
KILLED_S = 30.0
"""How long the processes of a killed machine may take to be gone."""
STORAGE_S = 60.0
"""How long a deleted cluster waits for the Redis with its keys."""
POLL_S = 0.02
ELSEWHERE = ("192.0.2.1", 9)
"""An address of no computer (RFC 5737)."""
TAIL = 500
"""Characters of a log that a reason repeats."""
log = logging.getLogger(__name__)


class LocalMachines:
    """The machines of one declared Ray cluster on this computer."""

    def __init__(
        self,
        uid: str,
        folder: Path,
        join_s: float = 180.0,
        *,
        own_address: str = "",
        storage: RedisStorage | None = None,
    ) -> None:
        """`folder` keeps what belongs to the cluster; it is private to this user.

        `own_address` is where machines of other computers reach those of this one. `storage` is
        where the head keeps its state.
        """
        self._uid, self._folder, self._join_s = uid, folder, join_s
        self._own_address, self._storage = own_address, storage
        self._starting: set[MachineName] = set()
        self._starters: set[asyncio.Task[None]] = set()
        self._watched: dict[tuple[int, int], int] = {}
        """Handles of the processes whose end matters, by pid and begin."""
        self._woken = asyncio.Event()
        with explained("cannot make the folder of the cluster"):
            for each in (folder.parent, folder, self._machines):
                make_folder(each)
                each.chmod(0o700)

    # -- what is there -----------------------------------------------------------------------------

    async def look(self) -> ProviderView:
        with explained("cannot look at the processes"):
            found = await asyncio.to_thread(marked_processes, MARK, mark_of(self._uid))
        by_name: dict[MachineName, list[MarkedProcess]] = {}
        for process in found:
            name = MachineName(process.mark.removeprefix(mark_of(self._uid)))
            by_name.setdefault(name, []).append(process)
        self._watch(found)
        with explained("cannot look at the machines"):
            names = {MachineName(each.name) for each in self._machines.iterdir()} | by_name.keys()
        return ProviderView(
            machines={
                ("", name): self._seen(name, by_name.get(name, [])) for name in sorted(names)
            },
            head_waits=await self._storage.trouble(self._woken.set) if self._storage else "",
        )

    def _seen(self, name: MachineName, processes: list[MarkedProcess]) -> ProvidedMachine:
        programs = {each.program for each in processes}
        if name in self._starting or any(STARTER in each.arguments for each in processes):
            return ProvidedMachine(name=name)
        folder = self._machines / name
        if (folder / FAILED).exists():
            return ProvidedMachine(name=name, dead=True, reason=_failure(folder))
        if not processes:
            return ProvidedMachine(name=name, dead=True, reason="its processes have ended")
        if RAYLET not in programs:
            return ProvidedMachine(name=name, dead=True, reason="its raylet has ended")
        if (folder / HEAD).exists() and CONTROL_PLANE not in programs:
            return ProvidedMachine(name=name, dead=True, reason="its control plane has ended")
        return ProvidedMachine(name=name)

    def _watch(self, processes: Iterable[MarkedProcess]) -> None:
        """Be told as soon as a process ends that a machine cannot do without."""
        needed = {
            (each.pid, each.began): each
            for each in processes
            if each.program in (RAYLET, CONTROL_PLANE)
        }
        loop = asyncio.get_running_loop()
        for key in self._watched.keys() - needed.keys():
            self._forget(key)
        for key, process in needed.items():
            if key in self._watched:
                continue
            descriptor = handle(process)
            if descriptor is None:
                self._woken.set()
                continue
            self._watched[key] = descriptor
            loop.add_reader(descriptor, self._ended, key)

    def _ended(self, key: tuple[int, int]) -> None:
        self._forget(key)
        self._woken.set()

    def _forget(self, key: tuple[int, int]) -> None:
        descriptor = self._watched.pop(key)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def declare(self, declared: DeclaredRayCluster) -> None:
        if self._storage is not None and declared.fault_tolerance is not None:
            self._storage.declare(declared.fault_tolerance)

    async def changed(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    # -- starting ----------------------------------------------------------------------------------

    async def start(self, order: MachineOrder) -> None:
        await self.begin(MachineStart.of(order))

    async def begin(self, start: MachineStart) -> None:
        """Begin the start of a machine. ProviderFailed."""
        folder = self._machines / start.name
        if folder.exists():
            return
        with explained(f"cannot start {start.name}"):
            folder.mkdir(mode=0o700)
            if start.head:
                (folder / HEAD).touch()
                if self._storage is not None:
                    write_private(folder / REDIS, self._storage.login().text)
            self._starting.add(start.name)
            try:
                await self._begin(start, folder)
            except BaseException:
                self._starting.discard(start.name)
                shutil.rmtree(folder, ignore_errors=True)
                raise

    async def _begin(self, start: MachineStart, folder: Path) -> None:
        self._token_file()
        given = flags(
            start,
            address=self._address_for(start),
            free_ports=(_free_port(), _free_port()),
            folder=self._ray_folder(),
            own_address=self._own_address,
        )
        with (folder / LOG).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", STARTER, str(folder), str(self._folder / "turns"), str(self._join_s)),
                *("--", *given),
                env=environment(start, self._uid, self._folder, os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        waiting = asyncio.create_task(self._started(start.name, process))
        self._starters.add(waiting)
        waiting.add_done_callback(self._starters.discard)

    async def _started(self, name: MachineName, process: asyncio.subprocess.Process) -> None:
        """Wait until `ray start` has done its part, or has failed."""
        await process.wait()
        self._starting.discard(name)
        self._woken.set()

    def take(self, *, token: str, address: str) -> None:
        """Use the secret and the head's address of a cluster whose head may be elsewhere.

        An empty address keeps the one that is known. ProviderFailed.
        """
        with explained("cannot keep what all machines of the cluster share"):
            write_private(self._folder / TOKEN, token)
            if address:
                write_private(self._folder / "address", address)

    def _address_for(self, start: MachineStart) -> str:
        """The address of the head: kept by a new head if it can be, and known to workers."""
        file = self._folder / "address"
        known = file.read_text() if file.exists() else ""
        if not start.head:
            return known
        declared = start.parameters.get("port", "0")
        port = int(declared) or int(known.rpartition(":")[2] or 0)
        if not int(declared) and not _is_free(port):
            if port and self._storage is not None:
                raise ProviderFailed(
                    f"the workers expect the next head at {known}, and another program has the port"
                )
            port = _free_port()
        now = f"{self._own_address or _outward_address()}:{port or _free_port()}"
        if now != known:
            write_private(file, now)
        return now

    def _token_file(self) -> Path:
        file = self._folder / TOKEN
        if not file.exists():
            write_private(file, secrets.token_hex(32))
        return file

    def _ray_folder(self) -> Path:
        """Where Ray keeps its sessions: a short path, since there are sockets below it.

        Ray opens its folder to all users, so it gets one inside of a folder of ours.
        """
        file = self._folder / "sessions"
        known = Path(file.read_text()) if file.exists() else None
        if known is None or not _is_ours(known):
            root = _short_root()
            known = Path(tempfile.mkdtemp(prefix=SESSIONS, dir=root))
            write_private(file, str(known))
        return known / "r"

    @property
    def address(self) -> str | None:
        file = self._folder / "address"
        return file.read_text() if file.exists() else None

    @property
    def token(self) -> str:
        return self._token_file().read_text()

    @property
    def token_file(self) -> str:
        return str(self._token_file())

    # -- ending ------------------------------------------------------------------------------------

    async def stop(self, name: MachineName, host: str) -> None:
        del host
        for program in (RAYLET, CONTROL_PLANE):
            there = [each for each in await self._of(name) if each.program == program]
            signal_all(there, signal.SIGTERM)
            await self._gone(name, {program}, GRACE_S)
        deadline = asyncio.get_running_loop().time() + KILLED_S
        while left := await self._of(name):
            signal_all(left, signal.SIGKILL)
            if asyncio.get_running_loop().time() >= deadline:
                pids = ", ".join(str(each.pid) for each in left)
                raise ProviderFailed(f"processes of {name} do not end: {pids}")
            await asyncio.sleep(POLL_S)
        with explained(f"cannot remove what {name} has left"):
            folder = self._machines / name
            if folder.exists():
                await asyncio.to_thread(shutil.rmtree, folder)

    async def _of(self, name: MachineName) -> list[MarkedProcess]:
        mark = mark_of(self._uid, name)
        found = await asyncio.to_thread(marked_processes, MARK, mark)
        return [each for each in found if each.mark == mark]

    async def _gone(self, name: MachineName, programs: set[str], patience_s: float) -> None:
        """Wait until these programs of a machine have ended, or the time is over."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while asyncio.get_running_loop().time() < deadline:
            if not any(each.program in programs for each in await self._of(name)):
                return
            await asyncio.sleep(POLL_S)

    @property
    def folder(self) -> Path:
        """Where all that belongs to the cluster is kept."""
        return self._folder

    async def forget(self) -> None:
        """Remove what is kept of a cluster that has no machines any more."""
        with explained("cannot remove what the cluster has left"):
            if self._storage is not None:
                await self._clean_up(self._storage)
            file = self._folder / "sessions"
            if file.exists() and _is_ours(sessions := Path(file.read_text())):
                await asyncio.to_thread(shutil.rmtree, sessions, ignore_errors=True)
            if self._folder.exists():
                await asyncio.to_thread(shutil.rmtree, self._folder)

    async def _clean_up(self, storage: RedisStorage) -> None:
        """Remove the keys of the cluster; a Redis that stays away keeps them."""
        deadline = asyncio.get_running_loop().time() + STORAGE_S
        while True:
            try:
                return await storage.clean_up()
            except ProviderFailed as error:
                if asyncio.get_running_loop().time() >= deadline:
                    keys = f"RAY{storage.namespace}@*"
                    log.warning("%s: keys %s may be left: %s", self._uid, keys, error)
                    return
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        if self._storage is not None:
            await self._storage.close()
        for waiting in tuple(self._starters):
            waiting.cancel()
        for key in tuple(self._watched):
            self._forget(key)

    @property
    def _machines(self) -> Path:
        return self._folder / "machines"


def _failure(folder: Path) -> str:
    """Why a machine did not start, with the end of what `ray start` said."""
    try:
        reason = str(json.loads((folder / FAILED).read_text()))
        said = (folder / LOG).read_text(errors="replace").strip()
    except (OSError, ValueError):  # its disk is full, or it is just being removed
        return "it could not be started"
    return reason if not said else f"{reason}; ray start said: {said[-TAIL:]}"


def _short_root() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= LONGEST_ROOT else Path("/tmp")


def _is_ours(folder: Path) -> bool:
    """Whether a folder of sessions is one that we have made, and that no other user can change."""
    if folder.parent != _short_root() or not folder.name.startswith(SESSIONS):
        return False
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _is_free(port: int) -> bool:
    if not port:
        return False
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True


def _outward_address() -> str:
    """The address of this computer by which others reach it, if it has a way to them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(ELSEWHERE)  # sends nothing
            return str(one.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
        return port
