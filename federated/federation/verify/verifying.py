"""Verifies one run or two, reports each part of the result as it is known, and sums it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from fedpilot.common.strict_yaml.errors import BadFile
from fedpilot.fabric import FabricError
from fedpilot.mediator import MediatorError

from ...core.proof.run_comparison import Comparison
from ...errors import FederatedError, RunRefused
from ..run_folder.folder import find_run
from .one_run import Checked, Replay, Replayed, check_run, replay_run, stand
from .reading import Reading, reading
from .stage import Tools
from .two_runs import Localised, compare_runs, localise

FAILURES = (BadFile, FederatedError, FabricError, MediatorError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All results; parts that were not asked for are None."""

    checks: tuple[Checked, ...]
    replayed: Replayed | None = None
    comparison: Comparison | None = None
    localised: Localised | None = None
    failure: Exception | None = None
    """The error that stopped the repeated training."""

    @property
    def differs(self) -> bool:
        """Whether anything is not as it should be."""
        spoilt = any(checked.findings for checked in self.checks)
        departed = self.replayed is not None and self.replayed.departure is not None
        return spoilt or departed or (self.comparison is not None and not self.comparison.agree)

    @property
    def refused(self) -> bool:
        """Whether this machine cannot train the run again, for other code or data."""
        standings = [c.standing for c in self.checks if c.standing is not None]
        return not all(standing.reproducible for standing in standings)


Say = Callable[["Checked | Replayed | Comparison | Localised | Verification"], None]


def verify(
    folder: Path,
    runs: Sequence[str],
    *,
    how: Replay,
    measured: int,
    tools: Tools,
    say: Say,
    overrides: Sequence[str] = (),
) -> Verification:
    """Verify a run, or two against each other; RunRefused if one is missing or running.

    Differences of `measured` clients are measured. `overrides` say where to train again.
    """
    paths = [find_run(folder, run) for run in runs]
    if len(set(paths)) < len(paths):
        raise RunRefused(f"both are {paths[0]}")
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = list(runs)
    with ExitStack() as undo:
        read = [
            undo.enter_context(reading(path, name, overrides))
            for path, name in zip(paths, names, strict=True)
        ]
        if len(read) == 1:
            found = _one(read[0], how, tools, say)
        else:
            found = _two(read[0], read[1], how, measured, tools, say)
        say(found)
    return found


def _one(run: Reading, how: Replay, tools: Tools, say: Say) -> Verification:
    checked, federation = stand(check_run(run), tools)
    say(checked)
    outcome = Verification(checks=(checked,))
    if federation is None:
        return outcome
    try:
        replayed = replay_run(checked, federation, how, tools)
    except FAILURES as error:
        return replace(outcome, failure=error)
    if replayed is not None:
        say(replayed)
    return replace(outcome, replayed=replayed)


def _two(
    first: Reading, second: Reading, how: Replay, measured: int, tools: Tools, say: Say
) -> Verification:
    checks = check_run(first), check_run(second)
    for checked in checks:
        say(checked)
    comparison = compare_runs(first, second)
    say(comparison)
    outcome = Verification(checks=checks, comparison=comparison)
    if not comparison.parted:
        return outcome
    try:
        localised = localise(first, second, comparison, how, measured, tools)
    except FAILURES as error:
        return replace(outcome, failure=error)
    say(localised)
    return replace(outcome, localised=localised)
