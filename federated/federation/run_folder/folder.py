"""RunFolder: all that a run leaves behind, in one folder that a kill cannot corrupt.

    runs/<run-id>/
      config.yaml           as resolved           manifest.json    versions, hardware, digests
      metrics.jsonl, .csv   a row per round       traffic.csv      bytes per round and site
      plan.json             what a round costs
      model.safetensors     the last model        best.safetensors the best one
      checkpoints/          the last two          journal/         the round in flight
      curves.png            loss and accuracy     tensorboard/     when asked for
      failure.txt           why it failed         output.log       what clients printed

Rows are appended and files replaced whole; readers ignore a row cut short.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from fedpilot.common.host.whole_files import replacing

from ...core.state import Array, State, under
from ...engine.tensor_files import read_tensors, write_tensors
from ...errors import RunRefused
from ..events import Event

FORMAT = 1
CHECKPOINTS_KEPT = 2
FAILURE = "failure.txt"
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
METRIC_COLUMNS = (
    "round",
    "accuracy",
    "loss",
    "node_accuracy",
    "worst_node_accuracy",
    "best",
    "best_round",
    "train_loss",
    "learning_rate",
    "consensus_distance",
    "clients",
    "samples",
    "refused",
    "late",
    "seconds",
    "training_seconds",
    "clients_per_second",
    "model",
    "time",
)
TRAFFIC_COLUMNS = ("round", "site", "direction", "purpose", "bytes")


def new_run_id(name: str) -> str:
    """A unique run id: name, time, and a random part."""
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The federation after some round."""

    round_number: int
    identity: str
    model: dict[str, Array]
    memory: dict[str, Array]


def check_free(root: Path, run_id: str) -> None:
    """Raise RunRefused if another run has the id now; it may still be taken later."""
    if (path := root / check_run_id(run_id)).exists():
        raise _taken(path)


def _taken(path: Path) -> RunRefused:
    return RunRefused(f"{path} exists already; choose another run id")


class RunFolder:
    """A run's folder, locked while this object is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.journal = path / "journal"
        self._lock: int | None = None

    @classmethod
    def create(
        cls,
        root: Path,
        run_id: str,
        config_yaml: str,
        fill: Callable[[Self], None] = lambda folder: None,
    ) -> Self:
        """Make and lock the folder of a new run; raises RunRefused if there is one already.

        `fill` writes the run's first files. The folder counts as a run once they are complete.
        """
        path = root / check_run_id(run_id)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise _taken(path) from None
        except OSError as error:
            raise RunRefused(f"{path} cannot be made: {error.strerror or error}") from error
        for name in ("checkpoints", "journal"):
            (path / name).mkdir()
        folder = cls(path)
        folder._take_lock()
        try:
            fill(folder)
            replace_text(path / "config.yaml", config_yaml)
        except BaseException:
            folder.discard()
            raise
        return folder

    def write_config(self, config_yaml: str) -> None:
        """Replace the resolved config after more of it was resolved."""
        replace_text(self.path / "config.yaml", config_yaml)

    @classmethod
    def open(cls, root: Path, run_id: str) -> Self:
        """Lock the folder of an earlier run; RunRefused if there is none, or it is running."""
        path = root / check_run_id(run_id)
        if not (path / "config.yaml").is_file():
            raise RunRefused(f"no run {run_id!r} in {root}; the latest there: {_latest(root)}")
        folder = cls(path)
        folder._take_lock()
        try:
            folder.known_manifest()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def locked(cls, path: Path) -> Self:
        """Lock a run of any format exclusively; RunRefused if it is running or being read."""
        folder = cls(path)
        folder._take_lock()
        return folder

    @classmethod
    def reading(cls, path: Path) -> Self:
        """Lock an earlier run for reading, shared, without a write; RunRefused if it is running."""
        folder = cls(path)
        if (path / ".lock").exists():
            folder._take_lock(os.O_RDONLY, fcntl.LOCK_SH)
        return folder

    def _take_lock(self, flags: int = os.O_CREAT | os.O_RDWR, kind: int = fcntl.LOCK_EX) -> None:
        self._lock = os.open(self.path / ".lock", flags, 0o644)
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise RunRefused(f"run {self.run_id} is being run by another process") from None

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def discard(self) -> None:
        """Remove the folder of a run that never began."""
        self.close()
        shutil.rmtree(self.path)

    # -- manifest -----------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        """The run's facts; empty before the first write."""
        path = self.path / "manifest.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def known_manifest(self) -> dict[str, Any]:
        """The manifest; raises RunRefused for a folder of another format."""
        found = self.manifest()
        if (written := found.get("format", FORMAT)) != FORMAT:
            raise RunRefused(
                f"{self.path} has format {written}, this fedpilot reads {FORMAT}: use the version "
                "of fedpilot that made it"
            )
        return found

    def update_manifest(self, **facts: Any) -> None:
        """Add or replace facts."""
        self.replace_manifest({"format": FORMAT, "run_id": self.run_id} | self.manifest() | facts)

    def replace_manifest(self, facts: Mapping[str, Any]) -> None:
        """Replace all facts by these."""
        replace_text(self.path / "manifest.json", json.dumps(dict(facts), indent=2) + "\n")

    # -- the user's code ----------------------------------------------------------------------

    def write_failure(self, trace: str) -> None:
        """Keep the traceback of the error that ended the run."""
        replace_text(self.path / FAILURE, trace if trace.endswith("\n") else f"{trace}\n")

    def failure(self) -> str:
        """The traceback of the error that ended the run; empty if there was none."""
        path = self.path / FAILURE
        return path.read_text() if path.exists() else ""

    def forget_failure(self) -> None:
        """Remove the traceback, as the run goes on."""
        (self.path / FAILURE).unlink(missing_ok=True)

    def keep_output(self, event: Event) -> None:
        """Observe a run and keep its clients' output, each line with its client."""
        if event.name != "clients_printed":
            return
        said = event.fields
        with (self.path / "output.log").open("a") as file:
            for client, text in zip(said["clients"], said["texts"], strict=True):
                for line in text.split("\n"):
                    file.write(f"round {said['round']} {client}: {line}\n")

    # -- rows ---------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of the rounds so far; an incomplete last line is ignored."""
        return [json.loads(line) for line in whole_lines(self.path / "metrics.jsonl")]

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Add a round's metrics."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def append_clients(self, round_number: int, digests: Mapping[str, Mapping[str, str]]) -> None:
        """Add digests of the clients' models after a round."""
        with (self.path / "clients.jsonl").open("a") as file:
            for client in sorted(digests):
                line = {"round": round_number, "client": client, "tensors": digests[client]}
                file.write(json.dumps(line) + "\n")

    def rewind(self, last_round: int) -> list[dict[str, Any]]:
        """Drop the rows and client digests of rounds after `last_round`, which will run again.

        Bytes of those rounds stay in the traffic table: they did cross.
        """
        self._mend_traffic()
        for path in (self.path / "clients.jsonl", self.path / "metrics.jsonl"):
            if path.exists():
                lines = whole_lines(path)
                kept = [line for line in lines if json.loads(line)["round"] <= last_round]
                replace_text(path, "".join(kept))
        return self.rows()

    def write_csv(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows to metrics.csv."""
        with replacing(self.path / "metrics.csv") as aside, aside.open("w", newline="") as file:
            writer = csv.DictWriter(file, METRIC_COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)

    def append_traffic(self, rows: Iterable[Sequence[object]]) -> None:
        """Add bytes per (round, site, direction, purpose)."""
        path = self.path / "traffic.csv"
        fresh = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(TRAFFIC_COLUMNS)
            writer.writerows(rows)

    def traffic(self) -> list[tuple[int, str, str, str, int]]:
        """Rows of the traffic table: round, site, direction, purpose, bytes."""
        path = self.path / "traffic.csv"
        if not path.exists():
            return []
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) == len(TRAFFIC_COLUMNS)]
        return [
            (int(number), site, direction, purpose, int(nbytes))
            for number, site, direction, purpose, nbytes in rows[1:]
        ]

    def _mend_traffic(self) -> None:
        """Drop a row that was cut short."""
        path = self.path / "traffic.csv"
        if path.exists():
            header = ",".join(TRAFFIC_COLUMNS)
            whole = [
                line[:-1].rstrip("\r")
                for line in whole_lines(path)
                if line.count(",") == len(TRAFFIC_COLUMNS) - 1
            ]
            replace_text(path, "\n".join([header, *whole[1:], ""]))

    def write_round_under_way(
        self, round_number: int, sites: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Record the most that a round may cost, by site and direction, before it sends orders."""
        told = {"format": FORMAT, "round": round_number, "sites": sites}
        replace_text(self._under_way, json.dumps(told) + "\n")

    def round_under_way(self) -> tuple[int, dict[str, dict[str, int]]] | None:
        """The round under way when a process was killed, and the most it may have cost."""
        if not self._under_way.exists():
            return None
        told = json.loads(self._under_way.read_text())
        return told["round"], told["sites"]

    def forget_round_under_way(self) -> None:
        """Drop that record: the table has the cost."""
        self._under_way.unlink(missing_ok=True)

    @property
    def _under_way(self) -> Path:
        return self.journal / "traffic.json"

    def write_absent_sites(self, sites: Collection[str]) -> None:
        """Record the sites that are reported as lost or drained, and not yet as returned."""
        self.journal.mkdir(exist_ok=True)
        told = {"format": FORMAT, "sites": sorted(sites)}
        replace_text(self._absent_sites, json.dumps(told) + "\n")

    def absent_sites(self) -> set[str]:
        """The sites that are reported as lost or drained, and not yet as returned."""
        if not self._absent_sites.exists():
            return set()
        return set(json.loads(self._absent_sites.read_text())["sites"])

    @property
    def _absent_sites(self) -> Path:
        return self.journal / "absent_sites.json"

    # -- models -------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: Checkpoint, held: Collection[int] = ()) -> None:
        """Write a checkpoint, then remove all but the last two and those of the rounds `held`."""
        tensors = {f"model/{name}": array for name, array in checkpoint.model.items()}
        tensors |= {f"server/{name}": array for name, array in checkpoint.memory.items()}
        header = {
            "format": FORMAT,
            "round": checkpoint.round_number,
            "identity": checkpoint.identity,
        }
        write_tensors(self._checkpoint_path(checkpoint.round_number), tensors, header)
        self.prune_checkpoints(held)

    def prune_checkpoints(self, held: Collection[int] = ()) -> None:
        """Remove all checkpoints but the last two and those of the rounds `held`."""
        for number in self.checkpoints()[:-CHECKPOINTS_KEPT]:
            if number not in held:
                self._checkpoint_path(number).unlink(missing_ok=True)

    def drop_checkpoints_after(self, round_number: int) -> None:
        """Remove later checkpoints, the newest first, so that a kill leaves a run to resume."""
        for number in reversed(self.checkpoints()):
            if number > round_number:
                self._checkpoint_path(number).unlink(missing_ok=True)

    def load_checkpoint(self) -> Checkpoint | None:
        numbers = self.checkpoints()
        return read_checkpoint(self._checkpoint_path(numbers[-1])) if numbers else None

    def save_model(self, name: str, state: State, round_number: int) -> None:
        """Write `model` or `best`, with its round."""
        path = self.path / f"{name}.safetensors"
        write_tensors(path, state, {"format": FORMAT, "round": round_number}, durable=True)

    def _checkpoint_path(self, round_number: int) -> Path:
        return self.path / "checkpoints" / f"round-{round_number:06d}.safetensors"

    def checkpoints(self) -> list[int]:
        """The rounds that have a checkpoint: the last two, and those that replicas hold."""
        found = (self.path / "checkpoints").glob("round-*.safetensors")
        return sorted(int(m[1]) for p in found if (m := re.fullmatch(r"round-(\d+)", p.stem)))


def whole_lines(path: Path) -> list[str]:
    """The complete lines of a file, if it exists."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith("\n")]


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint's content; raises RunRefused if the file is none."""
    header, tensors = read_tensors(path)
    if header.get("format") != FORMAT or not {"round", "identity"} <= header.keys():
        raise RunRefused(f"{path} is no checkpoint of format {FORMAT}")
    return Checkpoint(
        header["round"],
        header["identity"],
        under("model/", tensors),
        under("server/", tensors),
    )


def list_runs(root: Path) -> list[str]:
    """Ids of a folder's runs, oldest first."""
    if not root.is_dir():
        return []
    runs = [path.parent for path in root.glob("*/config.yaml")]
    return [path.name for path in sorted(runs, key=lambda p: (_started(p), p.name))]


def find_run(root: Path, run: str, *, path_first: bool = False) -> Path:
    """The folder of a run, by its id in `root` or by its path; RunRefused if there is none."""
    places = (root / run, Path(run))
    for path in reversed(places) if path_first else places:
        if any((path / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
            return path.resolve()
    raise RunRefused(
        f"no run {run!r} in {root}, and no such run folder; the latest there: {_latest(root)}"
    )


def _latest(root: Path) -> str:
    return ", ".join(list_runs(root)[-5:]) or "none"


def remove_run(root: Path, run_id: str) -> None:
    """Remove a run's folder; raises RunRefused if it does not exist or is running.

    The folder is renamed first, so a kill leaves no half of a run.
    """
    path = root / check_run_id(run_id)
    if not (path / "config.yaml").is_file():
        raise RunRefused(f"there is no run {run_id} in {root}/")
    with RunFolder.locked(path):
        aside = root / f".removed-{run_id}.{secrets.token_hex(4)}"
        path.rename(aside)
    shutil.rmtree(aside)


def _started(path: Path) -> str:
    return str(RunFolder(path).manifest().get("started", ""))


def check_run_id(run_id: str) -> str:
    """Return the id; raises RunRefused for an invalid one."""
    if not re.fullmatch(RUN_ID, run_id):
        raise RunRefused(
            f"{run_id!r} cannot be the id of a run: letters, digits, dots, dashes and underscores "
            "can, beginning with a letter or a digit, 128 at most"
        )
    return run_id


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically: a kill leaves the old one or the new one."""
    with replacing(path) as aside:
        aside.write_text(text)


def is_locked(path: Path) -> bool:
    """Whether a process is running this run now."""
    try:
        with RunFolder(path) as folder:
            folder._take_lock(os.O_RDWR)
    except RunRefused:
        return True
    except OSError:
        pass  # no run has begun there
    return False
