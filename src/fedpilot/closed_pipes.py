"""Lets commands continue after the reader of their output has closed the pipe.

`fedpilot run CONFIG | head -3` trains to the end: the rest of its output is dropped, and its exit
code says how it ended. Only a command that merely prints (`ends_with_reader`) ends with its reader,
with exit code 0.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class PipeEnd(io.FileIO):
    """The writing end of a pipe, which becomes the null device when the reading end closes."""

    closed_by_reader = False
    ends_command = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write to the reader; without one drop the data, or raise SystemExit if `ends_command`."""
        try:
            if not self.closed_by_reader:
                return super().write(data)
        except BrokenPipeError:
            self.closed_by_reader = True
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())
        if self.ends_command:
            raise SystemExit(0)
        return super().write(data)


def outlive_readers() -> None:
    """Let this process continue when the pipe of its stdout or stderr is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and _is_pipe(stream):
            stream.flush()
            setattr(sys, name, _opened_again(stream))


@contextmanager
def ends_with_reader() -> Iterator[None]:
    """Within the block, end the command with exit code 0 once its stdout has no reader."""
    buffer = getattr(sys.stdout, "buffer", None)
    end = getattr(buffer, "raw", buffer)
    if not isinstance(end, PipeEnd):
        yield
        return
    end.ends_command = True
    try:
        yield
    finally:
        end.ends_command = False


def _is_pipe(stream: TextIO | None) -> bool:
    try:
        mode = os.fstat(stream.fileno()).st_mode if stream is not None else 0
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _opened_again(stream: Any) -> TextIO:
    """The same stream, over an end that outlives its reader."""
    end = PipeEnd(stream.fileno(), "wb", closefd=False)
    unbuffered: bool = stream.write_through  # as with `python -u`: no buffer in between
    return io.TextIOWrapper(
        cast(BinaryIO, end) if unbuffered else io.BufferedWriter(end),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=unbuffered,
    )
