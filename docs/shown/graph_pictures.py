"""Draws graphs: clients as dots, edges as lines, and what one client exchanges in another color.

A graph that changes has a panel for each of its first rounds. Nothing is random but the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedpilot.federated.core.topology.edges import Edges
from fedpilot.federated.core.topology.graph_files import read_graph
from fedpilot.federated.core.topology.graphs import TopologyName
from fedpilot.federated.core.topology.own_graphs import edges_of
from fedpilot.federated.federation.report.curves import ACCENT, INK, SECOND

from .graphs import SEED, shown
from .pages import TOPOLOGIES, files
from .pictures import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = npt.NDArray[np.float64]
NODES = 16
SIDE_IN, TITLE_IN = 2.3, 0.3
"""Inches of a panel, and of the line above it."""
DOTS_PER_INCH = 110
LINE = "#9aa5b1"
ROUNDS = {TopologyName.MATCHING: 3, TopologyName.EXPONENTIAL: 4}
SHARED = {"star": 1, "hierarchical": 3}
"""Groups of clients that share one model."""
OWN = "module:function"
STUB = 0.28
"""How far the ends of an edge that leads around a torus reach beyond it."""
Panel = Callable[["Axes"], None]
"""Draws a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The graphs of some rounds over points (clients, 2), and the client that is marked."""

    points: Points
    rounds: Sequence[Edges]
    marked: int = 0
    wraps: bool = False
    """Whether long edges lead around, as on a torus."""
    is_numbered: bool = False

    def panels(self) -> list[Panel]:
        """What draws each round, the marked client's edges in front."""
        directed = not all(edges.is_symmetric for edges in self.rounds)
        return [partial(_graph, self, edges, directed) for edges in self.rounds]

    @property
    def facts(self) -> Any:
        """What is shown."""
        rounds = [[edges.receivers.tolist(), edges.sources.tolist()] for edges in self.rounds]
        return [self.marked, self.is_numbered, rounds]


def graph_pictures() -> Iterator[Picture]:
    """A picture for each topology and for the graphs of users that the page shows; one of all."""
    drawings = {str(name): _named(name) for name in TopologyName}
    drawings |= {"custom": _custom(), "own": _own()}
    panels = {name: drawing.panels() for name, drawing in drawings.items()}
    panels |= {name: [partial(_shared, groups)] for name, groups in SHARED.items()}
    facts = {name: drawing.facts for name, drawing in drawings.items()} | SHARED
    for name in panels:
        yield Picture(
            name=f"topologies/{name}",
            facts=facts[name],
            figure=partial(_in_a_row, panels[name]),
            dots_per_inch=DOTS_PER_INCH,
        )
    yield Picture(
        name="topologies/all",
        facts=facts,
        figure=partial(_all, {name: each[len(each) // 2] for name, each in panels.items()}),
        dots_per_inch=DOTS_PER_INCH,
    )


def _named(name: TopologyName) -> Drawing:
    nodes = 15 if name is TopologyName.TREE else NODES
    graphs = shown(name, nodes)
    rounds = [graphs.of_round(number + 1) for number in range(ROUNDS.get(name, 1))]
    match name:
        case TopologyName.TORUS:
            side = math.isqrt(nodes)
            down, right = np.divmod(np.arange(nodes), side)
            points = np.stack([right, -down], axis=1) * (2 / (side - 1)) + [-1, 1]
            return Drawing(points=points, rounds=rounds, marked=side + 1, wraps=True)
        case TopologyName.TREE:
            level = np.log2(np.arange(1, nodes + 1)).astype(int)
            place = np.arange(1, nodes + 1) - 2**level
            x = (2 * place + 1) / 2**level - 1
            points = np.stack([1.1 * x, 0.8 - level * 1.6 / level.max()], axis=1)
            return Drawing(points=points, rounds=rounds, marked=1)
        case TopologyName.MATCHING:
            return Drawing(points=_circle(nodes), rounds=rounds, marked=1)
        case _:
            return Drawing(points=_circle(nodes), rounds=rounds)


def _custom() -> Drawing:
    """The graph of the file that the page shows."""
    text = files(TOPOLOGIES)["hospitals.edges"]
    names = sorted({word for line in text.splitlines()[1:] for word in line.split()[:2]})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "hospitals.edges"
        path.write_text(text, encoding="utf-8")
        edges = read_graph(path, names).edges
    return Drawing(points=0.9 * _circle(len(names)), rounds=[edges], is_numbered=True)


def _own() -> Drawing:
    """The graph that the function of the page returns."""
    made: dict[str, Any] = {}
    exec(files(TOPOLOGIES)["my_graphs.py"], made)
    names = [f"client_{number}" for number in range(NODES)]
    edges = edges_of(made["two_rings"](names, SEED), names).edges
    turned = _circle(NODES // 2)[:, ::-1] * 0.48  # the first clients of both are side by side
    left, right = turned - [0.62, 0], turned * [-1, 1] + [0.62, 0]
    return Drawing(points=np.concatenate([left, right]), rounds=[edges])


def _circle(nodes: int) -> Points:
    """Points on a circle, from the top on, clockwise."""
    turn = 2 * math.pi * np.arange(nodes) / nodes
    return np.stack([np.sin(turn), np.cos(turn)], axis=1)


# -- pictures -------------------------------------------------------------------------------------


def _in_a_row(panels: Sequence[Panel]) -> Figure:
    """A panel, or one for each round."""
    titles = [f"round {number + 1}" for number in range(len(panels))]
    return _grid(panels, titles if len(panels) > 1 else [""], columns=len(panels))


def _all(panels: Mapping[str, Panel]) -> Figure:
    titles = [OWN if name == "own" else name for name in panels]
    return _grid(list(panels.values()), titles, columns=5, side_in=1.75)


def _grid(
    panels: Sequence[Panel], titles: Sequence[str], *, columns: int, side_in: float = SIDE_IN
) -> Figure:
    from matplotlib.figure import Figure

    title_in = TITLE_IN if any(titles) else 0.0
    rows, height_in = -(-len(panels) // columns), side_in + title_in
    figure = Figure(figsize=(side_in * columns, height_in * rows), facecolor="white")
    for place, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        row, column = divmod(place, columns)
        bottom = (rows - 1 - row) / rows
        axes = figure.add_axes((column / columns, bottom, 1 / columns, side_in / height_in / rows))
        axes.set_aspect("equal")
        axes.set_axis_off()
        axes.set_xlim(-1.2, 1.2)
        axes.set_ylim(-1.2, 1.2)
        axes.set_title(title, fontsize=11, color=INK, pad=2)
        panel(axes)
    return figure


def _graph(drawing: Drawing, edges: Edges, directed: bool, axes: Axes) -> None:
    """A round's graph."""
    pairs = list(zip(edges.sources.tolist(), edges.receivers.tolist(), strict=True))
    if not directed:
        pairs = [pair for pair in pairs if pair[0] < pair[1]]
    pairs.sort(key=lambda pair: drawing.marked in pair)
    for pair in pairs:
        style = _style(drawing.marked in pair, thin=len(pairs) > 60)
        one, other = drawing.points[list(pair)]
        if directed:
            _arrow(axes, one, other, style)
        elif drawing.wraps and np.abs(one - other).max() > 1:
            for start, end in ((one, other), (other, one)):
                outside = start + (start - end) / np.abs(start - end).max() * STUB
                _line(axes, start, outside, {**style, "linestyle": (0, (1.5, 1.5))})
        else:
            _line(axes, one, other, style)
    colours = [ACCENT] * len(drawing.points)
    colours[drawing.marked] = SECOND
    _dots(axes, drawing.points, colours, 190 if drawing.is_numbered else 62)
    if drawing.is_numbered:
        for number, (x, y) in enumerate(drawing.points):
            axes.text(
                *(x, y, str(number)),
                ha="center", va="center_baseline", fontsize=9, color="white", fontweight="bold",
                zorder=4,
            )  # fmt: skip


def _shared(groups: int, axes: Axes) -> None:
    """Clients around a coordinator, or in groups that average first."""
    middle = np.zeros(2)
    if groups == 1:
        points = _circle(12)
        for number, point in enumerate(points):
            _line(axes, middle, point, _style(number == 0))
    else:
        means = 0.55 * _circle(groups)
        turns = 2 * math.pi * np.arange(groups) / groups
        fan = np.radians([0, -100, -50, 50, 100])
        angles = turns[:, None] + fan[None]
        fans = means[:, None] + 0.5 * np.stack([np.sin(angles), np.cos(angles)], axis=-1)
        for group, mean in enumerate(means):
            _line(axes, middle, mean, {"color": INK, "linewidth": 1.8, "zorder": 1})
            for place, point in enumerate(fans[group]):
                _line(axes, mean, point, _style(group == place == 0))
        _squares(axes, means, 45)
        points = fans.reshape(-1, 2)
    _dots(axes, points, [SECOND, *[ACCENT] * (len(points) - 1)])
    _squares(axes, middle[None], 150)


def _style(marked: bool, *, thin: bool = False) -> dict[str, Any]:
    if marked:
        return {"color": SECOND, "linewidth": 2.2, "zorder": 2}
    return {"color": LINE, "linewidth": 0.6 if thin else 1.0, "zorder": 1}


def _line(axes: Axes, one: Points, other: Points, style: dict[str, Any]) -> None:
    axes.plot(*np.stack([one, other], axis=1), solid_capstyle="round", **style)


def _arrow(axes: Axes, one: Points, other: Points, style: dict[str, Any]) -> None:
    from matplotlib.patches import FancyArrowPatch

    axes.add_patch(
        FancyArrowPatch(
            tuple(one), tuple(other), arrowstyle="-|>", mutation_scale=8, shrinkA=4, shrinkB=4,
            **style,
        )
    )  # fmt: skip


def _dots(axes: Axes, points: Points, colours: Sequence[str], size: float = 62) -> None:
    axes.scatter(
        points[:, 0], points[:, 1], s=size, c=colours, edgecolors="white", linewidths=1, zorder=3
    )


def _squares(axes: Axes, points: Points, size: float) -> None:
    axes.scatter(
        points[:, 0], points[:, 1],
        s=size, c=INK, marker="s", edgecolors="white", linewidths=1, zorder=4,
    )  # fmt: skip
