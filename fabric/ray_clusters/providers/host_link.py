"""HostLink: a site's end of the link to one host, a process of OpenSSH's client.

A host that does not answer is tried again and again. What it had when it last spoke is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ...core.ray_clusters.declaration import MachineName
from ...errors import ProviderFailed
from .on_host import LONGEST_LINE, versions
from .protocol import ProvidedMachine

log = logging.getLogger(__name__)

SILENT_S = 5.0
"""After how long without a beat a host counts as silent."""
GREETING_S = 20.0
"""How long a host may take from the start of `ssh` until it greets."""
CALL_S = 60.0
"""How long a host may take to do what it is asked."""
RETRY_S, LONGEST_RETRY_S = 0.5, 10.0
"""The pauses between tries double, up to the longest."""
NOISE = 100
"""Lines that a host's shell may print before the greeting."""
FIRST = 0
"""The number of what a host is told first."""
CLOSED = "its link is closed"
TAIL = 300
"""Characters of what `ssh` said that a reason repeats."""


class HostLink:
    """The link of one declared Ray cluster to one host."""

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        shared: Callable[[], Mapping[str, str]],
        changed: Callable[[], None],
    ) -> None:
        """`command` opens the link. `shared` gives secret and address of the head, which the host
        is told first; `changed` is called when the host has changed."""
        self._host, self._command, self._shared, self._changed = host, command, shared, changed
        self.machines: Mapping[MachineName, ProvidedMachine] = {}
        """What the host had when it last spoke."""
        self.address = ""
        """The head's address as the host knows it."""
        self.ledger: Sequence[int] = ()
        """The stamp of the ledger that the host has; empty without one."""
        self.silence = "it has not been reached yet"
        """Why it does not answer; empty: it does."""
        self._tried = asyncio.Event()
        self._numbers = itertools.count(FIRST + 1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._keeping = asyncio.create_task(self._keep())

    async def tried(self) -> None:
        """Return once the host has answered, or has not."""
        await self._tried.wait()

    async def ask(self, what: str, **given: Any) -> Any:
        """Ask the host for something, and wait until it is done. ProviderFailed."""
        await self.tried()
        if self.silence:
            self._fail(self.silence)
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._write({"number": number, "ask": what, **given})
            async with asyncio.timeout(CALL_S):
                return await answer
        except TimeoutError:
            self._fail(f"it has not done within {CALL_S:g} s what it was asked")
        except OSError as error:
            self._fail(str(error))
        finally:
            self._asked.pop(number, None)

    async def _write(self, told: Mapping[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            self._fail(self.silence)
        process.stdin.write(json.dumps(told).encode() + b"\n")
        await process.stdin.drain()

    def _fail(self, why: str) -> NoReturn:
        raise ProviderFailed(f"host {self._host}: {why}")

    # -- keeping the link --------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Open the link, and again whenever it ends."""
        pause_s = RETRY_S
        while True:
            answered = False
            try:
                async with contextlib.aclosing(self._opened()) as views:
                    async for _ in views:
                        if not answered:
                            log.info("host %s answers", self._host)
                        answered, pause_s = True, RETRY_S
                        self._spoke()
            except (OSError, ProviderFailed) as error:
                self._fell_silent(str(error) or type(error).__name__)
            except Exception:
                log.exception("the link to host %s failed", self._host)
                self._fell_silent("its link failed")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    def _spoke(self) -> None:
        self.silence = ""
        self._tried.set()
        self._changed()

    def _fell_silent(self, why: str) -> None:
        if why not in (self.silence, CLOSED):
            log.warning("host %s does not answer: %s", self._host, why)
        self.silence = why
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ProviderFailed(f"host {self._host}: {why}"))
        self._tried.set()
        self._changed()

    async def _opened(self) -> Any:
        """Open the link, and yield each time the host has said what it has."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the site, which then hangs up
            limit=LONGEST_LINE,
        )
        handle = os.pidfd_open(process.pid)
        said = _Tail(process.stderr)
        self._process = process
        try:
            assert process.stdout is not None
            await self._greeting(process.stdout, said)
            await self._write({"number": FIRST, "ask": "take", **self._shared()})
            taken = False
            while True:
                line = await self._line(process.stdout, said)
                try:
                    told = json.loads(line)
                    taken = self._is_taken(told) or taken
                    self._hear(told)
                except (ValueError, KeyError, TypeError, AttributeError):
                    raise ProviderFailed("it says what no host says") from None
                if taken:
                    yield None
        finally:
            self._process = None
            with contextlib.suppress(ProcessLookupError):  # asyncio's own `kill` may reap it first
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
            await process.wait()
            await said.close()

    async def _greeting(self, lines: asyncio.StreamReader, said: _Tail) -> None:
        """Wait for the host's greeting; refuse one of other versions."""
        for _ in range(NOISE):
            line = await self._line(lines, said, GREETING_S)
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict) and "greets" in told:
                    break
        else:
            raise ProviderFailed("it prints, and does not greet")
        differing = [
            f"{name} {has} (here {ours})"
            for name, ours in versions().items()
            if (has := str(told["greets"].get(name, "none"))) != ours
        ]
        if differing:
            raise ProviderFailed(f"it has {', '.join(differing)}; they must be the same")
        if not told["address"]:
            raise ProviderFailed("it does not say by which address it is reached")

    async def _line(
        self, lines: asyncio.StreamReader, said: _Tail, patience_s: float | None = None
    ) -> bytes:
        """The next line. ProviderFailed without one."""
        patience_s = SILENT_S if patience_s is None else patience_s
        try:
            async with asyncio.timeout(patience_s):
                line = await lines.readline()
        except TimeoutError:
            raise ProviderFailed(f"it has been silent for {patience_s:g} s") from None
        except ValueError:
            raise ProviderFailed(f"it says more than {LONGEST_LINE} bytes at a time") from None
        if not line:
            raise ProviderFailed(await said.words() or "ssh has ended")
        return line

    def _is_taken(self, told: Mapping[str, Any]) -> bool:
        """Whether this answers what the host is told first. ProviderFailed if that failed."""
        if told.get("answers") != FIRST:
            return False
        if told["failed"]:
            raise ProviderFailed(str(told["failed"]))
        return True

    def _hear(self, told: Mapping[str, Any]) -> None:
        """Take in what the host has, or its answer."""
        if "machines" not in told:
            answer = self._asked.get(told["answers"])
            if answer is not None and not answer.done():
                self._answered(answer, told)
            return
        self.machines = {
            MachineName(name): ProvidedMachine(
                name=MachineName(name), dead=reason is not None, reason=str(reason or "")
            )
            for name, reason in told["machines"].items()
        }
        self.address = str(told["address"] or "")
        self.ledger = [int(each) for each in told["ledger"]]

    def _answered(self, answer: asyncio.Future[Any], told: Mapping[str, Any]) -> None:
        if told["failed"]:
            why = f"host {self._host}: {told['failed']}"
            answer.set_exception(ProviderFailed(why))
        else:
            answer.set_result(told["found"])

    async def close(self) -> None:
        """Hang up; machines go on."""
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self._fell_silent(CLOSED)


class _Tail:
    """The end of what a process says on its standard error."""

    def __init__(self, lines: asyncio.StreamReader | None) -> None:
        self._text = b""
        self._reading = asyncio.create_task(self._read(lines))

    async def _read(self, lines: asyncio.StreamReader | None) -> None:
        while lines is not None and (more := await lines.read(4096)):
            self._text = (self._text + more)[-4 * TAIL :]

    async def words(self) -> str:
        """What was said, in one line."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.shield(self._reading)
        text = " ".join(self._text.decode(errors="replace").split())
        return "".join(each for each in text if each.isprintable())[-TAIL:]

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
