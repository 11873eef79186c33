"""The picture of `tree`: what the machines have, which virtual clusters hold it, and which wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from fedpilot.common.terminal.layout import bare
from fedpilot.common.text.amounts import ago, counted

from ...core.records import DEFAULT, EVERYTHING_ELSE, ROOT, WAITING
from ...core.resources import Resources, amount, amounts, figure, ordered
from .view import Document, View, wanted
from .words import NO_CLUSTERS, loans, outside, parent_name, short, status, time_left, work

PALETTE = ("blue", "magenta", "cyan", "bright_blue", "bright_magenta", "bright_cyan")
OTHERS = "bright_black"
"""The colour of `default`."""
USED, INSIDE, IDLE, FREE = "█", "▒", "░", "·"
BAR, SHORT_BAR = 32, 16
MOST_MACHINES, MOST_VNODES = 8, 6


def picture(document: Document, now: float) -> RenderableType:
    """The whole Ray cluster: its machines, and below them the virtual clusters, on one scale."""
    view = View(document, now)
    scales = [name for name in ("CPU", "GPU") if view.total()[name]][:2] or ordered(
        view.total().to_ray()
    )[:1]
    strip = _Strip(view, tuple(scales), BAR if len(scales) < 2 else SHORT_BAR)
    root = Tree(strip.root(), guide_style="bright_black")
    strip.grow(root, ROOT, 1)
    if not document["clusters"]:
        root.add(Text(NO_CLUSTERS, "italic"))
    return Group(_machines(view), Text(), root, Text(), _legend(view))


def _machines(view: View) -> RenderableType:
    have, free = view.told(view.total()).to_ray(), view.free().to_ray()
    head = Text.assemble(("Ray cluster", "bold"), f" of {counted(len(view.machines), 'machine')}")
    table = bare()
    names = ordered(have)
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
            of = f"{figure(resource, held)} of {amount(resource, there[resource])} held"
            cells += [bar, Text(of)]
        table.add_row(Text(name, "bold" if name == "in all" else ""), *cells)
    return Group(head, Text(), Padding(table, (0, 0, 0, 2), expand=False))


def _part(share: float, width: int) -> int:
    """How much of a bar a share fills: at least one cell if above 0, all cells only if 1."""
    if share <= 0:
        return 0
    return width if share >= 1 else min(width - 1, max(1, round(share * width)))


class _Strip:
    """Places virtual clusters side by side on the bar of the Ray cluster."""

    def __init__(self, view: View, scales: Sequence[str], width: int) -> None:
        self._view, self._scales, self._width = view, scales, width
        depth = {ROOT: 0}
        for cluster in view.clusters:
            depth[cluster["id"]] = depth[cluster["parent"]] + 1
        self._name = max([12, *(4 * depth[c["id"]] + len(c["id"]) for c in view.clusters)]) + 2
        self._state = max([8, *(len(status(cluster)) for cluster in view.clusters)]) + 2
        self._colours: dict[str, str] = {DEFAULT: OTHERS}

    def root(self) -> Text:
        line = Text().append("Ray cluster".ljust(self._name + self._state), "bold")
        have = self._view.total()
        for scale in self._scales:
            line.append(scale.ljust(self._width + 2), "bold")
        line.append(amounts(have))
        return line

    def grow(self, tree: Tree, parent: str, depth: int, starts: Mapping[str, int] = {}) -> None:
        at = {scale: starts.get(scale, 0) for scale in self._scales}
        for cluster in self._view.holders(parent):
            id = cluster["id"]
            self._colours.setdefault(
                id, self._colours.get(parent) or PALETTE[(len(self._colours) - 1) % len(PALETTE)]
            )
            line = self._head(cluster, depth)
            holds, idle = Resources.of(cluster["total"]), Resources.of(cluster["available"])
            inside = Resources.total(Resources.of(c["total"]) for c in self._view.holders(id))
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
        """Draw a bar; the part of nested clusters comes first, so that theirs can lie below it."""
        have, at = self._view.total()[scale] or 1, start
        first = min(round(at / have * self._width), self._width - 1)
        bar = Text()
        bar.append(FREE * first, "bright_black")
        for mark, units in parts:
            at += units
            until = round(at / have * self._width) if units else 0
            bar.append(mark * max(0, until - len(bar)), self._colours[id])
        if at > start and len(bar) == first:  # too small to be visible
            bar.append(max(parts, key=lambda part: part[1])[0], self._colours[id])
        bar.append(FREE * (self._width - len(bar)) + "  ", "bright_black")
        return bar

    def _details(self, cluster: Document) -> Iterator[Text]:
        view, now = self._view, self._view.now
        if cluster["reason"]:
            yield Text(short(cluster["reason"]), status(cluster).style)
        if cluster["state"] == WAITING:
            end = "" if cluster["deadline"] is None else f", gives up in {time_left(cluster, now)}"
            yield Text(f"asked {ago(cluster['asked_at'], now)}{end}", "bright_black")
        if cluster["id"] == DEFAULT:
            yield Text(EVERYTHING_ELSE, "bright_black")
            return
        for borrowed, when in loans(cluster, now):
            lender = parent_name(cluster["parent"])
            yield Text(f"{amounts(borrowed)} borrowed from {lender} {when}", "yellow")
        if said := work(cluster):
            yield Text(f"work: {said}", "yellow" if cluster["work"]["held"] else "bright_black")
        yield from outside(cluster)
        nodes = cluster["nodes"]
        places: dict[tuple[str, str], list[Document]] = {}
        for node in nodes:
            places.setdefault((node["machine"], node["kind"]), []).append(node)
        for (machine, kind), there in list(places.items())[:MOST_VNODES]:
            held = amounts(Resources.total(Resources.of(node["total"]) for node in there))
            what = (
                "a flexible vnode"
                if kind == "flexible"
                else counted(len(there), "fixed-size vnode")
            )
            yield Text(f"{view.machine(machine)}: {held} in {what}", "bright_black")
        if hidden := [node for key in list(places)[MOST_VNODES:] for node in places[key]]:
            on = counted(len({node["machine"] for node in hidden}), "machine")
            yield Text(f"and {counted(len(hidden), 'vnode')} more on {on}", "bright_black")


def _legend(view: View) -> Text:
    held = view.holders(ROOT)
    idle = any(cluster["available"] for cluster in view.clusters)
    marks = [
        (bool(held), f"{USED} in use"),
        (any(cluster["children"] for cluster in held), f"{INSIDE} handed on to those inside"),
        (idle, f"{IDLE} held and idle"),
        (True, f"{FREE} the rest of the Ray cluster"),
    ]
    return Text("   ".join(said for there, said in marks if there), "bright_black")
