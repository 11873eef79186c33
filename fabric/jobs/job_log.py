"""The log of a job has lines of fedpilot's and the output of its command; this tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto

SAYS = "fedpilot: "
"""The prefix of lines that are not the command's."""
READY = "its command starts"
"""The end of the last such line before the command begins, or begins again."""
TOLD, OVER = "its command is told to end", "its command has ended"
"""The ends of the first such line after the command has begun, when its places are taken."""
PREEMPTED = "preempted"
"""The beginning of the last such line of a job that does not run again; after `SAYS`."""


class LogSource(Enum):
    """Where a piece of a log comes from."""

    RAY = auto()
    """A line before the command begins: Ray's, or that of the runtime environment."""
    FEDPILOT = auto()
    """A whole line of fedpilot's."""
    AGAIN = auto()
    """fedpilot's line that the command begins again."""
    COMMAND = auto()
    """Output of the command, of any length."""


class JobLog:
    """Reads a log as it grows. What the command prints is not held back until its line ends."""

    def __init__(self) -> None:
        self.began = False
        """Whether the command has begun."""
        self.said = ""
        """fedpilot's last line, without its prefix, unless the command has begun since."""
        self._runs = False
        self._rest = ""
        self._midline = False

    @property
    def preempted(self) -> bool:
        """Whether the job ended since its places were given to others."""
        return self.said.startswith(PREEMPTED)

    def read(self, log: Iterable[str]) -> Iterator[tuple[LogSource, str]]:
        """Yield the pieces of a log, in order; only the command's have line ends."""
        for text in log:
            self._rest += text
            yield from self._pieces()
        if self._rest:
            yield LogSource.COMMAND if self.began else LogSource.RAY, self._rest

    def _pieces(self) -> Iterator[tuple[LogSource, str]]:
        """Take the pieces from the text so far whose source is known."""
        while self._rest:
            line, newline, after = self._rest.partition("\n")
            if self.began and (self._midline or not self._may_be_ours()):
                self._rest, self._midline = after, not newline
                yield LogSource.COMMAND, line + newline
            elif newline:
                self._rest = after
                if found := self._whole(line):
                    yield found
            else:
                return

    def _may_be_ours(self) -> bool:
        return self._rest.startswith(SAYS) or SAYS.startswith(self._rest)

    def _whole(self, line: str) -> tuple[LogSource, str] | None:
        """The source of a line; None for the one before the command begins first."""
        ours = line.startswith(SAYS) and (not self._runs or line.endswith((READY, TOLD, OVER)))
        if not ours:
            return (LogSource.COMMAND, f"{line}\n") if self.began else (LogSource.RAY, line)
        self._runs = line.endswith(READY)
        if not self._runs:
            self.said = line.removeprefix(SAYS)
            return LogSource.FEDPILOT, line
        again, self.began, self.said = self.began, True, ""
        return (LogSource.AGAIN, line) if again else None
