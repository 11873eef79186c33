"""Watchdog: decides whether the site's Ray cluster is usable, and what it has.

Calls to a Ray without its head hang forever, so the agent makes none: it checks the control plane's
health by plain gRPC, with a deadline, and a probe process reports the resources. A cluster with
none of its former machines is a new one: work on the old one is lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import grpc
import grpc.aio

from fedpilot.fabric import FabricError, local_machine

from ...wire.messages import Capacity
from ..settings import AgentSettings
from ..text import in_short

log = logging.getLogger(__name__)

HEALTH = "/grpc.health.v1.Health/Check"
ALIVE = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
"""Answers of a living control plane that wants a token first."""
NOT_LOOKED = "the Ray cluster was not looked at yet"
LONGEST_LINE = 1 << 20
END_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The cluster's state at one look."""

    trouble: str = ""
    """Why the cluster cannot be used; empty if it can."""
    capacity: Capacity = field(default_factory=Capacity)
    address: str = ""
    """`host:port` of its control plane; empty if none can be reached."""
    cluster: int = 0
    """Incremented for every cluster that replaces another."""
    machines: frozenset[str] = frozenset()
    """Ids of its machines, by which a later agent recognizes the cluster."""

    @property
    def in_trouble(self) -> bool:
        """Whether work there is lost."""
        return self.trouble not in ("", NOT_LOOKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    machines: frozenset[str]
    capacity: Capacity


class Watch(Protocol):
    """Looks at a site's Ray."""

    @property
    def look(self) -> Look: ...

    async def watch(self, changed: Callable[[Look, Look], None]) -> None:
        """Look forever; call `changed` with the previous and the new look when they differ."""


class PrivateRay:
    """For a site whose runs each have a private Ray on this machine: nothing to watch."""

    def __init__(self) -> None:
        total = local_machine().total.to_ray()
        self.look = Look(capacity=Capacity(total=total, free=total, machines=1))

    async def watch(self, changed: Callable[[Look, Look], None]) -> None:
        await asyncio.Event().wait()


class Watchdog:
    """Watches a Ray cluster that runs independently."""

    def __init__(
        self,
        resolve: Callable[[], str],
        environment: Mapping[str, str],
        settings: AgentSettings,
        clock: Callable[[], float],
        machines: frozenset[str] = frozenset(),
    ) -> None:
        """`resolve` returns the control plane's address; `machines` are an agent's last look's."""
        self._resolve = resolve
        self._environment = dict(environment)
        self._settings = settings
        self._clock = clock
        self._failed = 0
        self._machines = machines
        self._probe: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._probed = ""
        """The address that the probe asks."""
        self._heard_at = 0.0
        self._reported: Reported | None = None
        self.look = Look(trouble=NOT_LOOKED)

    async def watch(self, changed: Callable[[Look, Look], None]) -> None:
        """Look forever; cancelling ends the probe."""
        try:
            while True:
                before = self.look
                self.look = await self.turn()
                if self.look != before:
                    changed(before, self.look)
                await asyncio.sleep(self._settings.watch_s)
        finally:
            await self._end_probe()

    async def turn(self) -> Look:
        try:
            address = self._resolve()
        except FabricError as error:
            return await self._troubled(str(error), at_once=True)
        except OSError as error:
            reason = f"where the Ray cluster is cannot be read: {in_short(error)}"
            return await self._troubled(reason, at_once=True)
        reason = await health(address, self._settings.health_s)
        if reason:
            return await self._troubled(f"the Ray at {address} {reason}")
        self._failed = 0
        cluster = self.look.cluster
        if self.look.address not in ("", address):
            cluster, self._machines = cluster + 1, frozenset()
        await self._keep_probing(address)
        if self._reported is not None:
            machines = self._reported.machines
            if self._machines and machines and not machines & self._machines:
                log.warning("the Ray cluster at %s was started anew", address)
                cluster += 1
            self._machines = machines or self._machines
            capacity, trouble = self._reported.capacity, ""
            if not machines:
                trouble = f"the Ray at {address} has no machine that is alive"
        else:
            capacity = self.look.capacity
            trouble = self.look.trouble if not self.look.capacity.machines else ""
        return Look(
            trouble=trouble,
            capacity=capacity,
            address=address,
            cluster=cluster,
            machines=self._machines,
        )

    async def _troubled(self, reason: str, *, at_once: bool = False) -> Look:
        """The look after a failure, which counts `at_once` or after `settings.looks` in a row."""
        self._failed += 1
        if self.look.in_trouble:
            return replace(self.look, trouble=reason)
        if self._failed < self._settings.looks and not at_once:
            return self.look
        self._reported = None
        await self._end_probe()
        return replace(self.look, trouble=reason, capacity=Capacity())

    # -- the probe --------------------------------------------------------------------------------

    async def _keep_probing(self, address: str) -> None:
        now = self._clock()
        silent = now - self._heard_at > self._settings.probe_silent_s
        there = self._probe is not None and self._probe.returncode is None
        if there and self._probed == address and not silent:
            return
        if there:
            log.warning("the probe of the Ray at %s is started anew", self._probed)
        await self._end_probe()
        self._probed, self._heard_at = address, now
        try:
            self._probe = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "fedpilot.mediator.agent.scans.ray_probe"),
                *(address, str(self._settings.watch_s)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, **self._environment},
                limit=LONGEST_LINE,
                start_new_session=True,
            )
        except OSError as error:  # out of memory or processes: retried at the next look
            log.warning("the probe of the Ray at %s cannot be started: %s", address, error)
            return
        assert self._probe.stdout is not None
        self._reading = asyncio.create_task(self._read(self._probe.stdout))

    async def _read(self, lines: asyncio.StreamReader) -> None:
        with suppress(ValueError):  # an endless line: the next probe may do better
            while line := await lines.readline():
                if (reported := reported_in(line)) is not None:
                    self._heard_at, self._reported = self._clock(), reported

    async def _end_probe(self) -> None:
        probe, self._probe = self._probe, None
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        if probe is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(probe.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await probe.wait()


def reported_in(line: bytes) -> Reported | None:
    """Parse a line of the probe; None for an error or any other line."""
    try:
        found: dict[str, Any] = json.loads(line)
        return Reported(
            machines=frozenset(map(str, found["machines"])),
            capacity=Capacity(
                total={str(name): float(amount) for name, amount in found["total"].items()},
                free={str(name): float(amount) for name, amount in found["free"].items()},
                machines=len(found["machines"]),
            ),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


async def health(address: str, within_s: float) -> str:
    """Say why a Ray's control plane is not healthy; empty if it is."""
    options = (("grpc.enable_http_proxy", 0),)
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        check: Any = channel.unary_unary(HEALTH)
        try:
            answer: bytes = await check(b"", timeout=within_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in ALIVE:
                return ""
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"has not answered within {within_s:g} s"
            return f"does not answer: {error.code().name}: {error.details()}"
    return "" if answer == b"\x08\x01" else "says that it is not serving"
