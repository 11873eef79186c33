"""Runs `fedpilot cluster`, `job` and `queue` beside the agent, at the mediator's request.

A command is a process whose environment names the site's Ray; its arguments can name no other Ray
and no mediator. It reads no input, has a deadline, and its output is bounded.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...core.rules.site_commands import OUT_OF_TIME as OUT_OF_TIME, objection, too_long
from ..errors import BadCommand

GROUPS = ("cluster", "job", "queue")
MOST_ARGUMENTS = 256
LONGEST_ARGUMENT = 64 << 10
READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    exit_code: int
    out: str
    err: str


def arguments_of(header: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments after `fedpilot` in an order's header. BadCommand if they are invalid."""
    found = header.get("arguments")
    if (
        not isinstance(found, list)
        or not 2 <= len(found) <= MOST_ARGUMENTS
        or not all(isinstance(each, str) and len(each) <= LONGEST_ARGUMENT for each in found)
        or any("\0" in each for each in found)
    ):
        raise BadCommand(
            f"a command is a list of 2 to {MOST_ARGUMENTS} texts, such as "
            f'["cluster", "list"]; found {str(found)[:80]}'
        )
    if found[0] not in GROUPS:
        raise BadCommand(
            f"only `fedpilot {'`, `fedpilot '.join(GROUPS)}` may be run at a site; "
            f"found {found[0][:80]!r}"
        )
    if why := objection(found):
        raise BadCommand(why)
    return tuple(found)


def deadline_of(header: Mapping[str, Any], longest_s: float) -> float:
    """How long a command may run, at most `longest_s`."""
    asked = header.get("timeout_s")
    if isinstance(asked, int | float) and not isinstance(asked, bool) and asked > 0:
        return min(float(asked), longest_s)
    return longest_s


async def run_command(
    arguments: Sequence[str], environment: Mapping[str, str], deadline_s: float, most_bytes: int
) -> CommandOutcome:
    """Run `fedpilot`. BadCommand if its `--wait` exceeds the deadline."""
    if why := too_long(arguments, deadline_s):
        raise BadCommand(why)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fedpilot", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    reading = [
        asyncio.ensure_future(_read(stream, most_bytes))
        for stream in (process.stdout, process.stderr)
    ]
    late = ""
    try:
        async with asyncio.timeout(deadline_s):
            await process.wait()
    except TimeoutError:
        late = f"fedpilot: the command was ended: it ran for more than {deadline_s:g} s\n"
    finally:
        # Its children may hold its pipes open.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    out, err = await asyncio.gather(*reading)
    code = OUT_OF_TIME if late else process.returncode or 0
    return CommandOutcome(exit_code=code if code >= 0 else 128 - code, out=out, err=err + late)


async def _read(stream: asyncio.StreamReader, most: int) -> str:
    """Read to the end, keep `most` bytes, and say how many were dropped."""
    kept, dropped = bytearray(), 0
    while data := await stream.read(READ_BYTES):
        taken = data[: most - len(kept)]
        kept += taken
        dropped += len(data) - len(taken)
    text = kept.decode(errors="replace")
    return f"{text}\n... and {dropped} bytes more\n" if dropped else text
