"""The tables and details that `site` and `runs` print.

Answers are untrusted: a missing key prints as a dash, and texts lose control characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedpilot.common.terminal.layout import head, named, ruled, timestamp
from fedpilot.common.terminal.statuses import marked
from fedpilot.common.text.amounts import DASH, ago, counted, in_bytes, listed, number
from fedpilot.common.text.plain_text import plain_line, plain_lines
from fedpilot.fabric.core.resources import amounts, figure, ordered

from ..core.links import LinkSpeed, in_words
from ..core.run_queue import DEFAULT_PROJECT
from .statuses import RUNS, SITES

Document = Mapping[str, Any]
METRICS = ("accuracy", "loss")


# -- sites ----------------------------------------------------------------------------------------


def site_table(sites: Sequence[Document], now: float) -> RenderableType:
    """A line for each site."""
    if not sites:
        return Text("no sites; `fedpilot site token NAME` lets one join")
    columns = ("name", "state", "since", "machines", "free", "runs", "why")
    shown = ruled(*columns, right=("machines", "runs"))
    for site in sites:
        shown.add_row(
            Text(_text(site, "name"), "bold"),
            marked(SITES, _text(site, "state")),
            _ago(site, "since", now),
            _machines(site),
            _free(site),
            str(len(_list(site, "runs"))) if _list(site, "runs") else DASH,
            Text(_text(site, "reason")),
        )
    return shown


def site_details(site: Document, now: float) -> RenderableType:
    """The details of one site."""
    facts = named()
    for key, value in _site_facts(site, now):
        facts.add_row(key, Text(value))
    return Group(head(_text(site, "name"), marked(SITES, _text(site, "state"))), facts)


def _site_facts(site: Document, now: float) -> Iterator[tuple[str, str]]:
    if site.get("reason"):
        yield "why", _text(site, "reason")
    yield "since", _moment(site, "since", now)
    if site.get("wish") not in (None, "open", site.get("state")):
        yield "requested", _text(site, "wish")
    yield "joined", _moment(site, "first_joined", now)
    yield "version", _text(site, "version")
    yield "machines", _machines(site)
    yield "capacity", amounts(_resources(site, "total"))
    yield "free", amounts(_resources(site, "free"))
    runs = [plain_line(each) for each in _list(site, "runs")]
    yield "runs", listed(runs) if runs else "none"
    crossed = _mapping(site, "bytes")
    if crossed:
        to, back = (float(crossed.get(name, 0)) for name in ("to_site", "from_site"))
        yield "traffic", f"{in_bytes(to)} to the site, {in_bytes(back)} from it"
    yield "link", _link(site, now)
    data = _mapping(site, "data")
    yield (
        "data sets",
        listed([plain_line(name) for name in sorted(data)]) if data else "none declared",
    )


def _link(site: Document, now: float) -> str:
    link = LinkSpeed.from_json(site.get("link"))
    return "not known" if link == LinkSpeed() else in_words(link, now)


def site_top(sites: Sequence[Document]) -> RenderableType:
    """How busy each site is, and how fast bytes cross its boundary."""
    numbers = ("machines", "in use", "runs", "to site", "from site")
    shown = ruled("name", "state", *numbers, right=numbers)
    for site in sites:
        shown.add_row(
            Text(_text(site, "name"), "bold"),
            marked(SITES, _text(site, "state")),
            _machines(site),
            _in_use(site),
            str(len(_list(site, "runs"))),
            _speed(site, "to_site"),
            _speed(site, "from_site"),
        )
    return shown


def _speed(site: Document, direction: str) -> str:
    speed = _mapping(site, "bytes_per_second").get(direction)
    return DASH if speed is None else f"{in_bytes(speed)}/s"


def _machines(site: Document) -> str:
    return str(_mapping(site, "capacity").get("machines", DASH))


def _free(site: Document) -> str:
    """The free and total CPUs and GPUs, for one column."""
    total, free = _resources(site, "total"), _resources(site, "free")
    some = [name for name in ordered(total) if name in ("CPU", "GPU")]
    parts = [
        f"{figure(name, free.get(name, 0.0))}/{figure(name, total[name])} {name}" for name in some
    ]
    return ", ".join(parts) or DASH


def _in_use(site: Document) -> str:
    total, free = _resources(site, "total"), _resources(site, "free")
    parts = [
        f"{100 * (1 - free.get(name, 0.0) / total[name]):.0f} % {name}"
        for name in ordered(total)
        if name in ("CPU", "GPU", "memory") and total[name] > 0
    ]
    return ", ".join(parts) or DASH


def _resources(site: Document, which: str) -> dict[str, float]:
    """A site's resources without Ray's internal ones."""
    found = _mapping(_mapping(site, "capacity"), which)
    return {
        plain_line(name): float(value)
        for name, value in found.items()
        if ":" not in name and name != "object_store_memory"
    }


# -- runs -----------------------------------------------------------------------------------------


def run_table(runs: Sequence[Document], now: float) -> RenderableType:
    """A line for each run, oldest first."""
    if not runs:
        return Text("no runs; `fedpilot run CONFIG` with --profile or --mediator submits one")
    submitted = any("submitted_at" in run for run in runs)
    whose = ("owner", "submitted") if submitted else ()
    shown = ruled(
        "run", "status", *whose, "rounds", "accuracy", "model", right=("rounds",), wraps=""
    )
    for run in runs:
        by = (_text(run, "owner"), _ago(run, "submitted_at", now)) if submitted else ()
        shown.add_row(
            Text(_text(run, "run_id"), "bold"),
            marked(RUNS, _text(run, "status")),
            *by,
            _text(run, "rounds"),
            _metric(run, "accuracy"),
            _text(run, "digest")[:12],
        )
    queued = [run for run in runs if _mapping(run, "queue")]
    return Group(shown, Text(), _line(queued)) if queued else shown


def _line(queued: Sequence[Document]) -> RenderableType:
    """The runs that wait, in order of their places, and what each waits for."""
    projects = {_text(run, "project") for run in queued} - {"", DEFAULT_PROJECT}
    extra = ("project",) if projects else ()
    shown = ruled("place", "run", *extra, "class", "waits for", right=("place",))
    for run in sorted(queued, key=lambda run: _number(_mapping(run, "queue"), "place")):
        place = _mapping(run, "queue")
        shown.add_row(
            _place(place),
            Text(_text(run, "run_id"), "bold"),
            *(_text(run, key) for key in extra),
            _text(run, "priority_class"),
            Text(_text(place, "waits_for")),
        )
    return shown


def _place(place: Document) -> str:
    return f"{_text(place, 'place')} of {_text(place, 'of')}"


def _number(values: Document, key: str) -> float:
    value = values.get(key)
    return value if isinstance(value, int | float) else 0


def run_details(
    run: Document, now: float, beside: Mapping[str, str] | None = None
) -> RenderableType:
    """The details of one run, with the facts `beside` it."""
    facts = named()
    for key in ("failure", "reason", "name", "owner", "rounds", "accuracy", "loss", "digest"):
        if run.get(key) not in (None, ""):
            facts.add_row(key, Text(_metric(run, key) if key in METRICS else _text(run, key)))
    for key, name in (
        ("submitted_at", "submitted"),
        ("started_at", "started"),
        ("ended_at", "ended"),
    ):
        if run.get(key):
            facts.add_row(name, _moment(run, key, now))
    if place := _mapping(run, "queue"):
        text = f"{_place(place)}, class {_text(run, 'priority_class')}"
        if _text(run, "project") not in ("", DEFAULT_PROJECT):
            text += f", project {_text(run, 'project')}"
        facts.add_row("place in line", Text(text))
    if run.get("restarts"):
        facts.add_row("restarts", f"its coordinator died {counted(run['restarts'], 'time')}")
    if run.get("interactive"):
        facts.add_row("serves", "requests about its VirtualNodes; it trains nothing by itself")
    for name, lines in (("sites", _added_lines(run)), ("refused", _refused_lines(run))):
        for index, line in enumerate(lines):
            facts.add_row("" if index else name, Text(line))
    if run.get("traceback"):
        facts.add_row("traceback", Text(plain_lines(str(run["traceback"])).rstrip("\n")))
    for key, value in (beside or {}).items():
        facts.add_row(key, Text(plain_line(value)))
    return Group(head(_text(run, "run_id"), marked(RUNS, _text(run, "status"))), facts)


def _added_lines(run: Document) -> list[str]:
    sites = run.get("sites")
    if not isinstance(sites, dict) or len(sites) < 2:
        return []
    return [
        f"{plain_line(site)}: {counted(told.get('clients') or 0, 'client')}, "
        f"share {_metric(told, 'share')}, norm {_metric(told, 'norm')}, "
        f"cosine {_metric(told, 'cosine', 2)}"
        for site, told in sites.items()
    ]


def _refused_lines(run: Document) -> list[str]:
    refused = run.get("refused")
    return [
        f"{each.get('site')} in round {each.get('round')}: {each.get('reason')}"
        f"{'; it takes no further part' if each.get('quarantined') else ''}"
        for each in (refused if isinstance(refused, list) else [])
    ]


# -- nodes ----------------------------------------------------------------------------------------


def node_table(nodes: Sequence[Document]) -> RenderableType:
    """A line for each VirtualNode."""
    shown = ruled("node", "site", "state", wraps="")
    for node in nodes:
        shown.add_row(Text(_text(node, "id"), "bold"), _text(node, "site"), _text(node, "state"))
    return shown


# -- what may be missing --------------------------------------------------------------------------


def _text(document: Document, key: str) -> str:
    value = document.get(key)
    return DASH if value in (None, "") else plain_line(value)


def _metric(document: Document, key: str, digits: int = 4) -> str:
    value = document.get(key)
    return number(value if isinstance(value, int | float) else None, digits)


def _list(document: Document, key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _mapping(document: Document, key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _ago(document: Document, key: str, now: float) -> str:
    value = document.get(key)
    return ago(value, now, 1) if isinstance(value, int | float) else DASH


def _moment(document: Document, key: str, now: float) -> str:
    value = document.get(key)
    return f"{timestamp(value)}, {ago(value, now)}" if isinstance(value, int | float) else DASH
