"""RedisStorage: the Redis in which the control plane of one declared Ray cluster keeps its state.

It says whether a head could use the Redis now, since Ray's processes end without a reason if they
cannot, and it removes the cluster's keys in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.ray_clusters.declaration import FaultTolerance
from ...errors import ProviderFailed, SpecError
from ...ray.control_plane.redis_login import RedisLogin

CLEANUP = "fedpilot.fabric.ray.control_plane.redis_cleanup"
ANSWER_S = 3.0
"""How long a Redis may take to answer."""
LOOK_S = 1.0
"""The pause between two looks at a Redis."""
CLEANUP_S = 60.0
_PLACE = re.compile(r"(?:(rediss?)://)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})/?")


def login_of(options: FaultTolerance, uid: str, password: str = "") -> RedisLogin:
    """How a cluster uses the Redis that is declared. SpecError."""
    key = "`spec.gcsFaultToleranceOptions.redisAddress`"
    if not options.redis_address:
        raise SpecError(f"{key} is missing: this version starts no Redis of its own")
    found = _PLACE.fullmatch(options.redis_address)
    if found is None or not 0 < int(found[3]) < 65_536:
        raise SpecError(
            f"{key} is {options.redis_address!r}, and has to be `host:port`, `redis://host:port` "
            "or `rediss://host:port`"
        )
    return RedisLogin(
        host=found[2].strip("[]"),
        port=int(found[3]),
        encrypted=found[1] == "rediss",
        username=options.username,
        password=password,
        namespace=options.namespace or uid,
    )


class RedisStorage:
    """The Redis of one declared Ray cluster."""

    def __init__(self, options: FaultTolerance, uid: str) -> None:
        """SpecError."""
        self._options, self._uid = options, uid
        login = login_of(options, uid)
        self._where = login.address
        self.namespace = login.namespace
        """What the cluster's keys begin with, apart from what Ray adds."""
        self._trouble: str | None = None
        self._looked_s = 0.0
        self._looking: asyncio.Task[None] | None = None

    def declare(self, options: FaultTolerance) -> None:
        """Take another user, or another file with a password."""
        self._options = options

    def login(self) -> RedisLogin:
        """How the Redis is used now. ProviderFailed if the password cannot be read."""
        file = self._options.password_file
        try:
            password = Path(file).read_text().strip("\r\n") if file else ""
        except (OSError, ValueError) as error:
            raise ProviderFailed(f"cannot read the password of the Redis: {error}") from error
        return login_of(self._options, self._uid, password)

    async def trouble(self, changed: Callable[[], None]) -> str:
        """Why no head could use the Redis, as seen a moment ago; empty if one could.

        `changed` is called if that changes meanwhile.
        """
        now = asyncio.get_running_loop().time()
        idle = self._looking is None or self._looking.done()
        if idle and (self._trouble is None or now - self._looked_s >= LOOK_S):
            self._looked_s = now
            self._looking = asyncio.create_task(self._look(changed))
        if self._trouble is None and self._looking is not None:
            await asyncio.shield(self._looking)
        return self._trouble or ""

    async def _look(self, changed: Callable[[], None]) -> None:
        before = self._trouble
        try:
            self._trouble = await self._ask()
        except ProviderFailed as error:
            self._trouble = str(error)
        if self._trouble != before:
            changed()

    async def _ask(self) -> str:
        """Why the Redis cannot be used; empty if it can. ProviderFailed."""
        login = self.login()
        try:
            async with asyncio.timeout(ANSWER_S):
                refusal = await _refusal(login)
        except TimeoutError:
            return f"the Redis at {self._where} has not answered for {ANSWER_S:g} s"
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            return f"the Redis at {self._where} does not answer: {error}"
        return refusal and f"the Redis at {self._where} refuses: {refusal}"

    async def clean_up(self) -> None:
        """Remove the keys of the cluster from the Redis, and nothing else. ProviderFailed."""
        trouble = await self._ask()
        if trouble:
            raise ProviderFailed(trouble)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", CLEANUP),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(CLEANUP_S):
                await process.communicate(self.login().text.encode())
        except TimeoutError:
            raise ProviderFailed(
                f"the Redis at {self._where} takes more than {CLEANUP_S:g} s to remove keys"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise ProviderFailed(f"the keys in the Redis at {self._where} could not be removed")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)


async def _refusal(login: RedisLogin) -> str:
    """What a Redis says against this login; empty if it takes it.

    Ray has variables of its own for the certificates of an encrypted Redis. So that is only asked
    whether it listens, and gets no password here.
    """
    reader, writer = await asyncio.open_connection(login.host, login.port)
    try:
        if login.encrypted:
            return ""
        user = [login.username] if login.username else []
        asks = [["AUTH", *user, login.password]] if login.password or user else []
        for words in (*asks, ["PING"]):
            writer.write(_request(words))
            await writer.drain()
            answer = (await reader.readuntil(b"\n")).decode(errors="replace").strip()
            if answer[:1] not in ("+", "-"):
                raise ValueError("something listens there that is no Redis")
            if answer.startswith("-"):
                return answer[1:]
        return ""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _request(words: Sequence[str]) -> bytes:
    """A command as Redis takes it."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in map(str.encode, words):
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)
