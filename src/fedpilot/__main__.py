"""`fedpilot`, and `python -m fedpilot`: run a command in a process of its own, and end that."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn

from .cli import main
from .common.host.exit_codes import FAILED


def command() -> NoReturn:
    """Run the command of this process, which ends with it.

    The process ends after all that is registered for its exit, without taking Python apart: a
    thread of Ray or gRPC that comes back from C code meanwhile aborts the process.
    """
    ending = _Ending()
    atexit.register(ending)  # the first to be registered is the last to be called
    try:
        main(prog_name="fedpilot")
    except SystemExit as end:
        ending.code = end.code if isinstance(end.code, int) else FAILED if end.code else 0
        raise
    raise AssertionError("click ends each command by SystemExit")


class _Ending:
    """Ends the process at once with the command's exit code, which is 1 after an exception."""

    code = FAILED

    def __call__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(self.code)


if __name__ == "__main__":
    command()
