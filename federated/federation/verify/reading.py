"""Reads a run's record, corrupt or not, and writes nothing."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...config import RunConfig, differences, load_config
from ...core.proof.client_differences import ClientFacts
from ...core.proof.run_check import BEST, LAST, MANIFEST, ROWS, TABLE, Record, StateFile
from ...core.rounds.stopping import Progress
from ...core.state import State, digest
from ...engine.tensor_files import read_tensors
from ...errors import ConfigError, RunRefused
from ..run_folder.folder import RunFolder, read_checkpoint

CLIENTS = "clients.jsonl"
CONFIG = "config.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A run folder as found."""

    name: str
    path: Path
    record: Record
    config: RunConfig | None
    """None if config.yaml cannot be read."""

    @property
    def environment(self) -> list[Mapping[str, Any]]:
        """Facts of its workers."""
        return list(self.record.manifest.get("workers", ()))

    @property
    def is_stateless(self) -> bool:
        """Whether a round follows from its model alone: no server memory, no client memory."""
        kept = [file for file in self.record.files if file.is_checkpoint]
        return (
            self.config is not None
            and not self.config.clients_keep_states
            and not self.client_states()
            and bool(kept)
            and not any(file.memory for file in kept)
        )

    def client_states(self) -> list[Path]:
        """Files of clients' states between rounds."""
        return sorted((self.path / "journal").glob("*.clients.sqlite*"))

    def who_counted(self) -> list[Path]:
        """Participation records, where a clock decided, and files of late updates."""
        return sorted((self.path / "journal").glob("round-*"))

    def state(self, file: str) -> State:
        """The model in a file."""
        path = self.path / file
        if path.parent.name == "checkpoints":
            return read_checkpoint(path).model
        return read_tensors(path)[1]

    def state_of_round(self, round_number: int) -> State | None:
        """A round's model, if a file holds the model that its row states."""
        for file in self.record.sound_files():
            if file.round_number == round_number:
                return self.state(file.name)
        return None

    def clients(self, round_number: int) -> dict[str, ClientFacts]:
        """The recorded clients of a round; empty if none were."""
        path = self.path / CLIENTS
        return read_clients(path, round_number) if path.exists() else {}


@contextmanager
def reading(path: Path, name: str, overrides: Sequence[str] = ()) -> Iterator[Reading]:
    """Read a run folder and keep the run from continuing meanwhile; RunRefused if it runs.

    `overrides` change where and how it would be trained again, not what decides the bits.
    """
    with RunFolder.reading(path) as folder:
        found = _read(folder, name)
        if overrides and found.config is not None:
            config = load_config(path / CONFIG, overrides)
            if changed := differences(found.config, config):
                raise RunRefused(f"{name} would have other bits with {'; '.join(changed)}")
            found = replace(found, config=config)
        yield found


def _read(folder: RunFolder, name: str) -> Reading:
    unreadable: list[tuple[str, str]] = []

    @contextmanager
    def noting(file: str, *kinds: type[Exception]) -> Iterator[None]:
        try:
            yield
        except kinds as error:
            unreadable.append((file, str(error)))

    manifest: dict[str, Any] = {}
    config = table = None
    with noting(MANIFEST, ValueError):
        manifest = folder.known_manifest()
        if not manifest:
            unreadable.append((MANIFEST, "it is not there"))
    with noting(CONFIG, ConfigError, OSError):
        config = load_config(folder.path / CONFIG)
    rows = tuple(_rows(folder.path / ROWS, unreadable))
    with noting(TABLE, csv.Error):
        table = _table(folder.path / TABLE)
    record = Record(
        rows=rows,
        manifest=manifest,
        files=tuple(_state_files(folder.path)),
        table=table,
        unreadable=tuple(unreadable),
        progress=None if config is None else Progress(metric=config.evaluation.metric),
    )
    return Reading(name=name, path=folder.path, record=record, config=config)


def _rows(path: Path, unreadable: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """The readable rows; an incomplete last line is ignored."""
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            unreadable.append((ROWS, f"line {number}: {error}"))
            continue
        if isinstance(row, dict):
            yield row
        else:
            unreadable.append((ROWS, f"line {number} is no row"))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The complete lines of a file, numbered from 1; none if there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.endswith("\n"):
                yield number, line


def _table(path: Path) -> tuple[dict[str, str], ...] | None:
    if not path.exists():
        return None
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return tuple(
            {name: value or "" for name, value in line.items() if name is not None}
            for line in csv.DictReader(file)
        )


def _state_files(path: Path) -> Iterator[StateFile]:
    checkpoints = sorted((path / "checkpoints").glob("round-*.safetensors"))
    for file in (path / LAST, path / BEST, *checkpoints):
        if file.exists():
            yield _state_file(path, file)


def _state_file(path: Path, file: Path) -> StateFile:
    name, is_checkpoint = str(file.relative_to(path)), file.parent.name == "checkpoints"
    try:
        if is_checkpoint:
            found = read_checkpoint(file)
            return StateFile(
                name=name,
                round_number=found.round_number,
                digest=digest(found.model),
                identity=found.identity,
                memory=bool(found.memory),
            )
        header, model = read_tensors(file)
    except (RunRefused, ValueError) as error:
        why = str(error.__cause__ or error)
        return StateFile(name=name, round_number=None, digest="", problem=why)
    number = header.get("round")
    return StateFile(
        name=name,
        round_number=number if isinstance(number, int) else None,
        digest=digest(model),
    )


def read_clients(path: Path, round_number: int) -> dict[str, ClientFacts]:
    """A round's clients in `clients.jsonl`; the last line about a client counts.

    Lines are `{"round": 3, "client": "client_7", "tensors": {"0.weight": "<16 hex digits>"}}`, and
    may have the client's `samples`. RunRefused names an invalid line.
    """
    found: dict[str, ClientFacts] = {}
    for number, line in _lines(path):
        try:
            said = json.loads(line)
            if said["round"] != round_number:
                continue
            tensors = {str(name): str(digits) for name, digits in said["tensors"].items()}
            found[str(said["client"])] = ClientFacts(
                samples=said.get("samples"), fingerprints=tensors
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunRefused(f"{path}, line {number}, is no record of a client: {error}") from error
    return found
