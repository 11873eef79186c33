"""RunDriver: takes a new, continued or resumed run from its folder to its result.

The record always says how a run ended. A run that never got its gang leaves the folder as it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from fedpilot.common.host.interruptions import is_interruption
from fedpilot.mediator.wire.blobs.full_disk import is_full

from ...algorithms import algorithm_of
from ...config import differences, load_config, to_yaml, with_execution
from ...core.proof.environment_diff import Facts
from ...core.user_code.user_errors import failure_of, trace_of
from ...errors import RunRefused
from ...prepare.adapting import adapting_of
from ...prepare.costs import budget_of
from ...prepare.gang_request import set_aside
from ..coordinator.client_sites import keep_at_their_sites
from ..coordinator.coordinator import Coordinator
from ..coordinator.round_log import model_of
from ..coordinator.run_context import RunContext
from ..events import EventBus
from ..run_folder.folder import RunFolder, find_run, new_run_id
from ..setup.global_model import CurrentModel, GlobalModel
from ..setup.loaded_config import LoadedConfig
from ..sites.gang_session import GangSession
from .continuing import ROUNDS, Parent
from .run_plan import write_plan
from .run_record import RunAttempt, RunResult

GO_ON = "; a new run can go on to more rounds: `fedpilot run --from`"


class RunDriver:
    """Executes the runs of one federation, one after another."""

    def __init__(
        self,
        loaded: LoadedConfig,
        gang: GangSession,
        model: CurrentModel,
        events: EventBus,
        *,
        name: str,
    ) -> None:
        """`name` is for runs without a name in their config."""
        self._loaded = loaded
        self._gang = gang
        self._model = model
        self._events = events
        self._name = name

    def begin(self, run_id: str | None, *, progress: bool) -> RunResult:
        """Run all rounds in a new run folder."""
        config = self._loaded.config
        with RunFolder.create(self._root, self._id_or_new(run_id), to_yaml(config)) as folder:
            return self._run(folder, progress, resumed=False)

    def continue_from(self, earlier: str, run_id: str | None, *, progress: bool) -> RunResult:
        """Run an earlier run's missing rounds in a new folder; RunRefused if it does not fit."""
        loaded, run_id = self._loaded, self._id_or_new(run_id)
        with RunFolder.reading(find_run(self._root, earlier, path_first=True)) as reading:
            parent = Parent.of(reading)
            loaded.take_over_execution(parent.config)
            parent.check(loaded.config, loaded.identity_of)
            hand_on = partial(parent.hand_on, loaded.config, loaded.identity)
            folder = RunFolder.create(self._root, run_id, to_yaml(loaded.config), hand_on)
        with folder:
            return self._run(folder, progress, resumed=True, parent=parent)

    def resume(self, run_id: str, *, progress: bool) -> RunResult:
        """Continue an interrupted run in its folder; RunRefused if the config gives other bits."""
        loaded = self._loaded
        with RunFolder.open(self._root, run_id) as folder:
            earlier = load_config(folder.path / "config.yaml")
            loaded.take_over_execution(earlier)
            recorded = folder.manifest().get("identity", loaded.identity)
            # It may have died before it recorded its choice for `auto`, so before any round.
            undecided = with_execution(loaded.config, "auto", "auto")
            if recorded not in (loaded.identity, loaded.identity_of(undecided)):
                changed = "; ".join(differences(earlier, loaded.config)) or "its code or its data"
                more = "" if changed.partition(":")[0] != ROUNDS or ";" in changed else GO_ON
                raise RunRefused(
                    f"run {run_id} cannot be continued, since this changed: {changed}{more}"
                )
            return self._run(folder, progress, resumed=True)

    def coordinator(self, folder: RunFolder) -> Coordinator:
        """The coordinator, with its record in `folder`; FederatedError without a gang."""
        config, inputs = self._loaded.config, self._loaded.inputs
        run = RunContext(
            config=config,
            roles=inputs.roles,
            algorithm=algorithm_of(config.federation),
            mediator=self._gang.running("the federation is not running"),
            folder=folder,
            emit=self._events.emit,
            asked=inputs.cohort_size,
            enough=inputs.enough,
            membership=self._loaded.membership(),
            partition=inputs.data.partition,
            graphs=inputs.graphs,
            test_samples=len(inputs.data.test_y),
            told=inputs.told_of,
            exchange=self._loaded.exchange if budget_of(config).limits_anything else None,
            adapting=adapting_of(config, inputs),
        )
        return Coordinator(run, self._loaded.identity)

    @property
    def _root(self) -> Path:
        return Path(self._loaded.config.outputs.folder)

    def _id_or_new(self, run_id: str | None) -> str:
        return run_id or new_run_id(self._loaded.config.run.name or self._name)

    def _run(
        self, folder: RunFolder, progress: bool, *, resumed: bool, parent: Parent | None = None
    ) -> RunResult:
        started = time.perf_counter()
        events, outputs = self._events, self._loaded.config.outputs
        record = RunAttempt(folder, self._loaded, events.emit)
        status, failure, reason, began = "failed", "", "", False
        with ExitStack() as undo:
            if progress:
                from ..report.progress import display_for

                display = undo.enter_context(display_for(sys.stdout, as_json=False))
                undo.enter_context(events.observed_by(display))
            if folder.manifest().get("status") == "finished":
                if (last := folder.load_checkpoint()) is not None:
                    self._model.now = model_of(last)
                return record.finished_before()
            self._gang.name = folder.run_id
            try:
                with events.step("loading"):
                    record.started(parent)
                if outputs.tensorboard:
                    from ..report.tensorboard import TensorBoardWriter

                    writer = undo.enter_context(TensorBoardWriter(folder.path))
                    undo.enter_context(events.observed_by(writer))
                undo.enter_context(events.observed_by(folder.keep_output))
                self._gang.start()
                folder.write_config(to_yaml(self._loaded.config))
                folder.update_manifest(identity=self._loaded.identity)
                began = True
                folder.forget_failure()
                with events.step("round"):
                    before = folder.manifest() if parent is None else parent.manifest
                    reason = self._rounds(folder, resumed, before.get("workers", ()))
                status = "finished"
            except BaseException as error:
                if is_interruption(error):
                    status, failure = "interrupted", "interrupted by the user"
                elif is_full(error):
                    status, failure = "interrupted", f"the disk is full: {error}"
                else:
                    failure = failure_of(error)
                    if began and (trace := trace_of(error)):
                        folder.write_failure(trace)
                raise
            finally:
                ending = {
                    "status": status,
                    "failure": failure,
                    "reason": reason or failure,
                    "rounds": self._model.now.round_number,
                    "digest": self._model.now.digest,
                    "seconds": round(time.perf_counter() - started, 3),
                }
                if began:
                    with events.step("ending"):
                        record.ended(ending)
                else:
                    record.never_began(ending)
        return record.result()

    def _rounds(self, folder: RunFolder, resumed: bool, before: Sequence[Facts]) -> str:
        """Run the rounds; return why they ended."""
        coordinator = self.coordinator(folder)
        if self._loaded.config.clients_keep_states:
            mediator = self._gang.running("the gang has ended meanwhile")
            self._loaded.check_copies(len(mediator.membership.sites))
            keep_at_their_sites(mediator, folder.journal)
        write_plan(folder, self._loaded, self._gang)
        if resumed:
            self._gang.relay.compare_workers(before)
        initial = self._loaded.inputs.initial
        begin = coordinator.recovered if resumed else coordinator.first
        self._model.now = begin(initial)
        written: list[dict[str, Any]] = []

        def write_workers() -> None:
            """Record sites and workers that came since."""
            if written != (workers := self._gang.workers):
                folder.update_manifest(workers=workers)
                written[:] = workers

        def moved(model: GlobalModel) -> None:
            self._model.now = model
            write_workers()

        write_workers()
        with set_aside():
            return coordinator.run(self._model.now, moved)
