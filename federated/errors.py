"""Errors of a federation, and the exit code that the command line gives each.

FederatedError
├── ConfigError            bad input, found before anything is started            (exit 2)
├── RunRefused             the run cannot be continued or made as asked            (exit 2)
├── CodeRefused            the user's own code cannot be sent, or be run           (exit 2)
├── VersionsDiffer         a site's fedpilot reads the config differently          (exit 3)
├── NotFeasible            the gang does not fit its sites                         (exit 3)
├── TrafficSpent           a round costs more than is left of the traffic budget    (exit 3)
├── DataUnusable           a site's data cannot be used as its admin declared it   (exit 1)
├── ClientFailed           a client's training or evaluation raised                (exit 1)
├── ExecutionRefused       the model does not suit `training.execution`            (exit 1)
├── NoUsableUpdate         every update of a round was refused                     (exit 1)
├── ModelNotFinite         a round ended in a model that no round can repair       (exit 1)
├── GraphNotAdapted        `graph.adapt` returned no graph that can be used        (exit 1)
├── WorkerNotMade          a worker cannot be started, and would fail again        (exit 1)
├── WorkersNotUp           workers have not started in time                         (exit 4)
├── WorkersExhausted       the same work lost its worker too often                 (exit 1)
└── InvalidTransition      a VirtualNode's state does not allow the event          (exit 1)
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar

from fedpilot.common.host.exit_codes import BAD_INPUT, FAILED, REFUSED, UNREACHABLE
from fedpilot.common.strict_yaml.errors import Problem as Problem


class FederatedError(Exception):
    """Root of this package's errors."""

    exits_with: ClassVar[int] = FAILED
    """The exit code of a command that ends with this error."""


class ConfigError(FederatedError):
    """The config is wrong; `problems` lists everything found."""

    exits_with = BAD_INPUT

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    @classmethod
    def about(cls, key: str, found: str, allowed: str) -> ConfigError:
        """The error of one problem without a line in a file."""
        return cls([Problem(key=key, found=found, allowed=allowed)])

    def __str__(self) -> str:
        count = len(self.problems)
        head = "the configuration has a problem" if count == 1 else f"{count} problems"
        return "\n".join([head, *(str(problem) for problem in self.problems)])


class RunRefused(FederatedError):
    """A run cannot be continued or made as asked; the text names the remedy."""

    exits_with = BAD_INPUT


class CodeRefused(FederatedError):
    """The user's own code cannot be sent to sites or run there; none of it was run."""

    exits_with = BAD_INPUT

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the code of the run cannot be used: {self.problem}"


class VersionsDiffer(FederatedError):
    """A site's fedpilot would read a run's config differently from the coordinator's."""

    exits_with = REFUSED

    def __init__(self, coordinators: str, sites: str, why: str) -> None:
        super().__init__(coordinators, sites, why)
        self.coordinators, self.sites, self.why = coordinators, sites, why

    def __str__(self) -> str:
        return (
            f"the run's config is not what this site's fedpilot ({self.sites}) takes it for: "
            f"{self.why}; the coordinator has version {self.coordinators}. Give both the same "
            "version, or leave those keys at their default"
        )


class NotFeasible(FederatedError):
    """The sites could not hold the run's gang even if they were idle."""

    exits_with = REFUSED

    def __init__(
        self, wanted: str, found: str, fits: str = "", options: Sequence[str] = ()
    ) -> None:
        """`fits` is the largest gang that fits, and `options` ask for it, as after `--set`."""
        super().__init__(wanted, found, fits, tuple(options))
        self.wanted, self.found, self.fits, self.options = wanted, found, fits, tuple(options)

    def __str__(self) -> str:
        asked = f"{self.wanted} asked: {self.found}"
        if not self.options:
            return asked
        words = " ".join(["--set " + shlex.quote(each) for each in self.options])
        return f"{asked}. {self.fits} fit: {words}"


class TrafficSpent(FederatedError):
    """A round costs more than is left of the run's traffic budget; the run can be resumed."""

    exits_with = REFUSED

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}. The run can be resumed with another limit"


class DataUnusable(FederatedError):
    """A site's data cannot be used as its admin declared it; the details stay at the site."""

    def __init__(self, site: str, dataset: str, problem: str) -> None:
        super().__init__(site, dataset, problem)
        self.site, self.dataset, self.problem = site, dataset, problem

    def __str__(self) -> str:
        return (
            f"data set {self.dataset} cannot be used at site {self.site}: {self.problem}; its "
            "admin finds more in the runner's log there"
        )


class ClientFailed(FederatedError):
    """A client's work raised an exception inside its worker."""

    def __init__(self, client_id: str, doing: str, reason: str, trace: str = "") -> None:
        """`trace`: the traceback, from the user's own code on."""
        super().__init__(client_id, doing, reason, trace)
        self.client_id, self.doing, self.reason, self.trace = client_id, doing, reason, trace

    def __str__(self) -> str:
        return f"{self.client_id} failed while {self.doing}: {self.reason}"


class ExecutionRefused(FederatedError):
    """The model does not suit the execution in `training.execution`, or that `auto` stands for."""

    def __init__(
        self, execution: str, reason: str, allowed: str = "`auto`, or `sequential`"
    ) -> None:
        super().__init__(execution, reason, allowed)
        self.execution, self.reason, self.allowed = execution, reason, allowed

    def __str__(self) -> str:
        return (
            f"`training.execution: {self.execution}` does not suit this model: {self.reason} "
            f"(allowed: {self.allowed}, which suits every model)"
        )


class NoUsableUpdate(FederatedError):
    """Every update of a round was refused, so there is nothing to aggregate."""

    def __init__(self, round_number: int, refused: Sequence[str]) -> None:
        super().__init__(round_number, tuple(refused))
        self.round_number, self.refused = round_number, tuple(refused)

    def __str__(self) -> str:
        names = ", ".join(self.refused[:5]) + (", ..." if len(self.refused) > 5 else "")
        return (
            f"round {self.round_number} has no usable update: all {len(self.refused)} were not "
            f"finite ({names}); a smaller `training.learning_rate` usually helps"
        )


class ModelNotFinite(FederatedError):
    """A round ended in a model with numbers, or a loss, that are not finite."""

    def __init__(self, round_number: int, what: str, whose: str) -> None:
        super().__init__(round_number, what, whose)
        self.round_number, self.what, self.whose = round_number, what, whose

    def __str__(self) -> str:
        return (
            f"round {self.round_number} ended in a model that no round can mend: {self.what}; "
            f"{self.whose}. The model before it is kept. A smaller `training.learning_rate` helps "
            "where the training diverged, `robustness.max_update_norm` against a site that sends "
            "too much"
        )


class GraphNotAdapted(FederatedError):
    """The function that adapts a run's graph raised, or returned what cannot be used."""

    def __init__(self, name: str, round_number: int, reason: str) -> None:
        super().__init__(name, round_number, reason)
        self.name, self.round_number, self.reason = name, round_number, reason

    def __str__(self) -> str:
        return (
            f"round {self.round_number} is not begun: `graph.adapt: {self.name}` gives no graph "
            f"for it: {self.reason}. The run is kept as the round before left it"
        )


class WorkerNotMade(FederatedError):
    """Making a worker raised, and would again; usually the user's own code does not load there."""

    def __init__(self, worker: int, reason: str) -> None:
        super().__init__(worker, reason)
        self.worker, self.reason = worker, reason

    def __str__(self) -> str:
        return f"worker {self.worker} cannot be made: {self.reason}"


class WorkersNotUp(FederatedError):
    """Workers did not start in time, most often on a busy machine."""

    exits_with = UNREACHABLE

    def __init__(self, up: int, of: int, waited_s: float, busy: str) -> None:
        super().__init__(up, of, waited_s, busy)
        self.up, self.of, self.waited_s, self.busy = up, of, waited_s, busy

    def __str__(self) -> str:
        return (
            f"{self.up} of {self.of} workers were up after {self.waited_s:g} s ({self.busy}); wait "
            "longer (`resources.start_timeout`), ask for fewer workers, or free the machine"
        )


class WorkersExhausted(FederatedError):
    """The same work lost its worker more often than `resources.worker_restarts` allows."""

    def __init__(self, what: str, losses: int, reason: str) -> None:
        super().__init__(what, losses, reason)
        self.what, self.losses, self.reason = what, losses, reason

    def __str__(self) -> str:
        times = "once" if self.losses == 1 else f"{self.losses} times"
        return (
            f"{self.what}: the worker died {times}, at last with: {self.reason}; where the user's "
            "own code does not end it, the machine's memory is often too small"
        )


class InvalidTransition(FederatedError):
    """A state machine got an event that its present state does not allow."""

    def __init__(self, subject: str, state: str, event: str) -> None:
        super().__init__(subject, state, event)
        self.subject, self.state, self.event = subject, state, event

    def __str__(self) -> str:
        return f"{self.subject} is {self.state} and cannot take `{self.event}`"
