"""Translates Ray's errors into the fabric's, with their messages on one line."""

from __future__ import annotations

import re
import traceback

from ..errors import NotInstalled, WorkerFailed, WorkerLost
from .machine_check import not_installed

REASON_LENGTH = 400


def explained(
    worker: str, method: str, error: BaseException
) -> WorkerFailed | WorkerLost | NotInstalled:
    """Translate an error of Ray: the code raised an error, or its process is gone."""
    from ray.exceptions import RayActorError, RayError, RayTaskError

    found: WorkerFailed | WorkerLost
    if isinstance(error, RayTaskError):
        cause: BaseException = error.cause
        found = WorkerFailed(worker, method, *_kind_and_message(cause), _uncoloured(str(error)))
        found.__cause__ = cause
        return found
    if isinstance(error, RayActorError) and error.actor_init_failed:
        trace = _uncoloured(str(error))  # all that Ray keeps
        if lacks := not_installed(trace):
            lacks.__cause__ = error
            return lacks
        kind, _, message = trace.strip().rpartition("\n")[2].partition(": ")
        found = WorkerFailed(worker, "__init__", kind, message, trace)
    elif isinstance(error, RayError):
        reason, _, _ = str(error).partition(" Some common causes")
        found = WorkerLost(worker, brief(reason))
    else:  # never sent: no such method, or an argument that cannot be pickled
        found = WorkerFailed(worker, method, *_kind_and_message(error), "")
    found.__cause__ = error
    return found


def _kind_and_message(error: BaseException) -> tuple[str, str]:
    """Describe an exception, even if its `__str__` fails."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return type(error).__name__, text.partition(": ")[2]


def _uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def brief(text: str) -> str:
    """Put the message of a Ray error on one line, without its indented fields."""
    lines = [line.strip() for line in _uncoloured(text).splitlines() if not line.startswith("\t")]
    line = " ".join(line for line in lines if line)
    return line if len(line) <= REASON_LENGTH else f"{line[:REASON_LENGTH]}..."
