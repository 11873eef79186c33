"""What becomes a coordinator: a small program that dies with its mediator, whatever kills that."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_PROGRAM = """\
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Between fork and exec it would run beside gRPC's threads, and could wait for their locks."""


def fated(command: Sequence[str]) -> list[str]:
    """The command, of a child that is killed when the thread ends that starts it."""
    return [sys.executable, "-c", _PROGRAM, str(os.getpid()), *command]
