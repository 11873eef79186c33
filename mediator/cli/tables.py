"""What `site` and `runs` print of a mediator's answers: all as a table, one of them in detail.

The answers come from elsewhere: a key that is missing is a dash, and no text reaches the terminal
with anything in it that it would obey.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedpilot.fabric.views.tables import head, named, ruled
from fedpilot.fabric.views.wording import ago, amounts, figure, listed, many, ordered, timestamp

from .access import plain

Document = Mapping[str, Any]

SITE_MARKS = {
    "joining": ("◐", "cyan"),
    "ready": ("●", "green"),
    "cordoned": ("■", "yellow"),
    "draining": ("▼", "yellow"),
    "suspect": ("▲", "yellow"),
    "lost": ("×", "red"),
    "left": ("○", "bright_black"),
}
RUN_COLOURS = {
    "submitted": "cyan",
    "running": "green",
    "stopping": "yellow",
    "stopped": "bright_black",
    "finished": "green",
    "failed": "red",
    "interrupted": "yellow",
}
UNITS = ("B", "kB", "MB", "GB", "TB")
DASH = "–"


def byte_count(value: float) -> str:
    """Bytes as people say them: `12.3 MB`."""
    for unit in UNITS:
        if value < 999.5 or unit == UNITS[-1]:
            return f"{value:.3g} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1000
    raise AssertionError("the last unit takes everything")


# -- sites ----------------------------------------------------------------------------------------


def site_table(sites: Sequence[Document], now: float) -> RenderableType:
    """A line for each site."""
    if not sites:
        return Text("no sites; `fedpilot site token NAME` lets one join")
    shown = ruled()
    for name in ("name", "state", "since", "machines", "free", "runs", "why"):
        shown.add_column(name, justify="right" if name in ("machines", "runs") else "left")
    for site in sites:
        shown.add_row(
            Text(_text(site, "name"), "bold"),
            site_state(site),
            _ago(site, "since", now),
            _machines(site),
            _free(site),
            str(len(_list(site, "runs"))) if _list(site, "runs") else DASH,
            Text(_text(site, "reason")),
        )
    return shown


def site_details(site: Document, now: float) -> RenderableType:
    """All that is known of one site."""
    facts = named()
    for key, value in _site_facts(site, now):
        facts.add_row(key, Text(value))
    return Group(head(_text(site, "name"), site_state(site)), facts)


def _site_facts(site: Document, now: float) -> Iterator[tuple[str, str]]:
    if site.get("reason"):
        yield "why", _text(site, "reason")
    yield "since", _moment(site, "since", now)
    if site.get("wish") not in (None, "open", site.get("state")):
        yield "wished", _text(site, "wish")
    yield "joined", _moment(site, "first_joined", now)
    yield "version", _text(site, "version")
    yield "machines", _machines(site)
    yield "capacity", amounts(_resources(site, "total"))
    yield "free", amounts(_resources(site, "free"))
    runs = [plain(each) for each in _list(site, "runs")]
    yield "runs", listed(runs) if runs else "none"
    crossed = _mapping(site, "bytes")
    if crossed:
        to, back = (float(crossed.get(name, 0)) for name in ("to_site", "from_site"))
        yield "traffic", f"{byte_count(to)} to it, {byte_count(back)} from it"
    data = _mapping(site, "data")
    yield "data sets", listed([plain(name) for name in sorted(data)]) if data else "none declared"


def site_top(
    sites: Sequence[Document], before: Sequence[Document], seconds: float
) -> RenderableType:
    """How busy each site is, and what crossed its boundary since a look that long before."""
    earlier = {each.get("name"): _mapping(each, "bytes") for each in before}
    shown = ruled()
    columns = ("name", "state", "machines", "in use", "runs", "to site", "from site")
    for name in columns:
        shown.add_column(name, justify="left" if name in columns[:2] else "right")
    for site in sites:
        now, then = _mapping(site, "bytes"), earlier.get(site.get("name"), {})
        shown.add_row(
            Text(_text(site, "name"), "bold"),
            site_state(site),
            _machines(site),
            _in_use(site),
            str(len(_list(site, "runs"))),
            _speed(now, then, "to_site", seconds),
            _speed(now, then, "from_site", seconds),
        )
    return shown


def site_state(site: Document) -> Text:
    """The state, with its mark and colour."""
    state = _text(site, "state")
    mark, colour = SITE_MARKS.get(state, ("?", ""))
    return Text(f"{mark} {state}", colour)


def _speed(now: Document, then: Document, direction: str, seconds: float) -> str:
    if direction not in now or direction not in then or seconds <= 0:
        return DASH
    return f"{byte_count(max(0.0, (now[direction] - then[direction]) / seconds))}/s"


def _machines(site: Document) -> str:
    return str(_mapping(site, "capacity").get("machines", DASH))


def _free(site: Document) -> str:
    """What is free of what there is, CPUs and GPUs only: it is one column."""
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
    """Amounts that a user asks for; Ray counts other things as well."""
    found = _mapping(_mapping(site, "capacity"), which)
    return {
        plain(name): float(value)
        for name, value in found.items()
        if ":" not in name and name != "object_store_memory"
    }


# -- runs -----------------------------------------------------------------------------------------


def run_table(runs: Sequence[Document], now: float) -> RenderableType:
    """A line for each run, the oldest first."""
    if not runs:
        return Text("no runs; `fedpilot run CONFIG` with --profile or --mediator submits one")
    shown = ruled()
    for name in ("run", "status", "owner", "submitted", "rounds", "accuracy", "model"):
        shown.add_column(name, no_wrap=True, justify="right" if name in ("rounds",) else "left")
    for run in runs:
        accuracy = run.get("accuracy")
        shown.add_row(
            Text(_text(run, "run_id"), "bold"),
            run_status(run),
            _text(run, "owner"),
            _ago(run, "submitted_at", now),
            _text(run, "rounds"),
            f"{accuracy:.4f}" if isinstance(accuracy, float) else DASH,
            _text(run, "digest")[:12],
        )
    return shown


def run_details(run: Document, now: float) -> RenderableType:
    """All that is known of one run."""
    facts = named()
    for key in ("failure", "reason", "name", "owner", "rounds", "accuracy", "loss", "digest"):
        if run.get(key) not in (None, ""):
            facts.add_row(key, Text(_text(run, key)))
    for key, name in (
        ("submitted_at", "submitted"),
        ("started_at", "started"),
        ("ended_at", "ended"),
    ):
        if run.get(key):
            facts.add_row(name, _moment(run, key, now))
    if run.get("restarts"):
        facts.add_row("restarts", f"its coordinator died {many(run['restarts'], 'time')}")
    if run.get("interactive"):
        facts.add_row("serves", "requests about its VirtualNodes; it trains nothing by itself")
    for name, lines in (("sites", _added_lines(run)), ("refused", _refused_lines(run))):
        for number, line in enumerate(lines):
            facts.add_row("" if number else name, Text(line))
    if run.get("traceback"):
        facts.add_row("traceback", Text(_text(run, "traceback").rstrip("\n")))
    if run.get("folder"):
        facts.add_row("folder", Text(f"{_text(run, 'folder')}, at the mediator"))
    return Group(head(_text(run, "run_id"), run_status(run)), facts)


def _added_lines(run: Document) -> list[str]:
    """What each site added to the last round."""
    sites = run.get("sites")
    if not isinstance(sites, dict) or len(sites) < 2:
        return []
    return [
        f"{site}: {many(told.get('clients') or 0, 'client')}, share {_figure(told.get('share'))}, "
        f"norm {_figure(told.get('norm'))}, cosine {_figure(told.get('cosine'))}"
        for site, told in sites.items()
    ]


def _refused_lines(run: Document) -> list[str]:
    """The answers that did not count, and of whom."""
    refused = run.get("refused")
    return [
        f"{each.get('site')} in round {each.get('round')}: {each.get('reason')}"
        f"{'; it takes no further part' if each.get('quarantined') else ''}"
        for each in (refused if isinstance(refused, list) else [])
    ]


def _figure(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else DASH


def run_status(run: Document) -> Text:
    """The status in its colour."""
    status = _text(run, "status")
    return Text(status, RUN_COLOURS.get(status, ""))


# -- nodes ----------------------------------------------------------------------------------------


def node_table(nodes: Sequence[Document]) -> RenderableType:
    """A line for each VirtualNode."""
    shown = ruled()
    for name in ("node", "site", "state"):
        shown.add_column(name, no_wrap=True)
    for node in nodes:
        shown.add_row(Text(_text(node, "id"), "bold"), _text(node, "site"), _text(node, "state"))
    return shown


# -- what may be missing --------------------------------------------------------------------------


def _text(document: Document, key: str) -> str:
    value = document.get(key)
    return DASH if value in (None, "") else plain(value)


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
