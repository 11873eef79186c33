"""HostLink: a site's end of the link to one host, a process of OpenSSH's client.

A host that does not answer is tried again and again. What it had when it last spoke is kept. What
a host says is taken for data of a few known forms, or for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import re
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

from fedpilot.common.strict_yaml.errors import printable

from ...core.ray_clusters.declaration import MachineName
from ...errors import ProviderFailed
from .on_host import LONGEST_LINE, versions
from .protocol import ProvidedMachine

log = logging.getLogger(__name__)

WAITS = 10
"""In how many waits the time without a line is counted."""
FIRST_S = 6.0
"""How long a host may take to be reached before its silence counts."""
ANSWER_S = 20.0
"""How long a host may take from the start of `ssh` until it has answered for the first time."""
CALL_S = 60.0
"""How long a host may take to do what it is asked."""
END_S = 2.0
"""How long the killed processes of a link may take to be gone."""
RETRY_S, LONGEST_RETRY_S = 0.5, 10.0
"""The pauses between tries double, up to the longest."""
NOISE = 100
"""Lines that a host's shell may print before the greeting."""
FIRST = 0
"""The number of what a host is told first."""
CLOSED = "its link is closed"
LONGEST_REASON = 500
"""Characters of what a host, or `ssh`, says."""
MOST_MACHINES = 10_000
"""More than a host can have of one cluster."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


def clean(text: object) -> str:
    """What a host says, as a short line that a terminal can show."""
    return printable(" ".join(str(text).split()), LONGEST_REASON)


class HostLink:
    """The link of one declared Ray cluster to one host."""

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        shared: Callable[[], Mapping[str, Any]],
        changed: Callable[[], None],
        patience_s: float,
    ) -> None:
        """`command` opens the link. `shared` is what the host is told first: secret and address of
        the head, and how often to speak. `changed` is called when the host has changed. Without a
        line for `patience_s` it counts as silent; after as long again another link is opened."""
        self.host, self.command, self.patience_s = host, tuple(command), patience_s
        self._shared, self._changed = shared, changed
        self.machines: Mapping[MachineName, ProvidedMachine] = {}
        """What the host had when it last spoke."""
        self.address = ""
        """The head's address as the host knows it, if it is one of its own."""
        self.ledger: Sequence[int] = ()
        """The stamp of the ledger that the host has; empty without one."""
        self.silence = "it has not been reached yet"
        """Why it does not answer; empty: it does."""
        self._silent_from = asyncio.get_running_loop().time() + FIRST_S
        self._own_address = ""
        self._tried = asyncio.Event()
        self._numbers = itertools.count(FIRST + 1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._keeping = asyncio.create_task(self._keep())

    async def tried(self) -> None:
        """Return once the host has answered, or has not."""
        await self._tried.wait()

    @property
    def silent_s(self) -> float:
        """For how long it has not answered; below 0 while a first answer is not due."""
        return asyncio.get_running_loop().time() - self._silent_from

    async def ask(self, what: str, **given: Any) -> Any:
        """Ask the host for something, and wait until it is done. ProviderFailed."""
        await self.tried()
        if self.silence:
            self._fail(self.silence)
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(CALL_S):
                await self._write({"number": number, "ask": what, **given})
                return await answer
        except TimeoutError:
            self._fail(f"it has not done within {CALL_S:g} s what it was asked")
        except OSError as error:
            self._fail(str(error))
        finally:
            del self._asked[number]

    async def _write(self, told: Mapping[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            self._fail(self.silence or "its link has just ended")
        process.stdin.write(json.dumps(told).encode() + b"\n")
        await process.stdin.drain()

    def _fail(self, why: str) -> NoReturn:
        raise ProviderFailed(f"host {self.host}: {why}")

    # -- keeping the link --------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Open the link, and again whenever it ends."""
        self._pause_s = RETRY_S
        while True:
            await self._open_once()
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_RETRY_S)

    async def _open_once(self) -> None:
        """Open the link, and follow the host until the link ends."""
        said = None
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the site, which then hangs up
                limit=LONGEST_LINE,
            )
            said = _Tail(process.stderr)
            await self._follow(process.stdout, said)
        except (OSError, ProviderFailed) as error:
            self._fell_silent(str(error) or type(error).__name__)
        except Exception:
            log.exception("the link to host %s failed", self.host)
            self._fell_silent("its link failed")
        finally:
            process_, self._process = self._process, None
            if said is not None:
                said.close()
            if process_ is not None:
                await _end(process_)

    async def _follow(self, lines: asyncio.StreamReader | None, said: _Tail) -> None:
        assert lines is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._greeting(lines, said)
                await self._write({"number": FIRST, "ask": "take", **self._shared()})
                while not self._heard(await self._line(lines.readline(), said)):
                    pass
        except TimeoutError:
            raise ProviderFailed(f"it has not answered within {ANSWER_S:g} s") from None
        log.info("host %s answers", self.host)
        self._pause_s = RETRY_S
        while True:
            self.silence = ""
            self._tried.set()
            self._changed()
            self._heard(await self._line(self._spoken(lines), said))

    async def _spoken(self, lines: asyncio.StreamReader) -> bytes:
        """The next line; a host without one is silent first. ProviderFailed if there is none."""
        try:
            return await line_unless_silent(lines, self.patience_s)
        except ProviderFailed as error:
            self._fell_silent(str(error), self.patience_s)
        return await line_unless_silent(lines, self.patience_s)

    def _fell_silent(self, why: str, for_s: float = 0.0) -> None:
        """It does not answer, and has not `for_s`; so what it was asked has failed."""
        if why not in (self.silence, CLOSED):
            log.warning("host %s does not answer: %s", self.host, why)
        if not self.silence:
            self._silent_from = asyncio.get_running_loop().time() - for_s
        self.silence = why
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ProviderFailed(f"host {self.host}: {why}"))
        self._tried.set()
        self._changed()

    async def close(self) -> None:
        """Hang up; machines go on."""
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self._fell_silent(CLOSED)

    # -- what the host says ------------------------------------------------------------------------

    async def _line(self, reads: Awaitable[bytes], said: _Tail) -> bytes:
        """The line that is read. ProviderFailed without one."""
        try:
            line = await reads
        except ValueError:
            raise ProviderFailed(f"it says more than {LONGEST_LINE} bytes at a time") from None
        if not line:
            raise ProviderFailed(await said.words() or "ssh has ended")
        return line

    async def _greeting(self, lines: asyncio.StreamReader, said: _Tail) -> None:
        """Wait for the host's greeting; refuse one of other versions."""
        for _ in range(NOISE):
            line = await self._line(lines.readline(), said)
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict) and isinstance(told.get("greets"), dict):
                    break
        else:
            raise ProviderFailed("it prints, and does not greet")
        differing = [
            f"{name} {clean(has)} (here {ours})"
            for name, ours in versions().items()
            if (has := told["greets"].get(name, "none")) != ours
        ]
        if differing:
            raise ProviderFailed(f"it has {', '.join(differing)}; they must be the same")
        self._own_address = str(told.get("address") or "")
        if not self._own_address:
            raise ProviderFailed("it does not say by which address it is reached")

    def _heard(self, line: bytes) -> bool:
        """Take in what the host has, or an answer; whether it is the first answer.

        ProviderFailed for anything else, or if the host is in trouble.
        """
        try:
            told = json.loads(line)
            if "troubled" in told:
                raise ProviderFailed(clean(told["troubled"]))
            if "beat" in told:
                return False
            if "machines" in told:
                self._take(told)
                return False
            number, failed = told["answers"], clean(told["failed"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ProviderFailed("it says what no host says") from None
        if number == FIRST and failed:
            raise ProviderFailed(failed)
        answer = self._asked.get(number)
        if answer is not None and not answer.done() and failed:
            answer.set_exception(ProviderFailed(f"host {self.host}: {failed}"))
        elif answer is not None and not answer.done():
            answer.set_result(told.get("found"))
        return bool(number == FIRST)

    def _take(self, told: Mapping[str, Any]) -> None:
        machines = told["machines"]
        if len(machines) > MOST_MACHINES or not all(map(_NAME.fullmatch, machines)):
            raise ValueError("these are no machines")
        self.machines = {
            MachineName(name): ProvidedMachine(
                name=MachineName(name), dead=reason is not None, reason=clean(reason or "")
            )
            for name, reason in machines.items()
        }
        host, _, port = str(told["address"] or "").rpartition(":")
        mine = host == self._own_address and port.isascii() and port.isdigit()
        self.address = f"{host}:{port}" if mine and 0 < int(port) < 2**16 else ""
        self.ledger = [int(each) for each in told["ledger"]]


class _Tail:
    """The end of what a process says on its standard error."""

    def __init__(self, lines: asyncio.StreamReader | None) -> None:
        self._text = b""
        self._reading = asyncio.create_task(self._read(lines))

    async def _read(self, lines: asyncio.StreamReader | None) -> None:
        while lines is not None and (more := await lines.read(4096)):
            self._text = (self._text + more)[-LONGEST_REASON:]

    async def words(self) -> str:
        """What was said, in one line."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.shield(self._reading)
        return clean(self._text.decode(errors="replace"))

    def close(self) -> None:
        self._reading.cancel()


async def line_unless_silent(lines: asyncio.StreamReader, patience_s: float) -> bytes:
    """The next line. ProviderFailed after `patience_s`.

    It counts short waits, of which a stall of this process costs one: no host is silent because
    its site was.
    """
    for _ in range(WAITS):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s / WAITS):
                return await lines.readline()
    raise ProviderFailed(f"it has been silent for {patience_s:g} s")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process with all that it started in its session, such as the `ssh` of a jump."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await process.wait()
