"""Trains the trials of a sweep, one after another, on one Ray.

What a finished trial left is never trained again. A trial that fails does not end the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpilot.common.host.interruptions import Interruptions

from ..errors import FederatedError, WorkersNotUp
from ..federation.events import Event, Observer, event
from ..federation.federation import Federation
from ..federation.sites.kept_ray import KeptRay
from .comparison import ComparedPoint, document_of, points_of
from .comparison_picture import draw_comparison
from .run_reading import read_run, readable
from .sweep_folder import SweepFolder
from .trials import SweepTrial


@dataclass(frozen=True, slots=True, eq=False)
class SweepResult:
    """What a sweep came to."""

    points: Sequence[ComparedPoint]
    failed: Sequence[SweepTrial]
    left_out: Sequence[str]
    """Why runs that cannot be read are not among the points."""
    picture: Path


def train_trials(
    sweep: SweepFolder, observe: Observer, interruptions: Interruptions | None = None
) -> SweepResult:
    """Train all trials that are not finished, and compare the points.

    `observe` gets the events of the sweep and those of its runs. Raises what keeps any trial from
    being trained, such as a Ray that does not start.
    """
    emit = _emitting(observe)
    failed: list[SweepTrial] = []
    todo = [each for each in sweep.trials if sweep.status(each) != "finished"]
    emit("sweep_started", sweep=sweep.path.name, trials=len(sweep.trials), todo=len(todo))
    with KeptRay() as kept:
        try:
            for trial in todo:
                number = sweep.trials.index(trial) + 1
                about = {"trial": number, "run_id": trial.run_id, "seed": trial.seed}
                emit("trial_started", **about, of=len(sweep.trials), point=dict(trial.point))
                try:
                    _train(sweep, trial, kept, observe)
                    run = read_run(sweep.path / trial.run_id)
                except WorkersNotUp:
                    raise
                except (FederatedError, OSError, ValueError) as error:
                    failed.append(trial)
                    emit("trial_failed", **about, reason=str(error))
                    continue
                results = {name: run.last(name) for name in ("accuracy", "loss")}
                emit("trial_finished", **about, **results, seconds=run.seconds)
        finally:
            if interruptions is not None:
                interruptions.shield()
    left_out: list[str] = []
    begun = [
        sweep.path / trial.run_id for trial in sweep.trials if sweep.status(trial) != "waiting"
    ]
    points, picture = points_of(readable(begun, left_out)), sweep.path / "comparison.png"
    if points:
        draw_comparison(points, picture, metric="accuracy", title="accuracy")
    names = [trial.run_id for trial in failed]
    found = {"failed": names, "left_out": left_out, "picture": str(picture)}
    emit("sweep_finished", **found, **document_of(points))
    return SweepResult(points, failed, left_out, picture)


def _train(sweep: SweepFolder, trial: SweepTrial, kept: KeptRay, observe: Observer) -> None:
    sweep.make_room(trial)
    config, begun = sweep.config_of(trial), sweep.status(trial) != "waiting"
    with Federation(
        config, observers=[observe], search=sweep.search, kept_ray=kept, name=trial.run_id
    ) as federation:
        if begun:
            federation.resume(trial.run_id)
        else:
            federation.run(run_id=trial.run_id)


def _emitting(observe: Observer) -> Callable[..., None]:
    def emit(name: str, **fields: object) -> None:
        told: Event = event(name, **fields)
        observe(told)

    return emit
