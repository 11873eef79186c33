"""What is shown of virtual clusters: the manager's document as a picture, a table, or sentences.

Everything here follows from a document (`snapshot.py`), the manager's history, and the time.
Amounts have the names that Ray has for them, memory in GiB; a machine goes by its host name, and by
its id too where two have the same.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from .core.records import ROOT
from .core.resources import Resources
from .keeper import DEFAULT, total
from .snapshot import find
from .spec import VirtualCluster

Document = Mapping[str, Any]
"""A virtual cluster, a vnode, a machine, or all of them, as the manager tells it."""

MARKS = {"active": "●", "starting": "◐", "waiting": "○", "recovering": "▲", "ended": "×"}
COLOURS = {
    "active": "green",
    "starting": "cyan",
    "waiting": "yellow",
    "recovering": "red",
    "ended": "bright_black",
}
PALETTE = ("blue", "magenta", "cyan", "bright_blue", "bright_magenta", "bright_cyan")
OTHERS = "bright_black"
"""The colour of what runs on Ray without us."""
USED, INSIDE, IDLE, FREE = "█", "▒", "░", "·"
BAR, SHORT_BAR = 32, 16
MOST_MACHINES, MOST_VNODES, MOST_NAMES = 8, 6, 5
GIB = 2**30
FLEXIBLE = re.compile(r"@([0-9a-f]{8})[0-9a-f]{24,}")
"""A flexible vnode is named after its machine, whose id is long."""


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot, with what is asked of it again and again."""

    document: Document
    now: float

    @property
    def machines(self) -> Sequence[Document]:
        machines: Sequence[Document] = self.document["machines"]
        return machines

    @property
    def clusters(self) -> Sequence[Document]:
        """All virtual clusters, each followed by what is inside it."""
        return list(self._below(ROOT))

    def _below(self, parent: str) -> Iterator[Document]:
        for cluster in (*self.holders(parent), *self.queue(parent)):
            yield cluster
            yield from self._below(cluster["id"])

    def holders(self, parent: str) -> list[Document]:
        """Those inside a virtual cluster that have places; what runs without us comes last."""
        found = [
            c
            for c in self._inside(parent)
            if c["state"] != "waiting" and (c["id"] != DEFAULT or c["total"])
        ]
        return sorted(found, key=lambda cluster: cluster["id"] == DEFAULT)

    def queue(self, parent: str) -> list[Document]:
        """Those that wait for places inside a virtual cluster, the first first."""
        found = [c for c in self._inside(parent) if c["state"] == "waiting"]
        return sorted(found, key=lambda cluster: cluster["position"] or len(found))

    def _inside(self, parent: str) -> list[Document]:
        return [c for c in self.document["clusters"] if c["parent"] == parent]

    def total(self) -> Resources:
        """What all machines have."""
        return total(Resources.of(machine["total"]) for machine in self.machines)

    def free(self, parent: str = ROOT) -> Resources:
        """What nobody holds of the Ray cluster, or of what a virtual cluster holds."""
        places = self.machines if parent == ROOT else [find(self.document, parent)]
        return total(Resources.of(place["available"]) for place in places)

    def machine(self, id: str) -> str:
        """What a machine is called."""
        hosts = Counter(machine["hostname"] for machine in self.machines)
        names = {machine["id"]: machine["hostname"] for machine in self.machines}
        if id not in names:
            return f"a machine that is gone ({id[:8]})"
        return names[id] if hosts[names[id]] == 1 else f"{names[id]} ({id[:8]})"


# -- words ----------------------------------------------------------------------------------------


def amounts(found: Resources | Mapping[str, float]) -> str:
    """Amounts as one reads them: CPU and GPU first, memory last."""
    named = found.to_ray() if isinstance(found, Resources) else found
    return ", ".join(amount(name, named[name]) for name in _ordered(named)) or "nothing"


def amount(name: str, value: float) -> str:
    """One amount."""
    return f"{_number(name, value)} {'GiB ' if name == 'memory' else ''}{name}"


def _number(name: str, value: float) -> str:
    return f"{value / GIB:.3g}" if name == "memory" else f"{value:.15g}"


def _ordered(names: Iterable[str]) -> list[str]:
    ranks = {"CPU": 0, "GPU": 1, "memory": 3}
    return sorted(names, key=lambda name: (ranks.get(name, 2), name))


def duration(seconds: float, units: int = 2) -> str:
    """A length of time in one or two units."""
    whole = max(0, round(seconds))
    for size, unit, small, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest and units > 1 else "")
    return f"{whole} s"


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `11th`."""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else suffix}"


def many(count: int, word: str) -> str:
    """`1 machine`, `2 machines`."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], most: int = MOST_NAMES, word: str = "and") -> str:
    """Names in a sentence, not too many."""
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def parent_name(parent: str) -> str:
    """What a virtual cluster is inside of."""
    return "the Ray cluster" if parent == ROOT else parent


def short(text: str) -> str:
    """A text with the names of vnodes as short as they can be told apart."""
    return FLEXIBLE.sub(r"@\1", text)


def wanted(cluster: Document) -> Resources:
    """All that a virtual cluster must have before it starts."""
    spec = VirtualCluster.from_dict(cluster["spec"])
    nodes = (bundle.resources for group in spec.node_groups for bundle in group.group().bundles)
    return total(nodes) + spec.least


def asked_for(cluster: Document) -> str:
    """The spec in words."""
    return str(VirtualCluster.from_dict(cluster["spec"]))


def status(cluster: Document) -> Text:
    """The state, with its mark and colour, and its place in the queue."""
    state, position = cluster["state"], cluster["position"]
    where = f", {ordinal(position)}" if position else ""
    return Text(f"{MARKS.get(state, '?')} {state}{where}", COLOURS.get(state, ""))


def holding(cluster: Document) -> str:
    """What it holds, on how many vnodes and machines."""
    nodes = cluster["nodes"]
    if not nodes:
        return "nothing of its own"
    places = many(len({node["machine"] for node in nodes}), "machine")
    return f"{amounts(cluster['total'])} in {many(len(nodes), 'vnode')} on {places}"


def loans(cluster: Document, now: float) -> Iterator[tuple[Resources, str]]:
    """What is borrowed and when it goes back, the first due first."""
    due: dict[str, tuple[float, Resources]] = {}
    for node in cluster["nodes"]:
        for loan in node["loans"]:
            left = loan["until"] - now
            when = f"for another {duration(left)}" if left > 0 else "and due, once nothing uses it"
            _, before = due.get(when, (left, Resources()))
            due[when] = left, before + Resources.of(loan["resources"])
    for when, (_, borrowed) in sorted(due.items(), key=lambda item: item[1][0]):
        yield borrowed, when


def work(cluster: Document) -> str:
    """How much runs inside it and how much waits; empty if there is none."""
    counts = cluster.get("work", {})
    words = {
        "placed": "running",
        "queued": "in the queue of a placement group",
        "held": "waiting for room",
    }
    return ", ".join(f"{counts[s]} {said}" for s, said in words.items() if counts.get(s))


def _end(cluster: Document) -> str:
    if cluster["id"] == DEFAULT:
        return "–"
    return f"with job {cluster['owner']}" if cluster["owner"] else "when deleted"


def _ago(then: float, now: float, units: int = 2) -> str:
    return f"{duration(now - then, units)} ago"


def _at(then: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then))


# -- the picture ----------------------------------------------------------------------------------


def picture(document: Document, now: float) -> RenderableType:
    """The whole Ray cluster: its machines, and who holds what of them.

    Every line has the same scale: the bar of a virtual cluster lies where its share lies in the
    bar of the Ray cluster, and those inside it lie below theirs.
    """
    view = View(document, now)
    scales = [name for name in ("CPU", "GPU") if view.total()[name]][:2] or _ordered(
        view.total().to_ray()
    )[:1]
    strip = _Strip(view, tuple(scales), BAR if len(scales) < 2 else SHORT_BAR)
    root = Tree(strip.root(), guide_style="bright_black")
    strip.grow(root, ROOT, 1)
    if not document["clusters"]:
        root.add(Text("no virtual clusters; `fedpilot cluster create` makes one", "italic"))
    return Group(_machines(view), Text(), root, Text(), _legend(view))


def _machines(view: View) -> RenderableType:
    """What the machines have, together and each."""
    have, free = view.total().to_ray(), view.free().to_ray()
    head = Text.assemble(("Ray cluster", "bold"), f" of {many(len(view.machines), 'machine')}")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    names = _ordered(have)
    rows: list[tuple[str, Mapping[str, float], Mapping[str, float]]] = [("in all", have, free)]
    if 1 < len(view.machines) <= MOST_MACHINES:
        rows += [(view.machine(m["id"]), m["total"], m["available"]) for m in view.machines]
    for name, there, left in rows:
        cells = []
        for resource in names:
            if resource not in there:
                cells += [Text(), Text()]
                continue
            held = there[resource] - left.get(resource, 0.0)
            filled = _part(held / there[resource], SHORT_BAR // 2)
            bar = Text(USED * filled, "default")
            bar.append(FREE * (SHORT_BAR // 2 - filled), "bright_black")
            of = f"{_number(resource, held)} of {amount(resource, there[resource])} held"
            cells += [bar, Text(of)]
        table.add_row(Text(name, "bold" if name == "in all" else ""), *cells)
    return Group(head, Text(), Padding(table, (0, 0, 0, 2), expand=False))


def _part(share: float, width: int) -> int:
    """How much of a bar a share fills: something if there is something, all only if it is all."""
    if share <= 0:
        return 0
    return width if share >= 1 else min(width - 1, max(1, round(share * width)))


class _Strip:
    """Lays virtual clusters side by side on the bar of the Ray cluster."""

    def __init__(self, view: View, scales: Sequence[str], width: int) -> None:
        self._view, self._scales, self._width = view, scales, width
        depth = {ROOT: 0}
        for cluster in view.clusters:
            depth[cluster["id"]] = depth[cluster["parent"]] + 1
        self._name = max([12, *(4 * depth[c["id"]] + len(c["id"]) for c in view.clusters)]) + 2
        self._state = max([8, *(len(status(cluster)) for cluster in view.clusters)]) + 2
        self._colours: dict[str, str] = {DEFAULT: OTHERS}

    def root(self) -> Text:
        """The line of the Ray cluster."""
        line = Text().append("Ray cluster".ljust(self._name + self._state), "bold")
        have = self._view.total()
        for scale in self._scales:
            line.append(scale.ljust(self._width + 2), "bold")
        line.append(amounts(have))
        return line

    def grow(self, tree: Tree, parent: str, depth: int, starts: Mapping[str, int] = {}) -> None:
        """Add all that is inside a virtual cluster."""
        at = {scale: starts.get(scale, 0) for scale in self._scales}
        for cluster in self._view.holders(parent):
            id = cluster["id"]
            self._colours.setdefault(
                id, self._colours.get(parent) or PALETTE[(len(self._colours) - 1) % len(PALETTE)]
            )
            line = self._head(cluster, depth)
            holds, idle = Resources.of(cluster["total"]), Resources.of(cluster["available"])
            inside = total(Resources.of(c["total"]) for c in self._view.holders(id))
            for scale in self._scales:
                used = max(0, holds[scale] - idle[scale] - inside[scale])
                parts = ((INSIDE, inside[scale]), (USED, used), (IDLE, idle[scale]))
                line += self._bar(id, scale, at[scale], parts)
            line.append(amounts(holds))
            below = tree.add(Group(line, *self._details(cluster)))
            self.grow(below, id, depth + 1, at)
            at = {scale: at[scale] + holds[scale] for scale in self._scales}
        for cluster in self._view.queue(parent):
            line = self._head(cluster, depth)
            line.append("wants ", "yellow")
            line.append(amounts(wanted(cluster)))
            tree.add(Group(line, *self._details(cluster)))

    def _head(self, cluster: Document, depth: int) -> Text:
        line = Text().append(cluster["id"].ljust(self._name - 4 * depth), "bold")
        state = status(cluster)
        state.pad_right(self._state - len(state))
        return line + state

    def _bar(self, id: str, scale: str, start: int, parts: Sequence[tuple[str, int]]) -> Text:
        """Those inside come first, so that they can lie below them."""
        have, at = self._view.total()[scale] or 1, start
        first = min(round(at / have * self._width), self._width - 1)
        bar = Text()
        bar.append(FREE * first, "bright_black")
        for mark, units in parts:
            at += units
            until = round(at / have * self._width) if units else 0
            bar.append(mark * max(0, until - len(bar)), self._colours[id])
        if at > start and len(bar) == first:  # too little to be seen
            bar.append(max(parts, key=lambda part: part[1])[0], self._colours[id])
        bar.append(FREE * (self._width - len(bar)) + "  ", "bright_black")
        return bar

    def _details(self, cluster: Document) -> Iterator[Text]:
        """The smaller print below a line."""
        view, now = self._view, self._view.now
        if cluster["reason"]:
            yield Text(short(cluster["reason"]), COLOURS.get(cluster["state"], ""))
        if cluster["state"] == "waiting":
            end = "" if cluster["deadline"] is None else f", gives up in {_left(cluster, now)}"
            yield Text(f"asked {_ago(cluster['asked_at'], now)}{end}", "bright_black")
        if cluster["id"] == DEFAULT:
            yield Text("what runs on Ray outside all virtual clusters", "bright_black")
            return
        for borrowed, when in loans(cluster, now):
            lender = parent_name(cluster["parent"])
            yield Text(f"{amounts(borrowed)} borrowed from {lender} {when}", "yellow")
        if said := work(cluster):
            yield Text(f"work: {said}", "yellow" if cluster["work"]["held"] else "bright_black")
        for escape in cluster.get("escapes", ()):
            yield Text(f"outside of it: {escape}", "red")
        nodes = cluster["nodes"]
        places: dict[tuple[str, str], list[Document]] = {}
        for node in nodes:
            places.setdefault((node["machine"], node["kind"]), []).append(node)
        for (machine, kind), there in list(places.items())[:MOST_VNODES]:
            held = amounts(total(Resources.of(node["total"]) for node in there))
            what = (
                "a flexible vnode" if kind == "flexible" else many(len(there), "fixed-size vnode")
            )
            yield Text(f"{view.machine(machine)}: {held} in {what}", "bright_black")
        if len(places) > MOST_VNODES:
            yield Text(f"and on {len(places) - MOST_VNODES} machines more", "bright_black")


def _left(cluster: Document, now: float) -> str:
    return duration(cluster["deadline"] - now)


def _legend(view: View) -> Text:
    """Only the marks that are there."""
    held = view.holders(ROOT)
    idle = any(cluster["available"] for cluster in view.clusters)
    marks = [
        (bool(held), f"{USED} in use"),
        (any(cluster["children"] for cluster in held), f"{INSIDE} handed on to those inside"),
        (idle, f"{IDLE} held and idle"),
        (True, f"{FREE} the rest of the Ray cluster"),
    ]
    return Text("   ".join(said for there, said in marks if there), "bright_black")


# -- the table ------------------------------------------------------------------------------------


def table(document: Document, now: float) -> RenderableType:
    """A line for each virtual cluster."""
    view = View(document, now)
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in ("name", "state", "holds", "borrowed", "vnodes", "inside", "asked", "ends"):
        shown.add_column(name, justify="right" if name == "vnodes" else "left")
    for cluster in view.clusters:
        waits = cluster["state"] == "waiting"
        shown.add_row(
            Text(cluster["id"], "bold"),
            status(cluster),
            Text(f"wants {amounts(wanted(cluster))}", "yellow")
            if waits
            else Text(amounts(cluster["total"])),
            Text(amounts(cluster["borrowed"]) if cluster["borrowed"] else "–"),
            str(len(cluster["nodes"])) if cluster["nodes"] else "–",
            "–" if cluster["parent"] == ROOT else cluster["parent"],
            "–" if cluster["asked_at"] is None else _ago(cluster["asked_at"], now, 1),
            _end(cluster),
        )
    if not view.clusters:
        return Text("no virtual clusters; `fedpilot cluster create` makes one")
    return shown


# -- one of them ----------------------------------------------------------------------------------


def details(document: Document, name: str, now: float) -> RenderableType:
    """All that is known of one virtual cluster. NoSuchCluster."""
    view, cluster = View(document, now), find(document, name)
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bright_black")
    for key, value in _facts(view, cluster):
        facts.add_row(key, value)
    head = Text().append(cluster["id"], "bold").append("  ").append(status(cluster))
    parts: list[RenderableType] = [head, facts]
    if cluster["nodes"]:
        parts += [Text(), _vnodes(view, cluster)]
    return Group(*parts)


def _facts(view: View, cluster: Document) -> Iterator[tuple[str, str]]:
    now = view.now
    if cluster["reason"]:
        yield "why", short(cluster["reason"])
    yield "holds", holding(cluster)
    if cluster["nodes"] and cluster["id"] != DEFAULT:
        yield "idle", amounts(cluster["available"])
    if said := work(cluster):
        yield "work", said
    for escape in cluster.get("escapes", ()):
        yield "outside", escape
    for borrowed, when in loans(cluster, now):
        yield "borrowed", f"{amounts(borrowed)} from {parent_name(cluster['parent'])}, {when}"
    if cluster["children"]:
        within = total(Resources.of(c["total"]) for c in view.holders(cluster["id"]))
        yield "inside it", f"{listed(cluster['children'])}; together {amounts(within)}"
    if cluster["id"] == DEFAULT:
        yield "is", "what runs on Ray outside all virtual clusters"
        return
    yield "asked for", asked_for(cluster)
    yield "inside", parent_name(cluster["parent"])
    queue = view.queue(cluster["id"])
    if queue:
        yield "queue", f"{listed([each['id'] for each in queue])}, for places inside it"
    yield "priority", str(cluster["priority"])
    yield "asked", f"{_at(cluster['asked_at'])}, {_ago(cluster['asked_at'], now)}"
    if cluster["deadline"] is not None and cluster["state"] == "waiting":
        yield "gives up", f"{_at(cluster['deadline'])}, in {_left(cluster, now)}"
    yield "ends", _end(cluster)


def _vnodes(view: View, cluster: Document) -> Table:
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in ("vnode", "kind", "machine", "holds", "idle", "borrowed", "labels"):
        shown.add_column(name)
    for node in cluster["nodes"]:
        borrowed = total(Resources.of(loan["resources"]) for loan in node["loans"])
        labels = {n: v for n, v in node["labels"].items() if not n.startswith("ray.io/")}
        shown.add_row(
            short(node["id"]),
            "flexible" if node["kind"] == "flexible" else "fixed-size",
            view.machine(node["machine"]),
            amounts(node["total"]),
            amounts(node["available"]) if node["available"] else "–",
            amounts(borrowed) if borrowed else "–",
            ", ".join(f"{n}={v}" for n, v in sorted(labels.items())) or "–",
        )
    return shown


# -- why ------------------------------------------------------------------------------------------


def sentences(document: Document, name: str, history: Sequence[Document], now: float) -> list[str]:
    """Why a virtual cluster is in its state, what it waits for, and what would help.

    NoSuchCluster, unless the history knows how it ended.
    """
    view = View(document, now)
    last = ending(history, name)
    if last is not None and all(each["id"] != name for each in document["clusters"]):
        in_vain = " without having got its places" if _in_vain(history, name) else ""
        return [
            f"{name} is no more: it ended {_ago(last['time'], now)}{in_vain}: "
            f"{short(last['reason'])}."
        ]
    cluster = find(document, name)
    if name == DEFAULT:
        held = amounts(cluster["total"])
        return [
            f"{name} stands for what runs on Ray outside all virtual clusters; now that is {held}.",
            "Nobody asked for it, and it cannot be deleted: it shrinks when those jobs end.",
        ]
    said = list(_why(view, cluster, history))
    if cluster["owner"]:
        said.append(f"It ends with Ray's job {cluster['owner']}, which asked for it.")
    else:
        once = "Once it has its places, it" if cluster["state"] == "waiting" else "It"
        said.append(f"{once} stays until it is deleted.")
    return said


def _why(view: View, cluster: Document, history: Sequence[Document]) -> Iterator[str]:
    name, now = cluster["id"], view.now
    match cluster["state"]:
        case "waiting":
            yield from _waiting(view, cluster)
        case "starting":
            yield f"{name} has its places, {holding(cluster)}, and starts: {cluster['reason']}."
            yield "That takes Ray less than a second, unless somebody else was faster."
        case "recovering":
            lacks = wanted(cluster).beyond(Resources.of(cluster["total"]))
            yield f"{name} has lost something: {short(cluster['reason'])}."
            yield f"It holds {holding(cluster)}" + (
                f", and lacks {amounts(lacks)} of what it asked for: {asked_for(cluster)}."
                if lacks
                else ", and what was lost is being made again."
            )
            if lacks:
                yield (
                    f"New places are looked for all the time; {amounts(view.free())} is free. "
                    f"What would help: {_help(view, cluster, lacks)}."
                )
        case _:
            since = [e["time"] for e in history if e["cluster"] == name and e["event"] == "active"]
            how_long = f", for {duration(now - since[-1])} now" if since else ""
            yield f"{name} is active{how_long}: it holds {holding(cluster)}."
            for borrowed, due in loans(cluster, now):
                lender = parent_name(cluster["parent"])
                yield f"{amounts(borrowed)} of that is borrowed from {lender} {due}."
            if said := work(cluster):
                yield f"Tasks and actors in it: {said}; {amounts(cluster['available'])} is idle."
            for escape in cluster.get("escapes", ()):
                yield f"Outside of it, where it should not be: {escape}."
            inside = [each["id"] for each in view.holders(name)]
            if inside:
                yield f"Inside it: {listed(inside)}."
            queue = view.queue(name)
            if queue:
                yield f"In its queue, for places inside it: {listed([e['id'] for e in queue])}."


def _waiting(view: View, cluster: Document) -> Iterator[str]:
    parent, needs, now = cluster["parent"], wanted(cluster), view.now
    queue = [each["id"] for each in view.queue(parent)]
    before = queue[: queue.index(cluster["id"])]
    place = f"{ordinal(cluster['position'])} of {len(queue)}" if cluster["position"] else "new"
    yield (
        f"{cluster['id']} waits, {place} in the queue of {parent_name(parent)}, for "
        f"{duration(now - cluster['asked_at'])} now: {short(cluster['reason'])}."
    )
    free = view.free(parent)
    yield (
        f"It asked for {asked_for(cluster)}. Of the {amounts(needs)} that it needs at once, "
        f"{amounts(needs & free)} is free now."
    )
    if before:
        yield (
            f"Before it {'are' if len(before) > 1 else 'is'} {listed(before)}. Whoever is first "
            "holds up all behind, even those who would fit, so that nobody waits for ever."
        )
        yield f"What would help: places for {before[0]}, or `fedpilot cluster delete {before[0]}`."
    else:
        lacks = needs.beyond(free)
        if lacks:
            yield f"It lacks {amounts(lacks)}. What would help: {_help(view, cluster, lacks)}."
        else:
            yield (
                "There is enough in all, but not in pieces that fit it. What would help: "
                f"{_help(view, cluster, needs)}."
            )
    if cluster["deadline"] is not None:
        yield f"It gives up in {_left(cluster, now)}."


def _help(view: View, cluster: Document, lacks: Resources) -> str:
    ways = [f"an end of {holders}"] if (holders := _others(view, cluster, lacks)) else []
    if cluster["parent"] != ROOT:
        ways.append(f"room for {cluster['parent']} to grow, if its spec lets it")
    return "; ".join([*ways, "another machine", "or asking for less"])


def _others(view: View, cluster: Document, lacks: Resources) -> str:
    """Who holds what it lacks beside it, the largest first."""
    names = {name for name, _ in lacks.units}
    held = {
        each["id"]: Resources.of(each["total"]).only(names)
        for each in view.holders(cluster["parent"])
        if each["id"] != cluster["id"]
    }
    ranked = sorted(held, key=lambda id: (-sum(amount for _, amount in held[id].units), id))
    return listed(
        [
            f"{'what runs outside of them' if id == DEFAULT else id} ({amounts(held[id])})"
            for id in ranked
            if held[id]
        ],
        word="or",
    )


def ending(history: Sequence[Document], name: str) -> Document | None:
    """How the last one of that name ended; None if the history does not say."""
    told = [event for event in history if event["cluster"] == name]
    return told[-1] if told and told[-1]["event"] == "ended" else None


def _in_vain(history: Sequence[Document], name: str) -> bool:
    """Whether the last one of that name was never let in, as far as the history says."""
    events = [event["event"] for event in history if event["cluster"] == name]
    last = events[::-1].index("asked") if "asked" in events else len(events)
    return last < len(events) and "admitted" not in events[len(events) - last :]


def chronicle(history: Sequence[Document], name: str, now: float, most: int) -> RenderableType:
    """What has happened to one virtual cluster, oldest first."""
    told = [event for event in history if event["cluster"] == name]
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    if len(told) > most:
        shown.add_row("", f"({len(told) - most} before that)", "", style="bright_black")
    for event in told[-most:]:
        shown.add_row(
            Text(_at(event["time"]), "bright_black"),
            Text(_ago(event["time"], now), "bright_black"),
            event["event"],
            short(event["reason"]),
        )
    return shown
