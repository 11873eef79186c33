"""The machines of one host, for a site elsewhere: `ssh` starts this there, and the site asks it.

Lines of JSON come and go by standard input and output. The host begins with a greeting; then it
tells what it has, at each change and every second, and answers what it is asked. A site that would
miss it sooner is told more often that it is there. When its input
ends it ends as well, and its machines go on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedpilot.common.host.folders import state_home

from ...core.ray_clusters.declaration import MachineName
from ...errors import ProviderFailed
from .ledger_copy import packed, put_back, stamp, unpacked
from .local import LocalMachines
from .ray_start import MachineStart

LOOK_S = 1.0
"""How often a host says what it has, even if nothing has changed."""
LONGEST_LINE = 16 * 2**20

Say = Callable[[Mapping[str, Any]], None]


def versions() -> dict[str, str]:
    """What must be the same at a site and on its hosts."""
    python = ".".join(map(str, sys.version_info[:2]))
    packages = {name: importlib.metadata.version(name) for name in ("fedpilot", "ray")}
    return {"Python": python, **packages}


def reached_at(connection: str) -> str:
    """The address of this host by which its site reaches it, from `SSH_CONNECTION`; else empty."""
    parts = connection.split()
    return parts[2] if len(parts) == 4 else ""


class HostSide:
    """One host's end of a link to its site."""

    def __init__(self, machines: LocalMachines, say: Say) -> None:
        self._machines, self._say = machines, say
        self._ledger: list[str] = []
        """The parts of a copy that the site takes, or gives."""
        self._working: set[asyncio.Task[None]] = set()
        self._beat_s = LOOK_S
        """How often it says anything."""

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Answer until the site hangs up."""
        telling = [asyncio.create_task(each) for each in (self._tell(), self._beat())]
        try:
            while line := await lines.readline():
                task = asyncio.create_task(self._answer(json.loads(line)))
                self._working.add(task)
                task.add_done_callback(self._working.discard)
        finally:
            for each in telling:
                each.cancel()
            await self._machines.close()

    async def _answer(self, asked: Mapping[str, Any]) -> None:
        failed, found = "", None
        try:
            found = await self._do(asked)
            if asked["ask"] != "forget":
                await self._tell_once()  # first, so that who asked sees what has changed
        except Exception as error:
            failed = str(error) or type(error).__name__
        self._say({"answers": asked["number"], "failed": failed, "found": found})

    async def _do(self, asked: Mapping[str, Any]) -> int | str | None:
        match asked["ask"]:
            case "take":
                self._machines.take(token=asked["token"], address=asked["address"])
                self._beat_s = float(asked.get("beat_s", LOOK_S))
            case "start":
                await self._machines.begin(MachineStart(**asked["machine"]))
            case "stop":
                await self._machines.stop(MachineName(asked["name"]), "")
            case "ledger":
                self._ledger = await asyncio.to_thread(packed, self._machines.folder)
                return len(self._ledger)
            case "part of the ledger":
                return self._ledger[int(asked["part"])]
            case "begin a ledger":
                self._ledger = []
            case "continue the ledger":
                self._ledger.append(asked["text"])
            case "put the ledger back":
                put_back(self._machines.folder, unpacked(self._ledger))
            case "forget":
                await self._machines.forget()
            case other:
                raise ProviderFailed(f"{other!r} cannot be asked of a host")
        return None

    async def _tell(self) -> None:
        """Tell what there is, at each change and at each beat."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._machines.changed()
            try:
                await self._tell_once()
            except Exception as error:
                self._say({"troubled": str(error) or type(error).__name__})

    async def _beat(self) -> None:
        """Tell that it is there, without a look, where it has to be told more often."""
        while True:
            await asyncio.sleep(self._beat_s)
            if self._beat_s < LOOK_S:
                self._say({"beat": True})

    async def _tell_once(self) -> None:
        seen = (await self._machines.look()).machines
        machines = {name: each.reason if each.dead else None for (_, name), each in seen.items()}
        ledger = stamp(self._machines.folder)
        self._say({"machines": machines, "address": self._machines.address, "ledger": ledger})


async def serve(uid: str) -> None:
    """Serve a site on standard input and output; `uid` names its cluster on this host."""
    lines = asyncio.StreamReader(limit=LONGEST_LINE)
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what others print is no answer

    def say(told: Mapping[str, Any]) -> None:
        out.write(json.dumps(told) + "\n")
        out.flush()

    own_address = reached_at(os.environ.get("SSH_CONNECTION", ""))
    say({"greets": versions(), "address": own_address})
    folder: Path = state_home() / "machines" / uid
    with contextlib.suppress(BrokenPipeError):
        await HostSide(LocalMachines(uid, folder, own_address=own_address), say).serve(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uid", help="the site's cluster on this host")
    given = parser.parse_args()
    asyncio.run(serve(given.uid))


if __name__ == "__main__":
    main()
