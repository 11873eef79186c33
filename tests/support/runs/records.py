"""Runs that were recorded, for the tests of `runs verify`: verified, spoilt and nudged."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import Lab
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from fedpilot.federated.core.state import digest
from fedpilot.federated.engine.trainers.sequential import SequentialTrainer
from fedpilot.federated.federation.coordinator.coordinator import Coordinator
from fedpilot.federated.federation.run_folder.write_behind import WriteBehind
from fedpilot.federated.federation.setup.global_model import GlobalModel
from fedpilot.federated.federation.verify import (
    Replay,
    TextReport,
    Tools,
    Verification,
    document,
    verify,
)


@contextmanager
def written_at_once() -> Iterator[None]:
    """Runs in here write every checkpoint, however fast their rounds are."""
    put = WriteBehind.put

    def at_once(self: WriteBehind, *write: Any, **options: Any) -> None:
        put(self, *write, **options)
        self.flush()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteBehind, "put", at_once)
        yield


class Archive(Lab):
    """Runs kept under a name, and `verify` over them."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        super().__init__(folder, undo)
        self.told: list[str] = []
        self.clusters: list[FakeCluster] = []

    def make(self, config: Any, search: Any = ()) -> Federation:
        cluster = FakeCluster([fake_machine("a", CPU=8)])
        self.clusters.append(cluster)
        return Federation(config, search=search, cluster=cluster)

    def record(self, run_id: str, search: tuple[str, ...] = (), **keys: Any) -> Path:
        with self.make(self.config(**keys), search) as federation:
            return federation.run(run_id=run_id).folder

    @property
    def tools(self) -> Tools:
        return Tools(
            make=self.make, tell=lambda what, done, of: self.told.append(what), hold=nullcontext
        )

    def verify(self, *runs: str, how: Replay = Replay.LAST, clients: int = 10) -> Verification:
        self.text = io.StringIO()
        before = {run: snapshot(self.runs / run) for run in runs}
        say = TextReport(self.text, clients)
        found = verify(self.runs, runs, how=how, measured=clients, tools=self.tools, say=say)
        assert {run: snapshot(self.runs / run) for run in runs} == before, "nothing is written"
        assert all(cluster.groups() == () for cluster in self.clusters), "nothing is left"
        json.dumps(document(found, clients, 0), allow_nan=False)
        return found


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(path: Path, offset: int = -3) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(bytes(content))


def edit_rows(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_manifest(folder: Path, **facts: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def nudging(monkeypatch: pytest.MonkeyPatch, at_round: int, client: int | None = None) -> None:
    """Let a client's model, or the global one, come out a little off in a round."""
    if client is None:
        step = Coordinator.step

        def wrong(self: Coordinator, model: GlobalModel) -> tuple[dict[str, Any], GlobalModel]:
            row, new = step(self, model)
            if new.round_number == at_round:
                new.state["0.bias"][0] += np.float32(1e-3)  # type: ignore[index]
                new = GlobalModel(new.round_number, new.state, new.memory, digest(new.state))
                row["model"] = new.digest
            return row, new

        monkeypatch.setattr(Coordinator, "step", wrong)
        return
    train = SequentialTrainer.train

    def other(self: Any, chunk: Any, round_number: int, *rest: Any) -> Iterator[Any]:
        for index, trained in zip(
            chunk.clients.tolist(), train(self, chunk, round_number, *rest), strict=False
        ):
            if index == client and round_number == at_round:
                trained.tensors["0.bias"].add_(1e-3)
            yield trained

    monkeypatch.setattr(SequentialTrainer, "train", other)
