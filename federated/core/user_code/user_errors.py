"""Finds the line of a user's own code that raised an error.

A user's own code is no part of fedpilot, Python or installed packages: files, archives, notebooks.
"""

from __future__ import annotations

import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

from ...errors import ClientFailed
from .code_archive import INSTALLED

LONGEST_TRACE = 8_000
"""Characters kept of a traceback: the last ones, which name the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An error's report."""

    reason: str
    """Its class and text, and the user's file and line if it passed through any."""
    trace: str
    """Its traceback, from the user's first line on."""
    users: bool
    """Whether it passed through any of the user's lines."""


def account_of(error: BaseException) -> Account:
    """Report an error in a user's code and where it was raised."""
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
    """The ClientFailed for an error in a client's work; `printed`: its output before that."""
    account = account_of(error)
    before = f"{printed}\n" if printed else ""
    return ClientFailed(client_id, doing, account.reason, f"{before}{account.trace}")


def failure_of(error: BaseException) -> str:
    """Why a run failed, on one line: the class, its text, and the site where it was raised."""
    return ", ".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())))


def trace_of(error: BaseException) -> str:
    """The traceback of an error in a user's code, if it came along; else empty."""
    for name in ("trace", "remote_traceback"):
        if isinstance(found := getattr(error, name, None), str) and found:
            return found[-LONGEST_TRACE:]
    return ""


def is_users(filename: str) -> bool:
    """Whether a file in a traceback is the user's own code."""
    if filename.startswith("<frozen") or any(each in filename for each in INSTALLED):
        return False
    ours = Path(__file__)
    others = [
        *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")),
        str(ours.parents[3]),  # the import package's folders may be links
        str(ours.resolve().parents[2]),
    ]
    return not any(filename.startswith(f"{folder}/") for folder in others)
