"""Begins a new run at the end of an earlier one, with the bits of one run of the whole length.

`federation.rounds` is the total, and the only deciding key that may differ from the earlier run.
The new run gets a copy of everything that its next round needs: the model and the server's memory,
the rows with the stopping state, the clients' states, participation records and refusals. So the
earlier run may be removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ...config import differences, load_config
from ...config.schema import RunConfig
from ...errors import RunRefused
from ...site.states.client_states import ClientStates
from ..coordinator.client_sites import FILE as CLIENT_SITES
from ..coordinator.site_limits import FILE as REFUSALS
from ..run_folder.folder import Checkpoint, RunFolder

ROUNDS = "federation.rounds"
JUDGED = ("accuracy", "loss", "node_accuracy", "worst_node_accuracy")
BEST = ("best", "best_round")
CLIENTS = ".clients.sqlite"
COPIED = (REFUSALS, CLIENT_SITES, "round-*", "*.data.json")
"""From the journal: refusals, the sites of clients that keep states, records of the clients that
counted, the content of declared data."""


@dataclass(frozen=True, slots=True)
class Parent:
    """An earlier run whose folder is locked."""

    folder: RunFolder
    config: RunConfig
    manifest: Mapping[str, Any]
    checkpoint: Checkpoint

    @classmethod
    def of(cls, folder: RunFolder) -> Self:
        """Raises RunRefused for a run without a finished round, or of another format."""
        manifest, config = folder.known_manifest(), load_config(folder.path / "config.yaml")
        checkpoint = folder.load_checkpoint()
        if checkpoint is None:
            raise RunRefused(f"run {folder.run_id} has ended no round: there is nothing to go on")
        return cls(folder, config, manifest, checkpoint)

    def check(self, config: RunConfig, identity_of: Callable[[RunConfig], str]) -> None:
        """Raise RunRefused if a run by this config would not continue this one."""
        done, rounds = self.checkpoint.round_number, config.federation.rounds
        if rounds <= done:
            raise RunRefused(
                f"run {self.folder.run_id} has done {done} rounds, and {ROUNDS} is {rounds}, the "
                f"total: give more, such as --set {ROUNDS}={2 * done}"
            )
        if self.manifest.get("identity") == identity_of(with_rounds(config, self.config)):
            return
        changed = [each for each in differences(self.config, config) if not each.startswith(ROUNDS)]
        raise RunRefused(
            f"run {self.folder.run_id} cannot be gone on with, since this changed: "
            f"{'; '.join(changed) or 'its code or its data'}; only {ROUNDS} may, of what decides "
            "the result"
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The new run's facts about its origin."""
        return {
            "run_id": self.folder.run_id,
            "round": self.checkpoint.round_number,
            "identity": self.manifest.get("identity", ""),
        }

    def hand_on(self, config: RunConfig, identity: str, folder: RunFolder) -> None:
        """Copy what a new run needs of this one into its folder."""
        done = self.checkpoint.round_number
        rows = [row for row in self.folder.rows() if row["round"] <= done]
        kept = as_if_longer(rows, config)
        for row in kept:
            folder.append_row(row)
        folder.save_checkpoint(replace(self.checkpoint, identity=identity))
        for name in ("clients.jsonl", "traffic.csv", "model.safetensors"):
            _copy(self.folder.path / name, folder.path)
        if rows and rows[-1].get("best_round") == kept[-1].get("best_round"):
            _copy(self.folder.path / "best.safetensors", folder.path)
        for pattern in COPIED:
            for file in sorted(self.folder.journal.glob(pattern)):
                _copy(file, folder.journal)
        for file in sorted(self.folder.journal.glob(f"*{CLIENTS}")):
            with closing(ClientStates(file)) as states:
                states.copy(folder.journal / file.name)
            with closing(ClientStates(folder.journal / file.name)) as copied:
                copied.forget_after(done)


def with_rounds(config: RunConfig, other: RunConfig) -> RunConfig:
    """A config with the number of rounds of another."""
    federation = config.federation.model_copy(update={"rounds": other.federation.rounds})
    return config.model_copy(update={"federation": federation})


def as_if_longer(rows: Sequence[Mapping[str, Any]], config: RunConfig) -> list[dict[str, Any]]:
    """The rows of a run of the config's length, without evaluations due only at an earlier end."""
    made: list[dict[str, Any]] = []
    best: dict[str, Any] = {}
    for row in rows:
        if config.evaluation.is_due(row["round"], config.federation.rounds):
            best = {name: row[name] for name in BEST if name in row}
            made.append(dict(row))
            continue
        made.append({n: value for n, value in row.items() if n not in (*JUDGED, *BEST)} | best)
    return made


def _copy(file: Path, folder: Path) -> None:
    if file.is_file():
        shutil.copy2(file, folder / file.name)


def parent_of(manifest: Mapping[str, Any]) -> str:
    """Where a run began, in words; empty if it began at round 0."""
    told = manifest.get("parent")
    return f"{told['run_id']}, after round {told['round']}" if told else ""
