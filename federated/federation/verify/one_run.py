"""Verifies one run: its record against itself, then its rounds trained again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fedpilot.common.text.amounts import duration

from ...core.proof.client_differences import ClientComparison, ClientFacts, compare_clients
from ...core.proof.run_check import (
    Finding,
    Reproducibility,
    check,
    environment_differences,
    exact_differences,
)
from ...core.proof.state_differences import TensorDifference, fingerprints, state_differences
from ...errors import RunRefused
from ..clients.virtual_node import TrainResult
from ..federation import Federation
from ..setup.global_model import GlobalModel
from .reading import Reading
from .stage import ReplayStart, Stage, Tools, federation_of, staged, starts

SHORT_S = 60.0
"""Seconds of rounds up to which a run is trained again from the start if necessary."""


class Replay(StrEnum):
    """How much of a run is trained again."""

    NONE = "none"
    LAST = "last"
    """From the older kept checkpoint; a short run without one, from the start."""
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A run's folder, checked against itself."""

    run: Reading
    findings: tuple[Finding, ...]
    standing: Reproducibility | None = None
    """Whether it can be trained again here; None if not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The first round whose repetition differs."""

    round_number: int
    models: tuple[str, str]
    """Digests: as recorded, and as trained again."""
    metrics: Mapping[str, tuple[Any, Any]]
    tensors: tuple[TensorDifference, ...] | None
    """Where the models differ; None if the folder lacks that model."""
    clients: ClientComparison | None
    """Recorded clients against those trained again; None if they were not recorded."""
    confirmed_by: tuple[str, ...]
    """Files that hold the model as trained again, even if the row differs."""

    @property
    def model_differs(self) -> bool:
        """Whether the models differ, not only their evaluations."""
        return self.models[0] != self.models[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of training rounds again."""

    start: int = 0
    """The round whose model it began with."""
    last: int = 0
    departure: Departure | None = None
    environment: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Differences between the workers of then and now: (then, now)."""
    findings: tuple[Finding, ...] = ()
    """Findings whose tensors only the replay could name."""
    not_done: str = ""


def check_run(run: Reading) -> Checked:
    """Check a run's folder against itself, and name differing tensors where both states exist."""
    findings = []
    for each in check(run.record):
        if each.twin:
            tensors = state_differences(run.state(each.twin), run.state(each.file))
            each = replace(each, tensors=tensors)
        findings.append(each)
    return Checked(run=run, findings=tuple(findings))


def stand(checked: Checked, tools: Tools) -> tuple[Checked, Federation | None]:
    """Check whether the run can be trained again here; its federation, not started, if so."""
    federation, standing = federation_of(checked.run, tools.make)
    found = replace(checked, standing=standing)
    return found, federation if standing.reproducible else None


def replay_run(
    checked: Checked, federation: Federation, how: Replay, tools: Tools
) -> Replayed | None:
    """Train rounds of the run again, as far as asked; None if not asked at all."""
    if how is Replay.NONE:
        return None
    start = _start(checked.run, how)
    if isinstance(start, str):
        return Replayed(not_done=start)
    with staged(checked.run, federation, start, tools) as stage:
        return _replayed(checked, stage, start)


def _start(run: Reading, how: Replay) -> ReplayStart | str:
    """Where to begin, or why there is nothing to train."""
    rounds = run.record.rounds
    if not rounds:
        return "the run has no rounds"
    if how is Replay.ALL:
        return ReplayStart(round_number=0)
    found = [s for s in starts(run) if s.checkpoint is not None and s.round_number < rounds]
    if found:
        return found[0]
    took_s = sum(_seconds(row) for row in run.record.rows)
    if took_s <= SHORT_S:
        return ReplayStart(round_number=0)
    return (
        f"no sound checkpoint is from before the last round; `--replay all` trains all "
        f"{rounds} rounds again, which took {duration(took_s)}"
    )


def _seconds(row: Mapping[str, Any]) -> float:
    said = row.get("seconds")
    return said if isinstance(said, int | float) else 0.0


def _replayed(checked: Checked, stage: Stage, start: ReplayStart) -> Replayed:
    run, record = checked.run, checked.run.record
    digests = record.digests()
    located: list[Finding] = []
    environment = environment_differences(run.environment, stage.environment)
    departure, number = None, start.round_number
    while departure is None and number < record.rounds:
        before = stage.model
        row, model = stage.next_round(record.rounds)
        number = model.round_number
        metrics = exact_differences(record.row(number), row)
        if model.digest != digests.get(number) or metrics:
            departure = _departure(run, stage, before, model, metrics)
        else:
            located += _located(checked, model)
    return Replayed(
        start=start.round_number,
        last=number,
        departure=departure,
        environment=environment,
        findings=tuple(located),
    )


def _departure(
    run: Reading,
    stage: Stage,
    before: GlobalModel,
    model: GlobalModel,
    metrics: Mapping[str, tuple[Any, Any]],
) -> Departure:
    number = model.round_number
    recorded = run.record.digests().get(number, "")
    differs = recorded != model.digest
    tensors: tuple[TensorDifference, ...] | None = ()
    if differs:
        kept = run.state_of_round(number)
        tensors = None if kept is None else state_differences(kept, model.state)
    holding = [f for f in run.record.files if (f.round_number, f.digest) == (number, model.digest)]
    return Departure(
        round_number=number,
        models=(recorded, model.digest),
        metrics=metrics,
        tensors=tensors,
        clients=_clients(run, stage, before, number) if differs else None,
        confirmed_by=tuple(file.name for file in holding) if differs else (),
    )


def _located(checked: Checked, model: GlobalModel) -> list[Finding]:
    """Findings about files that should hold this model, with their differing tensors."""
    states = {file.name for file in checked.run.record.files if file.digest}
    found = [
        replace(finding, tensors=state_differences(model.state, checked.run.state(finding.file)))
        for finding in checked.findings
        if finding.round_number == model.round_number
        and finding.file in states
        and not finding.tensors
    ]
    return [finding for finding in found if finding.tensors]


def _clients(
    run: Reading, stage: Stage, before: GlobalModel, number: int
) -> ClientComparison | None:
    """Compare the recorded clients of a round with the same clients trained again one by one."""
    if run.config is not None and not run.config.clients_share_a_model:
        return None
    try:
        recorded = run.clients(number)
    except RunRefused:
        return None
    if not recorded:
        return None
    stage.stand_at(before)
    here = {result.client_id: facts_of(result) for result in stage.clients(stage.cohort())}
    return compare_clients(recorded, here)


def facts_of(trained: TrainResult) -> ClientFacts:
    return ClientFacts(samples=trained.samples, fingerprints=fingerprints(trained.state))
