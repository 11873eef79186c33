"""RunAttempt: a run's account of itself, first to its folder and then to its observers."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.state import digest
from ...errors import RunRefused
from ..events import Emit
from ..report.curves import draw, prepare
from ..run_folder.folder import RunFolder
from ..setup.loaded_config import LoadedConfig
from .run_plan import beside_plan

if TYPE_CHECKING:
    from .continuing import Parent

SUBMITTED = "submitted"
"""Status of a run that a mediator has accepted and that has not begun."""

JUDGED = ("accuracy", "loss", "best", "best_round")
"""Fields of the last round that a run's end repeats."""
ENDING = ("status", "failure", "reason", "rounds", "digest", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended."""

    run_id: str
    folder: Path
    rounds: int
    reason: str
    digest: str
    """SHA-256 of the last model."""
    best_round: int
    best: float
    """Value of `evaluation.metric` in the best round."""
    seconds: float
    rows: Sequence[Mapping[str, Any]]
    """The metrics of every round, as in metrics.jsonl."""

    @property
    def accuracy(self) -> float:
        """Accuracy of the last model; NaN if it was not evaluated."""
        return float(self.rows[-1].get("accuracy", math.nan)) if self.rows else math.nan


class RunAttempt:
    """The record of one attempt at a run, new or resumed."""

    def __init__(self, folder: RunFolder, loaded: LoadedConfig, emit: Emit) -> None:
        self._folder = folder
        self._loaded = loaded
        self._emit = emit
        self._earlier = folder.manifest()
        """Manifest of an earlier attempt; empty for a new run."""

    def started(self, parent: Parent | None) -> None:
        """Record the start, and the parent run, if any."""
        from ...engine.training.modules import environment

        loaded, config, inputs = self._loaded, self._loaded.config, self._loaded.inputs
        population = loaded.describe()
        if config.outputs.curves:
            prepare()
        now, resumed = _now(), self._earlier.get("status", SUBMITTED) != SUBMITTED
        versions = {"fedpilot": version("fedpilot"), "python": platform.python_version()}
        origin = {} if parent is None else {"parent": parent.facts}
        graph = {"graph_digest": loaded.graph_digest} if loaded.graph_digest else {}
        self._folder.update_manifest(
            status="running",
            started=self._earlier.get("started", now),
            resumed=[*self._earlier.get("resumed", []), *([now] if resumed else [])],
            random_seed=config.run.random_seed,
            identity=loaded.identity,
            data_digest=inputs.data_digest,
            code_digest=loaded.code.digest,
            **graph,
            initial_model=digest(inputs.initial),
            versions={**environment(), **versions},
            cpus=os.cpu_count(),
            search=list(loaded.paths),
            **origin,
        )
        labels, data = population.labels_mean, config.data
        span = [population.samples_min, population.samples_median, population.samples_max]
        self._emit(
            "run_started",
            run_id=self._folder.run_id,
            folder=str(self._folder.path),
            resumed=resumed,
            parent=origin.get("parent"),
            rounds=config.federation.rounds,
            clients=population.number_of_clients,
            clients_per_round=loaded.cohort_size,
            samples_per_client=span,
            labels_per_client=None if labels is None else round(labels, 2),
            model=config.model.model_type,
            parameters=inputs.parameters,
            dataset=data.dataset if data.from_ else data.dataset_type,
            distribution="at sites" if data.from_ else data.data_distribution_kind,
        )

    def ended(self, ending: Mapping[str, Any]) -> None:
        """Record the end, in the manifest first; curves.png can wait."""
        config = self._loaded.config
        self._folder.update_manifest(ended=_now(), **ending)
        if beside := beside_plan(self._folder, config.training.number_of_epochs):
            self._folder.update_manifest(**beside)
        rows = self._folder.rows()
        try:
            self._folder.write_csv(rows)
            if config.outputs.curves and rows:
                picture, title = self._folder.path / "curves.png", self._folder.run_id
                draw(rows, picture, title=title, metric=config.evaluation.metric)
        finally:
            self._say_ended(ending, rows)

    def never_began(self, ending: Mapping[str, Any]) -> None:
        """The run never got its gang: restore what was there, nothing or an older attempt."""
        if self._earlier:
            self._folder.replace_manifest(self._earlier)
        else:
            self._folder.discard()
        path = str(self._folder.path) if self._earlier else None
        self._emit("run_finished", run_id=self._folder.run_id, folder=path, **ending)

    def finished_before(self) -> RunResult:
        """Report again how a finished run ended, and change nothing."""
        result = self.result()
        self._say_ended({name: self._earlier[name] for name in ENDING}, result.rows)
        return result

    def result(self) -> RunResult:
        """The run's end as in its folder; raises RunRefused if that is incomplete."""
        rows, manifest = self._folder.rows(), self._folder.manifest()
        if not rows or not manifest.keys() >= set(ENDING):
            raise RunRefused(f"run {self._folder.run_id} is finished, but its record is not whole")
        return RunResult(
            run_id=self._folder.run_id,
            folder=self._folder.path,
            rounds=manifest["rounds"],
            reason=manifest["reason"],
            digest=manifest["digest"],
            best_round=rows[-1].get("best_round", 0),
            best=rows[-1].get("best", math.nan),
            seconds=manifest["seconds"],
            rows=rows,
        )

    def _say_ended(self, ending: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        judged = {k: v for k, v in (rows[-1] if rows else {}).items() if k in JUDGED}
        path = str(self._folder.path)
        self._emit("run_finished", run_id=self._folder.run_id, folder=path, **ending, **judged)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
