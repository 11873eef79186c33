"""Checks a run folder without training: whether its rows, files and manifest agree.

Several witnesses state the model of a round: its row, the table, the manifest, and each file that
holds it. The row is right unless it has no support and at least two others agree on another model.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from fedpilot.common.text.amounts import listed
from fedpilot.common.text.names import is_digest

from ..rounds.stopping import Progress
from .environment_diff import DECIDES_BITS
from .state_differences import TensorDifference

ROWS, TABLE, MANIFEST = "metrics.jsonl", "metrics.csv", "manifest.json"
LAST, BEST = "model.safetensors", "best.safetensors"
EXACT = (
    "clients",
    "samples",
    "refused",
    "late",
    "train_loss",
    "learning_rate",
    "consensus_distance",
    "accuracy",
    "loss",
    "node_accuracy",
    "worst_node_accuracy",
)
"""Row fields with the same bits on every machine and at any time."""
ENDED = ("finished", "interrupted", "failed")
"""Manifest states of runs that wrote their last files; a killed run stays `running`."""

WHOLE = ("finished", "interrupted")
"""States in which all files must exist; a failed run may lack some, as when its disk was full."""


class FindingKind(StrEnum):
    """Kinds of faults."""

    UNREADABLE = "unreadable"
    """A file or a line that cannot be parsed."""
    MISSING = "missing"
    """A file, a row or a digest that should be there."""
    DIFFERENT = "different"
    """A statement that contradicts others."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a run folder."""

    kind: FindingKind
    file: str
    round_number: int | None
    text: str
    twin: str = ""
    """A file that holds the state which this one should hold."""
    tensors: tuple[TensorDifference, ...] = ()
    """Where it differs from that state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file with a model, as found."""

    name: str
    round_number: int | None
    """As in the file."""
    digest: str
    """SHA-256 of its tensors; empty if it cannot be read."""
    identity: str | None = None
    """As in the file, if it is a checkpoint."""
    memory: bool = False
    """Whether the server keeps more than the model."""
    problem: str = ""

    @property
    def is_checkpoint(self) -> bool:
        """Whether a run can continue from this file."""
        return self.identity is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The content of a run folder."""

    rows: tuple[Mapping[str, Any], ...]
    manifest: Mapping[str, Any]
    files: tuple[StateFile, ...]
    table: tuple[Mapping[str, str], ...] | None = None
    """The rows of metrics.csv, if the file exists."""
    unreadable: tuple[tuple[str, str], ...] = ()
    """(file, problem) of each unreadable file."""
    progress: Progress | None = None
    """The stopping state before the first round; None if the config cannot be read."""

    @property
    def rounds(self) -> int:
        return int(self.rows[-1].get("round", 0)) if self.rows else 0

    @property
    def finished(self) -> bool:
        """Whether all rounds ran; if not, the last one may be recorded in part."""
        return self.manifest.get("status") == "finished"

    @property
    def ended(self) -> bool:
        """Whether the run recorded its own end."""
        return self.manifest.get("status") in ENDED

    @property
    def closing_round(self) -> int:
        """The round of the run's last model."""
        said = self.manifest.get("rounds")
        return said if self.ended and isinstance(said, int) else self.rounds

    def digests(self) -> dict[int, str]:
        """Digest of each round's model from its row; round 0 from the manifest."""
        found = {
            row["round"]: row["model"]
            for row in self.rows
            if isinstance(row.get("round"), int) and is_digest(row.get("model"))
        }
        initial = self.manifest.get("initial_model")
        return ({0: initial} if is_digest(initial) else {}) | found

    def row(self, round_number: int) -> Mapping[str, Any]:
        """A round's row; empty if there is none."""
        return next((row for row in self.rows if row.get("round") == round_number), {})

    def sound_files(self) -> list[StateFile]:
        """Files that hold the model that their round's row states."""
        digests = self.digests()
        return [
            file
            for file in self.files
            if file.digest
            and file.round_number is not None
            and digests.get(file.round_number) == file.digest
        ]


def check(record: Record) -> tuple[Finding, ...]:
    """All faults of a run folder; empty if everything agrees."""
    return (
        *(_unreadable(file, None, f"cannot be read: {why}") for file, why in record.unreadable),
        *(
            _unreadable(file.name, file.round_number, f"cannot be read: {file.problem}")
            for file in record.files
            if file.problem
        ),
        *_rows_in_order(record),
        *_witnesses(record),
        *_kept_files(record),
        *_best_rounds(record),
        *_table(record),
    )


_unreadable = partial(Finding, FindingKind.UNREADABLE)
_different = partial(Finding, FindingKind.DIFFERENT)
_missing = partial(Finding, FindingKind.MISSING)


def _rows_in_order(record: Record) -> Iterator[Finding]:
    """Check that rounds count from 1 without a gap, each with a digest."""
    expected = 1
    for row in record.rows:
        number = row.get("round")
        if number != expected:
            yield _missing(ROWS, expected, f"a row says round {number}, where {expected} follows")
            expected = number if isinstance(number, int) else expected
        if not is_digest(row.get("model")):
            found = _first_12(row["model"]) if row.get("model") else "nothing"
            yield _missing(ROWS, expected, f"no digest of the model, but {found}")
        expected += 1
    extra = record.rounds - record.closing_round
    if extra not in ((0,) if record.finished else (0, 1)):
        text = f"says {record.closing_round} rounds, the rows {record.rounds}"
        yield _different(MANIFEST, None, text)


def _witnesses(record: Record) -> Iterator[Finding]:
    """Find rounds whose witnesses do not all state the same model."""
    digests = record.digests()
    spoken: dict[int, dict[str, str]] = {}
    for file in record.files:
        if file.digest and file.round_number is not None:
            spoken.setdefault(file.round_number, {})[file.name] = file.digest
    last = record.manifest.get("digest")
    if record.ended and is_digest(last):
        spoken.setdefault(record.closing_round, {})[MANIFEST] = str(last)
    for line in record.table or () if record.ended else ():
        if line.get("round", "").isdecimal() and line.get("model"):
            spoken.setdefault(int(line["round"]), {})[TABLE] = line["model"]
    for number, said_by in sorted(spoken.items()):
        row = digests.get(number)
        if row is None:
            if record.ended and 0 < number <= record.rounds + record.finished:
                names = listed(list(said_by))
                yield _missing(ROWS, number, f"no digest of the model, of which {names} speak")
        elif (agreed := _other_than(row, said_by)) is not None:
            names = listed([name for name, said in said_by.items() if said == agreed])
            text = f"says model {_first_12(row)}, where {names} say {_first_12(agreed)}"
            yield _different(ROWS if number else MANIFEST, number, text)
        else:
            yield from _against(number, row, said_by, digests, record)


def _other_than(row: str, said_by: Mapping[str, str]) -> str | None:
    """The model on which at least two witnesses agree when none supports the row."""
    if row in said_by.values() or not said_by:
        return None
    ((said, times),) = Counter(said_by.values()).most_common(1)
    return said if times >= 2 else None


def _against(
    number: int,
    row: str,
    said_by: Mapping[str, str],
    digests: Mapping[int, str],
    record: Record,
) -> Iterator[Finding]:
    """Find witnesses that state another model than the row."""
    twin = next((f.name for f in record.sound_files() if f.round_number == number), "")
    for name, said in said_by.items():
        if said == row:
            continue
        where = f"the row of round {number}" if number else "manifest.json"
        if name in (MANIFEST, TABLE):
            yield _different(
                name,
                number,
                f"says model {_first_12(said)}, {where} {_first_12(row)}",
            )
            continue
        other = next((n for n, d in digests.items() if d == said), None)
        which = "" if other is None else f", the model of round {other}"
        text = f"holds {_first_12(said)}{which}; {where} says {_first_12(row)}"
        yield _different(name, number, text, twin)


def _kept_files(record: Record) -> Iterator[Finding]:
    """Check which files an ended run left, their rounds and their identity."""
    files = {file.name: file for file in record.files}
    identity = record.manifest.get("identity")
    for file in record.files:
        named = re.search(r"round-(\d+)", file.name)
        if file.problem or not file.is_checkpoint or named is None:
            continue
        if file.round_number != int(named[1]):
            text = f"says that it is of round {file.round_number}"
            yield _different(file.name, int(named[1]), text)
        if identity is not None and file.identity != identity:
            text = f"is of a run of identity {_first_12(file.identity or 'none')}"
            yield _different(file.name, file.round_number, f"{text}, not {_first_12(identity)}")
    if record.manifest.get("status") not in WHOLE:
        return
    end = record.closing_round
    best_round = record.rows[-1].get("best_round", 0) if record.rows else 0
    # An interrupted run may have trained a round that has no row yet.
    unrecorded = None if record.finished else record.rounds + 1
    for name, number in ((LAST, end), (BEST, best_round)):
        kept = files.get(name)
        if kept is None:
            if number or name == LAST:
                yield _missing(name, number, f"is not there; it should hold round {number}")
        elif not kept.problem and kept.round_number not in (number, unrecorded):
            text = f"says that it is of round {kept.round_number}; it should be of round {number}"
            yield _different(name, number, text)
    name = f"checkpoints/round-{end:06d}.safetensors"
    if name not in files and end not in [f.round_number for f in record.files if f.is_checkpoint]:
        yield _missing(name, end, "is not there; a run ends with a checkpoint")


def _best_rounds(record: Record) -> Iterator[Finding]:
    """Check that `best` and `best_round` follow from the rounds' evaluations."""
    progress = record.progress
    numbers = [row.get("round") for row in record.rows]
    if progress is None or numbers != list(range(1, len(numbers) + 1)):
        return
    for number, row in enumerate(record.rows, start=1):
        if progress.metric in row:
            value = row[progress.metric]
            progress = progress.after(number, math.nan if value is None else value)
        expected = (progress.best, progress.best_round) if progress.best_round else (None, None)
        found = (row.get("best"), row.get("best_round"))
        if found != expected:
            text = (
                f"says best {found[0]} in round {found[1]}; by {progress.metric} it is "
                f"{expected[0]} in round {expected[1]}"
            )
            yield _different(ROWS, number, text)
            return


def _table(record: Record) -> Iterator[Finding]:
    """Check metrics.csv against the rows, except for times."""
    if record.table is None or not record.ended:
        return
    if len(record.table) != len(record.rows):
        lines, rows = len(record.table), len(record.rows)
        yield _different(TABLE, None, f"has {lines} rounds, {ROWS} {rows}")
    for line in record.table:
        row = next((row for row in record.rows if str(row.get("round")) == line.get("round")), {})
        for name in EXACT if row else ():
            said = "" if row.get(name) is None else str(row[name])
            if line.get(name, said) != said:
                text = f"says {name} {line[name] or 'nothing'}, {ROWS} {said or 'nothing'}"
                yield _different(TABLE, row["round"], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproducibility:
    """Whether a run can be trained again here, and what prevents it."""

    reasons: tuple[str, ...] = ()

    @property
    def reproducible(self) -> bool:
        """Whether nothing prevents it."""
        return not self.reasons


def standing(
    recorded: Mapping[str, Any], *, identity: str, code: str, data: str, graph: str, initial: str
) -> Reproducibility:
    """Compare a manifest with now; `identity` is of config.yaml with what the manifest records."""
    reasons = []
    if "identity" not in recorded:
        reasons.append(f"{MANIFEST} records no identity")
    elif recorded["identity"] != identity:
        reasons.append("config.yaml is not what was run, or another version of fedpilot ran it")
    found = {"code": code, "data": data}
    if "graph_digest" in recorded:
        found["graph"] = graph
    for name, now in found.items():
        said = recorded.get(f"{name}_digest")
        if said != now:
            verb = "are" if name == "data" else "is"
            reasons.append(
                f"the {name} {verb} not what was run: {_first_12(said)}, now {_first_12(now)}"
            )
    said = recorded.get("initial_model")
    if not reasons and said != initial:
        text = f"{_first_12(said)}, now {_first_12(initial)}"
        reasons.append(f"the model of round 0 differs here: {text}")
    return Reproducibility(reasons=tuple(reasons))


def exact_differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The exact fields that differ between two rows of one round."""
    both = [name for name in EXACT if name in first and name in second]
    return {n: (first[n], second[n]) for n in both if first[n] != second[n]}


def environment_differences(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[str, str]]:
    """The facts that decide bits and differ between the workers of two runs."""
    said = {n: (_said(n, first), _said(n, second)) for n in (*DECIDES_BITS, "ray")}
    return {name: (a, b) for name, (a, b) in said.items() if a != b and a and b}


def _said(name: str, workers: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({str(worker[name]) for worker in workers if name in worker}))


def _first_12(value: object) -> str:
    return value[:12] if isinstance(value, str) else "nothing"
