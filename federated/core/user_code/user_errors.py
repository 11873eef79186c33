"""Finds the line of a user's own code that raised an error.

A user's own code is what belongs neither to fedpilot nor to Python and is not installed: files in
folders, the archive of a run, cells of a notebook.
"""

from __future__ import annotations

import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

from ...errors import ClientFailed
from .code_archive import INSTALLED

LONGEST_TRACE = 8_000
"""Characters of a traceback that are kept; the last ones, which say what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is said of an error."""

    reason: str
    """Its class and text, and the user's file and line if it came through any."""
    trace: str
    """Its traceback, from the first of the user's own lines on."""
    users: bool
    """Whether it came through any of the user's own lines."""


def account_of(error: BaseException) -> Account:
    """What an error in a user's code says, and where it was raised."""
    told = traceback.TracebackException.from_exception(error)
    own = [at for at, frame in enumerate(told.stack) if is_users(frame.filename)]
    reason = f"{type(error).__name__}: {error}"
    if own:
        frame = told.stack[own[-1]]
        reason = f"{reason} ({frame.filename}, line {frame.lineno})"
        told.stack = traceback.StackSummary.from_list(told.stack[own[0] :])
    return Account(reason=reason, trace="".join(told.format())[-LONGEST_TRACE:], users=bool(own))


def client_failed(
    client_id: str, doing: str, error: BaseException, printed: str = ""
) -> ClientFailed:
    """The error in the place of one that was raised while a client did something.

    `printed` is what the user's code had printed before.
    """
    account = account_of(error)
    before = f"{printed}\n" if printed else ""
    return ClientFailed(client_id, doing, account.reason, f"{before}{account.trace}")


def failure_of(error: BaseException) -> str:
    """Why a run failed, on one line: the class, what it says, and the site where it was."""
    return ", ".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())))


def trace_of(error: BaseException) -> str:
    """The traceback of an error in a user's code, as far as it came along; empty if none did."""
    for name in ("trace", "remote_traceback"):
        if isinstance(found := getattr(error, name, None), str) and found:
            return found[-LONGEST_TRACE:]
    return ""


def is_users(filename: str) -> bool:
    """Whether a file of a traceback is the user's own code."""
    if filename.startswith("<frozen") or any(each in filename for each in INSTALLED):
        return False
    ours = Path(__file__)
    others = [
        *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")),
        str(ours.parents[3]),  # of the import package, whose folders may be links
        str(ours.resolve().parents[2]),
    ]
    return not any(filename.startswith(f"{folder}/") for folder in others)
