"""RoundLog: what a run's rounds leave in its folder: rows, traffic, the best and the last model.

It writes behind the rounds. The rows decide which round is the best and whether the run ends early,
so a resumed run reads them back first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from fedpilot.mediator.core.traffic import Flow

from ...config.schema import RunConfig
from ...core.planning.measured import PACE_ROUNDS
from ...core.rounds.stopping import Progress
from ...core.state import digest
from ..run_folder.folder import Checkpoint, RunFolder
from ..run_folder.write_behind import WriteBehind
from ..setup.global_model import GlobalModel


def model_of(checkpoint: Checkpoint) -> GlobalModel:
    """The global model in a checkpoint."""
    model = checkpoint.model
    return GlobalModel(checkpoint.round_number, model, checkpoint.memory, digest(model))


class RoundLog:
    """The log of one attempt at a run."""

    def __init__(self, config: RunConfig, folder: RunFolder, identity: str) -> None:
        self._config = config
        self._folder = folder
        self._identity = identity
        self._saved_round = -1
        self._last_round = 0
        """The last one with a row."""
        self._held: Collection[int] = ()
        self._latest: deque[Mapping[str, Any]] = deque(maxlen=PACE_ROUNDS)
        self.progress = self._nothing_yet()

    @property
    def latest(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the latest rounds, in their order."""
        return tuple(self._latest)

    def read_back(self) -> Checkpoint | None:
        """The checkpoint to continue an interrupted run from; drops the rows of later rounds."""
        checkpoint = self._folder.load_checkpoint()
        self._latest.clear()
        if checkpoint is None:
            self._folder.rewind(0)
            return None
        for row in self._folder.rewind(checkpoint.round_number):
            self._judge(row)
            self._latest.append(row)
        self._saved_round = self._last_round = checkpoint.round_number
        return checkpoint

    def hold(self, rounds: Collection[int]) -> None:
        """From now on keep the checkpoints of these rounds beside the last two."""
        self._held = rounds

    def go_back(self, round_number: int) -> GlobalModel:
        """Drop all later rounds; returns the model in the checkpoint of this one."""
        self.flush()
        self._folder.drop_checkpoints_after(round_number)
        self.progress = self._nothing_yet()
        checkpoint = self.read_back()
        assert checkpoint is not None
        return model_of(checkpoint)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write records while the context is open; flush them at its end."""
        with closing(WriteBehind()) as self._writes:
            yield

    def flush(self) -> None:
        """Wait until everything is written."""
        self._writes.flush()

    def add(self, row: dict[str, Any], model: GlobalModel) -> None:
        """Record a round's row, to which it adds the best round so far, and its model."""
        is_best, self._last_round = self._judge(row), model.round_number
        if self.progress.best_round:
            row |= {"best": self.progress.best, "best_round": self.progress.best_round}
        self._latest.append(row)
        if is_best:
            self._writes.put(partial(self._save_model, "best", model), instead_of="best")
        self._writes.put(partial(self._folder.append_row, row))

    def add_clients(self, round_number: int, digests: Mapping[str, Mapping[str, str]]) -> None:
        """Record digests of clients' models after a round."""
        self._writes.put(partial(self._folder.append_clients, round_number, digests))

    def add_traffic(
        self, flows: Sequence[tuple[Flow, int]], written: Callable[[], None] | None
    ) -> None:
        """Record bytes that crossed; `written` is called once they are in the folder."""
        traffic = [
            (flow.round_number, flow.site, flow.direction, flow.purpose, nbytes)
            for flow, nbytes in flows
        ]
        self._writes.put(partial(self._folder.append_traffic, traffic))
        if written is not None:
            self._writes.put(written)

    def checkpoint(self, model: GlobalModel) -> None:
        """Save everything that a resume needs after this round, unless it is saved."""
        if model.round_number == self._saved_round:
            return
        checkpoint = Checkpoint(
            model.round_number, self._identity, dict(model.state), dict(model.memory)
        )
        save = partial(self._folder.save_checkpoint, checkpoint, self._held)
        self._writes.put(save, instead_of="checkpoint")
        self._saved_round = model.round_number

    def end(self, model: GlobalModel) -> None:
        """Save the last model, and wait until everything is written.

        A model whose round was dropped meanwhile, as the run went back, is not saved.
        """
        if model.round_number <= self._last_round:
            self.checkpoint(model)
            self._writes.put(partial(self._folder.prune_checkpoints, self._held))
            self._writes.put(partial(self._save_model, "model", model))
        self._writes.flush()

    def _nothing_yet(self) -> Progress:
        stopping = self._config.evaluation.early_stopping
        return Progress(
            metric=self._config.evaluation.metric,
            patience=stopping.patience if stopping else None,
            min_delta=stopping.min_delta if stopping else 0.0,
            target=stopping.target if stopping else None,
        )

    def _judge(self, row: Mapping[str, Any]) -> bool:
        """Include a row's evaluation; return whether it is the best so far."""
        metric = self._config.evaluation.metric
        if metric not in row:
            return False
        value = math.nan if row[metric] is None else row[metric]
        self.progress = self.progress.after(row["round"], value)
        return self.progress.best_round == int(row["round"])

    def _save_model(self, name: str, model: GlobalModel) -> None:
        self._folder.save_model(name, model.state, model.round_number)
