"""What can go wrong with a runner.

MediatorError
├── ReservationLapsed   what was promised was given back before it was committed   (exit 3)
├── OutOfOrder          a runner was asked for what its state forbids              (exit 1)
├── BadSettings         a folder holds no settings that a runner could be driven by (exit 1)
└── RunnerExists        a runner works in the folder already                       (exit 1)
"""

from __future__ import annotations

from fedpilot.common.host.exit_codes import REFUSED

from ...errors import MediatorError


class ReservationLapsed(MediatorError):
    """A site's promise ended before it was committed."""

    exits_with = REFUSED

    def __init__(self, site: str, lease_s: float) -> None:
        super().__init__(site, lease_s)
        self.site, self.lease_s = site, lease_s

    def __str__(self) -> str:
        lapsed = f"its lease of {self.lease_s:g} s lapsed" if self.lease_s else "there was none"
        return f"site {self.site} holds no promise to commit: {lapsed}; reserve again"


class OutOfOrder(MediatorError):
    """A runner was asked for what cannot be done in its present state."""

    def __init__(self, site: str, verb: str, state: str) -> None:
        super().__init__(site, verb, state)
        self.site, self.verb, self.state = site, verb, state

    def __str__(self) -> str:
        return f"site {self.site} is {self.state} and cannot take `{self.verb}`"


class BadSettings(MediatorError):
    """The settings in a runner's folder are damaged, or of another version."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path} holds no settings of a runner: {self.problem}"


class RunnerExists(MediatorError):
    """Another runner holds the folder."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return f"a runner works in {self.folder} already; connect to it, or end it first"
