"""Prints the result of `verify`: text for people, one JSON document for scripts, and progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedpilot.common.text.amounts import counted

from ...core.proof.client_differences import ClientComparison
from ...core.proof.run_check import Finding
from ...core.proof.run_comparison import Comparison, Verdict
from ...core.proof.state_differences import TensorDifference
from .one_run import Checked, Departure, Replayed
from .two_runs import Localised
from .verifying import Verification

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

GOOD, BAD, ASIDE = "✓", "✗", "!"
TENSORS_SHOWN = 10
TENSORS_OF_A_CLIENT = 3
INDENT = 12
"""Columns before the details of a line."""
LINES_APART_S = 10.0
PIPE_WIDTH = 120
"""Columns without a terminal."""


class TextReport:
    """Prints each part of the result as it arrives."""

    def __init__(self, stream: TextIO, clients: int) -> None:
        console = Console(file=stream, highlight=False)
        if not console.is_terminal:
            console = Console(file=stream, highlight=False, width=PIPE_WIDTH)
        self._console = console
        self._clients = clients
        self._names: list[str] = []

    def __call__(self, part: Checked | Replayed | Comparison | Localised | Verification) -> None:
        match part:
            case Checked():
                self._checked(part)
            case Replayed():
                self._replayed(part)
            case Comparison():
                self._compared(part)
            case Localised():
                self._localised(part)
            case Verification():
                self._summed_up(part)

    def _line(self, mark: str, name: str, text: str) -> None:
        style = {GOOD: "green", BAD: "red", ASIDE: "yellow"}.get(mark, "")
        self._console.print(
            Text.assemble((f"{mark:<2}", style), f"{name:<9} ", text), soft_wrap=True
        )

    def _note(self, text: str) -> None:
        self._line("", "", text)

    # -- one run ------------------------------------------------------------------------------

    def _checked(self, checked: Checked) -> None:
        record = checked.run.record
        self._names.append(checked.run.name)
        status = record.manifest.get("status", "unknown")
        if status == "running":
            status = "interrupted"  # no process runs it, or it could not be read
        rounds = counted(record.rounds, "round")
        self._console.print(Text(f"run {checked.run.name}: {status}, {rounds}", style="bold"))
        if not checked.findings:
            names = [file.name for file in record.files if not file.is_checkpoint]
            count = sum(file.is_checkpoint for file in record.files)
            files = ", ".join([*names, counted(count, "checkpoint")])
            self._line(GOOD, "record", f"every round names its model; {files} hold what it says")
        for finding in checked.findings:
            self._finding(finding)
        standing = checked.standing
        if standing is not None and standing.reproducible:
            identity = record.manifest.get("identity", "")
            text = f"{identity[:16]}: config, code and data are what was run"
            self._line(GOOD, "identity", text)
        for reason in standing.reasons if standing is not None else ():
            self._line(ASIDE, "identity", reason)

    def _finding(self, finding: Finding) -> None:
        number = "" if finding.round_number is None else f", round {finding.round_number}"
        self._line(BAD, "record", f"{finding.file}{number}: {finding.text}")
        if finding.twin:
            self._note(f"it differs from {finding.twin} in:")
        self._tensors(finding.tensors)

    def _replayed(self, replayed: Replayed) -> None:
        for finding in replayed.findings:
            text = f"{finding.file} differs from round {finding.round_number} as trained again in:"
            self._line(BAD, "replay", text)
            self._tensors(finding.tensors)
        for name, (then, now) in replayed.environment.items():
            self._line(ASIDE, "replay", f"it was trained with {name} {then}, here {now}")
        if replayed.not_done:
            self._line(ASIDE, "replay", f"nothing was trained again: {replayed.not_done}")
            return
        first = replayed.start + 1
        span = f"round {first}" if first == replayed.last else f"rounds {first} to {replayed.last}"
        where = f"the checkpoint of round {replayed.start}" if replayed.start else "the start"
        departure = replayed.departure
        if departure is None:
            self._line(GOOD, "replay", f"{span}, trained again from {where}: the same bits")
        else:
            self._departed(departure, where)

    def _departed(self, departure: Departure, where: str) -> None:
        number = departure.round_number
        recorded, here = (digest[:12] or "nothing" for digest in departure.models)
        if departure.model_differs:
            text = f"another model: {here}, recorded {recorded}"
        else:
            text = "the same model, judged differently"
        self._line(BAD, "replay", f"round {number}, trained again from {where}: {text}")
        self._metrics(departure.metrics, ("recorded", "trained again"))
        if departure.confirmed_by:
            names = ", ".join(departure.confirmed_by)
            self._note(f"as trained again it is in {names}; the row is what is wrong")
        elif departure.tensors is None:
            self._note(f"in which tensors is not known: the model of round {number} was not kept")
        else:
            self._tensors(departure.tensors)
        if departure.clients is not None:
            self._client_table(departure.clients, ("recorded", "trained again"))

    # -- two runs -----------------------------------------------------------------------------

    def _compared(self, compared: Comparison) -> None:
        self._console.print(Text("compared", style="bold"))
        if compared.same_identity:
            self._line(GOOD, "identity", "the same: config, code and data")
        for key in compared.keys:
            self._line(ASIDE, "config", key)
        for name, differs in (("code", compared.code_differs), ("data", compared.data_differs)):
            if differs:
                self._line(ASIDE, name, "not the same")
        for name, (one, other) in compared.environment.items():
            self._line(ASIDE, "workers", f"{name}: {one} -> {other}")
        self._line(GOOD if compared.agree else BAD, "models", _verdict(compared))
        self._metrics(compared.metrics, (self._names[0], self._names[1]))

    def _localised(self, found: Localised) -> None:
        number = found.round_number
        self._console.print(
            Text("the model of round 0" if number == 0 else f"round {number}", style="bold")
        )
        for name, reproduced in found.reproduced.items():
            if reproduced is not None:
                made = "made here" if number == 0 else "trained again here"
                said = "the recorded model" if reproduced else "not the recorded model"
                self._line(GOOD if reproduced else BAD, "here", f"{name}, {made}: {said}")
        for note in found.notes:
            self._line(ASIDE, "note", note)
        if found.tensors is None:
            text = "in which tensors they differ is not known: not both models are at hand"
            self._line("", "models", text)
        else:
            self._line("", "models", f"differ in {counted(len(found.tensors), 'tensor')}:")
            self._tensors(found.tensors)
        if found.clients is not None:
            self._client_table(found.clients, found.sides)

    def _summed_up(self, outcome: Verification) -> None:
        if outcome.failure is not None:
            self._line(BAD, "replay", f"training again ended early: {outcome.failure}")
        self._console.print(Text(summary(outcome), style="bold"), soft_wrap=True)

    # -- tables -------------------------------------------------------------------------------

    def _metrics(self, metrics: Mapping[str, tuple[Any, Any]], sides: tuple[str, str]) -> None:
        rows = [(name, str(one), str(other)) for name, (one, other) in metrics.items()]
        self._table(("metric", *sides), rows)

    def _tensors(self, tensors: Sequence[TensorDifference]) -> None:
        rows: list[Sequence[str]] = [_cells(each) for each in tensors[:TENSORS_SHOWN]]
        if (more := len(tensors) - TENSORS_SHOWN) > 0:
            rows.append([f"and {more:,} more"])
        self._table(("tensor", "elements", "by at most", ""), rows)

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if not rows:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("", width=INDENT - 2)
        for name in columns:
            table.add_column(name, overflow="fold")
        for cells in rows:
            table.add_row("", *(Text(cell) for cell in cells))
        self._console.print(table)

    def _client_table(self, clients: ClientComparison, sides: tuple[str, str]) -> None:
        for name, alone in zip(sides, (clients.only_first, clients.only_second), strict=True):
            if alone:
                text = f"only in {name}: {_some(alone, self._clients)}"
                self._line("", "clients", text)
        differing, compared = len(clients.differing), clients.compared
        if not differing:
            if compared:
                which = counted(compared, "client")
                text = f"none of {which} on both sides differs"
                if clients.same:
                    text += ": it is how their updates are put together"
                self._line("", "clients", text)
            return
        shown = clients.differing[: self._clients]
        text = (
            f"{differing:,} of {counted(compared, 'client')} differ, {sides[0]} against {sides[1]}"
        )
        more = "" if len(shown) == differing else f"; the first {len(shown)}"
        self._line("", "clients", f"{text}{more}:")
        rows: list[Sequence[str]] = []
        for client in shown:
            samples = list(dict.fromkeys(str(s) for s in client.samples if s is not None))
            ranked = sorted(client.tensors, key=lambda tensor: -(tensor.largest or 0.0))
            cells = [_cells(tensor) for tensor in ranked[:TENSORS_OF_A_CLIENT]]
            if (rest := len(ranked) - TENSORS_OF_A_CLIENT) > 0:
                cells.append((f"and {rest} more", "", "", ""))
            rows.append((client.client, " -> ".join(samples), *(cells[0] if cells else ())))
            rows += [("", "", *row) for row in cells[1:]]
        self._table(("client", "samples", "tensor", "elements", "by at most", ""), rows)


def _cells(difference: TensorDifference) -> tuple[str, str, str, str]:
    count, largest = difference.differing, difference.largest
    elements = "" if count is None else f"{count:,} of {difference.elements:,}"
    at_most = "" if largest is None else f"{largest:.3g}"
    return difference.name, elements, at_most, difference.remark


def _some(names: Sequence[str], most: int) -> str:
    more = "" if len(names) <= most else f" and {len(names) - most:,} more"
    return ", ".join(names[:most]) + more


def _verdict(compared: Comparison) -> str:
    least, number = min(compared.rounds), compared.round_number
    match compared.verdict:
        case Verdict.SAME:
            return f"the same in all {counted(least, 'round')}"
        case Verdict.SAME_SO_FAR:
            longer = " and ".join(str(rounds) for rounds in compared.rounds)
            return f"the same in the {counted(least, 'round')} that both have (of {longer})"
        case Verdict.OTHER_METRICS:
            return (
                f"the same in {counted(least, 'round')}, judged differently from round {number} on"
            )
        case Verdict.UNKNOWN:
            return f"cannot be compared from round {number} on: a digest is missing"
        case Verdict.PARTED if number == 0:
            return "not the same from the start: the runs begin with other models"
        case Verdict.PARTED:
            before = "the initial one" if number == 1 else f"round {compared.same_until}"
            return f"the same up to {before}; from round {number} on they differ"


def summary(outcome: Verification) -> str:
    """The result in one sentence."""
    if outcome.comparison is not None:
        names = " and ".join(checked.run.name for checked in outcome.checks)
        spoilt = [checked.run.name for checked in outcome.checks if checked.findings]
        if not outcome.comparison.agree:
            number = outcome.comparison.round_number
            verb = "differ in" if not outcome.comparison.parted else "part at"
            return f"{names} {verb} round {number}"
        if spoilt:
            return f"{names} agree, but what {' and '.join(spoilt)} left behind is spoilt"
        return f"{names} agree"
    (checked,) = outcome.checks
    name, replayed = checked.run.name, outcome.replayed
    if outcome.differs:
        why = "trained again, it is another run"
        if checked.findings:
            why = "what it left behind is spoilt"
        return f"{name} is not verified: {why}"
    if outcome.failure is not None:
        return f"{name} could not be trained again"
    if outcome.refused:
        return f"{name} cannot be trained again here; what it left behind fits together"
    if replayed is None or replayed.not_done:
        return f"{name} is verified without training: what it left behind fits together"
    return f"{name} is verified"


def document(outcome: Verification, clients: int, exit_code: int) -> dict[str, Any]:
    """The result as JSON values, always with all keys."""
    replayed, compared, localised = outcome.replayed, outcome.comparison, outcome.localised
    return {
        "runs": [checked.run.name for checked in outcome.checks],
        "summary": summary(outcome),
        "exit_code": exit_code,
        "checks": [_check_json(checked) for checked in outcome.checks],
        "replay": replayed and _replay_json(replayed, clients),
        "comparison": compared and {**_fields(compared), "agree": compared.agree},
        "round": localised and _with_clients(localised, clients),
        "failure": None if outcome.failure is None else str(outcome.failure),
    }


def _fields(record: DataclassInstance) -> dict[str, Any]:
    """A record's fields as JSON values; `round_number` is called `round`."""
    return asdict(record, dict_factory=_renamed)


def _renamed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {"round" if name == "round_number" else name: value for name, value in pairs}


def _with_clients(found: Departure | Localised, most: int) -> dict[str, Any]:
    shown = found.clients and _clients_json(found.clients, most)
    return {**_fields(replace(found, clients=None)), "clients": shown}


def _check_json(checked: Checked) -> dict[str, Any]:
    record, standing = checked.run.record, checked.standing
    return {
        "run": checked.run.name,
        "folder": str(checked.run.path),
        "status": record.manifest.get("status"),
        "rounds": record.rounds,
        "identity": record.manifest.get("identity"),
        "digest": record.digests().get(record.rounds),
        "files": [file.name for file in record.files],
        "findings": [_finding_json(finding) for finding in checked.findings],
        "reproducible": None if standing is None else standing.reproducible,
        "reasons": [] if standing is None else list(standing.reasons),
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {**_fields(finding), "twin": finding.twin or None}


def _replay_json(replayed: Replayed, clients: int) -> dict[str, Any]:
    departure = replayed.departure
    return {
        "from_round": replayed.start,
        "to_round": replayed.last,
        "not_done": replayed.not_done or None,
        "environment": dict(replayed.environment),
        "findings": [_finding_json(finding) for finding in replayed.findings],
        "departure": departure and _with_clients(departure, clients),
    }


def _clients_json(found: ClientComparison, most: int) -> dict[str, Any]:
    return {
        "compared": found.compared,
        "differing": len(found.differing),
        "only_first": list(found.only_first[:most]),
        "only_first_count": len(found.only_first),
        "only_second": list(found.only_second[:most]),
        "only_second_count": len(found.only_second),
        "shown": [_fields(each) for each in found.differing[:most]],
    }


class ProgressLine:
    """Progress of training again: a bar on a terminal, elsewhere a line now and then."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(file=stream, highlight=False)
        self._clock = clock
        self._told = clock()
        self._bar: Progress | None = None

    def __call__(self, what: str, done: int, of: int) -> None:
        """Report progress; `of` is 0 if the total is unknown."""
        if self._console.is_interactive and not self._console.is_dumb_terminal:
            self._draw(what, done, of)
        elif self._clock() - self._told >= LINES_APART_S:
            self._told = self._clock()
            self._console.print(f"{what}: {done} of {of}" if of else what)

    def _draw(self, what: str, done: int, of: int) -> None:
        if self._bar is None:
            columns = (TextColumn("… {task.description}"), BarColumn(32), MofNCompleteColumn())
            self._bar = Progress(
                *columns, TimeElapsedColumn(), console=self._console, transient=True
            )
            self._bar.add_task(what)
            self._bar.start()
        task = self._bar.task_ids[0]
        self._bar.update(task, description=what, completed=done, total=of or None)

    def pause(self) -> None:
        """Hide the bar until the next report."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()
