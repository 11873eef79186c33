"""Trains rounds and clients of a recorded run again, in memory, without changes to its folder."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import RunConfig, identity
from ...core.proof.run_check import Reproducibility, standing
from ...core.state import digest
from ...errors import ConfigError, FederatedError
from ..clients.virtual_node import TrainResult
from ..coordinator.coordinator import Coordinator
from ..coordinator.round_log import model_of
from ..federation import Federation
from ..run_folder.folder import RunFolder, read_checkpoint
from ..setup.global_model import GlobalModel
from .reading import Reading

AT_A_TIME = 16
"""Clients that train before the first has answered."""

MakeFederation = Callable[[RunConfig, Sequence[str]], Federation]
"""(config, folders of the user's modules) -> a federation."""
Tell = Callable[[str, int, int], None]
"""(activity, amount done, total)."""
Hold = Callable[[], AbstractContextManager[object]]
"""A context in which nothing is interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """How to make federations and report their progress."""

    make: MakeFederation
    tell: Tell
    hold: Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStart:
    """Where a replay begins: at a checkpoint, or without one at the start of the run."""

    round_number: int
    checkpoint: Path | None = None
    own: bool = True
    """Whether the checkpoint is the run's own, not one of the run that it is compared with."""


class Departed(FederatedError):
    """A repeated round differs from the recorded one."""

    def __init__(self, name: str, round_number: int) -> None:
        super().__init__(name, round_number)
        self.name, self.round_number = name, round_number

    def __str__(self) -> str:
        return f"trained again here, round {self.round_number} of {self.name} has another model"


def federation_of(run: Reading, make: MakeFederation) -> tuple[Federation | None, Reproducibility]:
    """A run's federation, not started, and what prevents an exact repetition."""
    if run.config is None:
        return None, Reproducibility(reasons=("config.yaml cannot be read",))
    manifest = run.record.manifest
    try:
        federation = make(run.config, manifest.get("search", ()))
    except ConfigError as error:
        return None, Reproducibility(reasons=(f"it cannot be made here: {error}",))
    code, data = (str(manifest.get(f"{name}_digest", "")) for name in ("code", "data"))
    graph = str(manifest.get("graph_digest", federation.graph_digest))  # 0.1 did not record it
    found = standing(
        manifest,
        identity=identity(run.config, code, data + graph),
        code=federation.code_digest,
        data=federation.data_digest,
        graph=federation.graph_digest,
        initial=digest(federation.state),
    )
    return federation, found


def starts(run: Reading, other: Reading | None = None) -> list[ReplayStart]:
    """Where a replay of a run may begin, earliest first: at models that agree with their rows.

    The checkpoints of another run count where neither server nor clients have a memory.
    """
    found = [ReplayStart(round_number=0), *_checkpoints(run, own=True)]
    if other is not None and run.is_stateless and other.is_stateless:
        found += _checkpoints(other, own=False)
    return sorted(found, key=lambda start: (start.round_number, start.own))


def _checkpoints(run: Reading, *, own: bool) -> list[ReplayStart]:
    return [
        ReplayStart(round_number=file.round_number, checkpoint=run.path / file.name, own=own)
        for file in run.record.sound_files()
        if file.is_checkpoint and file.round_number
    ]


class Stage:
    """A run's federation, started, whose rounds leave no trace."""

    def __init__(self, federation: Federation, coordinator: Coordinator, tell: Tell) -> None:
        self._federation = federation
        self._coordinator = coordinator
        self._tell = tell
        self.model = coordinator.first(federation.state)

    @property
    def environment(self) -> list[dict[str, Any]]:
        """Facts of the workers."""
        return self._federation.gang.workers

    def stand_at(self, model: GlobalModel) -> None:
        self.model = model
        self._federation.stand_at(model)

    def next_round(self, of: int) -> tuple[dict[str, Any], GlobalModel]:
        """Train the next round and take over its model; its row and that model."""
        self._tell("training rounds again", self.model.round_number, of)
        row, model = self._coordinator.step(self.model)
        self.stand_at(model)
        self._tell("training rounds again", model.round_number, of)
        return row, model

    def replay(self, run: Reading, until: int) -> None:
        """Train up to the end of a round; Departed if a model differs from the recorded one."""
        digests = run.record.digests()
        while self.model.round_number < until:
            _, model = self.next_round(until)
            if model.digest != digests[model.round_number]:
                raise Departed(run.name, model.round_number)

    def cohort(self) -> list[str]:
        """The clients that train in the next round."""
        return self._federation.loaded.cohort(self.model.round_number + 1)

    def clients(self, ids: Sequence[str]) -> Iterator[TrainResult]:
        """Train clients of the next round one by one, with the results of the round."""
        for start in range(0, len(ids), AT_A_TIME):
            self._tell("training clients one by one", start, len(ids))
            yield from asyncio.run(self._together(ids[start : start + AT_A_TIME]))
        self._tell("training clients one by one", len(ids), len(ids))

    async def _together(self, ids: Sequence[str]) -> list[TrainResult]:
        nodes = [self._federation[each] for each in ids]
        return await asyncio.gather(*(node.train_async() for node in nodes))


@contextmanager
def staged(
    run: Reading, federation: Federation, start: ReplayStart, tools: Tools
) -> Iterator[Stage]:
    """Start a run's federation at the replay's start; end and remove everything afterwards."""
    with ExitStack() as undo:
        aside = tempfile.TemporaryDirectory(prefix="fedpilot-verify-", ignore_cleanup_errors=True)
        scratch = RunFolder(Path(undo.enter_context(aside)))

        @undo.callback
        def close() -> None:
            with tools.hold():
                federation.close()

        scratch.journal.mkdir()
        if start.checkpoint is not None and start.own:
            for memory in run.client_states():
                shutil.copy(memory, scratch.journal)
        for counted in run.who_counted():
            shutil.copy(counted, scratch.journal)
        tools.tell("starting workers", 0, 0)
        federation.start()
        stage = Stage(federation, federation.coordinator(scratch), tools.tell)
        if start.checkpoint is not None:
            stage.stand_at(model_of(read_checkpoint(start.checkpoint)))
        yield stage
