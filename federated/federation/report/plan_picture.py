"""Draws a plan: the graph's clients by site, and which edges cross; sites alone, if it is large.

Up to `NODES_SHOWN` clients lie on a circle, those of a site side by side. Of a larger graph, each
site is a bubble, and what crosses between two of them a line. In a star, lines lead to the
coordinator. Nothing is random, so equal plans give equal pictures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedpilot.common.host.whole_files import replacing
from fedpilot.common.text.amounts import counted, in_bytes
from fedpilot.mediator.core.assignment import places_of

from ...core.planning.plan import Plan, SitePlan, capacities, crossing_between
from .curves import FAINT, INK, SECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NODES_SHOWN = 500
NUMBERED = 60
"""Clients whose numbers are readable."""
GREY = "#52606d"
INNER = "#9aa5b1"
COLOURS = (
    *("#1098ad", "#7048e8", "#37b24d", "#d6336c", "#1c7ed6", "#f59f00"),
    *("#0ca678", "#ae3ec9", "#74b816", "#4263eb", "#8d6e63", "#495057"),
)
"""Colors of sites, by name; crossing edges have another color."""
GAP = 0.035
"""Of the circle, between two sites."""
WIDE, HIGH = 1.56, 1.26
"""Of the circle's radius, from the middle to the edge of the picture."""
CAPTION = "lines: models and partial sums that cross between two sites in a round, both directions"
LABELLED = 8
"""Sites with numbers at their lines."""
ROOM = 0.13
"""That such a number needs."""
AWAY = 0.76
"""Distance of a bubble's center from the center of the picture."""
Points = npt.NDArray[np.float64]
Lines = npt.NDArray[np.int64]


def draw(plan: Plan, path: Path, *, title: str) -> None:
    """Draw a plan into a PNG."""
    figure = figure_of(plan, title)
    with replacing(path) as aside, aside.open("wb") as file:
        figure.savefig(file, format="png", metadata={"Software": None})


def figure_of(plan: Plan, title: str) -> Figure:
    """The picture of a plan."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 8.6), dpi=150, facecolor="white")
    axes = figure.add_axes((0.02, 0.045, 0.96, 0.85))
    axes.set_aspect("equal")
    axes.set_axis_off()
    if plan.edges is None:
        _star(axes, plan)
    elif plan.inputs.population <= NODES_SHOWN:
        _circle(axes, plan)
    else:
        _bubbles(axes, plan)
        figure.text(0.03, 0.02, CAPTION, fontsize=9, color=GREY)
    figure.text(0.03, 0.955, title, fontsize=14, fontweight="bold", color=INK)
    figure.text(0.03, 0.918, _subtitle(plan), fontsize=10, color=GREY)
    return figure


def _subtitle(plan: Plan) -> str:
    if plan.edges is None:
        return (
            f"in a round {in_bytes(plan.bytes_in)} to {counted(len(plan.sites), 'site')}, "
            f"{in_bytes(plan.bytes_out)} from them"
        )
    parts = [f"{counted(plan.inputs.population, 'client')}, {counted(plan.edges, 'edge')}"]
    if plan.cut is not None:
        verb = "crosses" if plan.cut.edges == 1 else "cross"
        models = counted(plan.cut.models, "model")
        if plan.cut.sums:
            models += f" and {counted(plan.cut.sums, 'partial sum')}"
        parts.append(f"{plan.cut.edges:,.0f} {verb} between sites ({models} a round)")
    if plan.round_robin is not None:
        parts.append(f"round robin: {plan.round_robin.edges:,.0f}")
    if not plan.inputs.lasting:
        parts.append("drawn: round 1")
    return "   ·   ".join(parts)


# -- a graph, client by client --------------------------------------------------------------------


def _circle(axes: Axes, plan: Plan) -> None:
    """Clients on a circle, by site and number; edges as chords, those that cross in front."""
    placed, ends = _placed(plan), plan.inputs.exchanges[0].pairs.ends
    angles = _angles(placed, len(plan.sites))
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    crosses = placed[ends[:, 0]] != placed[ends[:, 1]]
    _lines(axes, _chords(points, ends[~crosses]), _inner(placed, ends[~crosses]), order=1)
    _lines(axes, _chords(points, ends[crosses]), SECOND, order=2)
    count = len(placed)
    # So large that neighbors on the circle just do not touch.
    room = 2 * math.pi * (1 - GAP * len(plan.sites)) / max(count, 8)
    size = float(np.clip((190 * room) ** 2, 8, 420))
    colours = [_colour(int(place)) for place in placed]
    axes.scatter(
        points[:, 0], points[:, 1], s=size, c=colours, edgecolors="white", linewidths=0.9, zorder=3
    )
    if count <= NUMBERED:
        for number, (x, y) in enumerate(points):
            axes.text(
                *(x, y, str(number)),
                ha="center",
                va="center_baseline",
                fontsize=max(5.0, min(9.0, 0.42 * math.sqrt(size))),
                color="white",
                fontweight="bold",
                zorder=4,
            )
    for place, site in enumerate(plan.sites):
        if (placed == place).any():
            _beside(axes, float(angles[placed == place].mean()), site, _colour(place))
    if crosses.any():
        _legend(axes)
    axes.set_xlim(-WIDE, WIDE)
    axes.set_ylim(-HIGH, HIGH)


def _lines(axes: Axes, chords: Points, colours: Any, *, order: int) -> None:
    """Chords, the thinner and paler the more there are."""
    from matplotlib.collections import LineCollection

    if not len(chords):
        return
    many = math.log10(len(chords)) / 3  # 0 of one, 1 of a thousand
    width = 2.6 - 1.9 * min(1.0, many) if order > 1 else 1.8 - 1.2 * min(1.0, many)
    alpha = 0.95 - 0.7 * min(1.0, many**2) if order > 1 else 0.75 - 0.5 * min(1.0, many**2)
    axes.add_collection(
        LineCollection(list(chords), colors=colours, linewidths=width, alpha=alpha, zorder=order)
    )


def _inner(placed: Lines, ends: Lines) -> list[str]:
    """The colours of edges inside sites."""
    return [_colour(place) for place in placed[ends[:, 0]].tolist()]


def _angles(placed: Lines, sites: int) -> Points:
    """(clients,): where each lies on the circle, from the top on, clockwise, by site and number."""
    used = len(np.unique(placed))
    gap = 2 * math.pi * GAP if used > 1 else 0.0
    order = np.argsort(placed, kind="stable")
    step = (2 * math.pi - used * gap) / len(placed)
    sorted_places = placed[order]
    gaps = np.concatenate([[0], np.cumsum(np.diff(sorted_places) != 0)])
    angles = np.empty(len(placed))
    angles[order] = math.pi / 2 - (np.arange(len(placed)) + 0.5) * step - (gaps + 0.5) * gap
    return angles


def _chords(points: Points, ends: Lines) -> Points:
    """(edges, samples, 2): curves that bend towards the middle, the more so the longer they are."""
    one, other = points[ends[:, 0]][:, None], points[ends[:, 1]][:, None]
    t = np.linspace(0, 1, 24)[None, :, None]
    length = np.linalg.norm(one - other, axis=2, keepdims=True) / 2
    pull = (one + other) / 2 * (1 - 0.85 * length)
    curves: Points = (1 - t) ** 2 * one + 2 * t * (1 - t) * pull + t**2 * other
    return curves


def _beside(axes: Axes, angle: float, site: SitePlan, colour: str) -> None:
    """The name of a site and its figures, outside of its arc."""
    x, y = math.cos(angle), math.sin(angle)
    side = "center" if abs(x) < 0.3 else ("left" if x > 0 else "right")
    lift = 0.028 + 0.05 * y if side != "center" else (0.09 if y > 0 else -0.05)
    _words(axes, (1.12 * x, 1.1 * y), site, colour, side, lift)


def _words(
    axes: Axes, at: tuple[float, float], site: SitePlan, colour: str, side: str, lift: float = 0.028
) -> None:
    x, y = at
    axes.text(
        *(x, y + lift, site.site),
        ha=side,
        va="bottom",
        fontsize=11.5,
        fontweight="bold",
        color=colour,
    )
    figures = (
        f"{counted(site.clients, 'client')}, {counted(site.vnodes, 'vnode')}\n"
        f"{in_bytes(site.bytes_in)} in, {in_bytes(site.bytes_out)} out"
    )
    axes.text(
        x, y + lift - 0.012, figures, ha=side, va="top", fontsize=8.5, color=INK, linespacing=1.4
    )


def _legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D

    line = Line2D([], [], color=SECOND, linewidth=2.4, label="between sites")
    axes.legend(handles=[line], loc="lower left", frameon=False, fontsize=9.5, labelcolor=INK)


# -- a graph, site by site ------------------------------------------------------------------------


def _bubbles(axes: Axes, plan: Plan) -> None:
    """A bubble for each site, its area by clients; lines as wide as what crosses."""
    placed, sites = _placed(plan), plan.sites
    work, exchange = plan.inputs.work, plan.inputs.exchanges[0]
    crossing = crossing_between(work, placed, len(sites), exchange)
    matrix = crossing.states + crossing.sums
    both = (matrix + matrix.T) * work.mixing_steps
    points, radii = _ring_of(sites)
    pairs = [(a, b) for a in range(len(sites)) for b in range(a) if both[a, b]]
    pairs.sort(key=lambda pair: (-int(both[pair]), pair))
    most = max([1, *(int(both[pair]) for pair in pairs)])
    taken: list[Points] = []
    for pair in pairs:
        curve, share = _bend(*points[list(pair)]), both[pair] / most
        _link(axes, curve, SECOND, 0.8 + 11 * share, 0.3 + 0.35 * share)
        if len(sites) <= LABELLED:
            taken.append(_free(curve, taken))
            _amount(axes, taken[-1], f"{both[pair]:,}")
    _sites(axes, sites, points, radii)
    axes.set_xlim(-WIDE, WIDE)
    axes.set_ylim(-HIGH, HIGH)


def _star(axes: Axes, plan: Plan) -> None:
    """The coordinator in the middle, a bubble for each site, lines as wide as bytes cross."""
    points, radii = _ring_of(plan.sites)
    middle = np.zeros(2)
    most = max([site.bytes_in + site.bytes_out for site in plan.sites], default=1.0) or 1.0
    for site, point in zip(plan.sites, points, strict=True):
        share = (site.bytes_in + site.bytes_out) / most
        if site.clients:
            _link(axes, np.stack([middle, point]), INNER, 0.8 + 5 * share, 0.5)
    from matplotlib.patches import Circle

    axes.add_patch(Circle((0, 0), 0.17, facecolor=INK, edgecolor="white", linewidth=2, zorder=3))
    axes.text(
        *(0, 0, "coordinator"),
        ha="center",
        va="center_baseline",
        color="white",
        fontsize=8,
        fontweight="bold",
        zorder=4,
    )
    _sites(axes, plan.sites, points, radii)
    axes.set_xlim(-WIDE, WIDE)
    axes.set_ylim(-HIGH, HIGH)


def _ring_of(sites: Sequence[SitePlan]) -> tuple[Points, Points]:
    """Where the bubbles of sites are, and their radii; areas are in proportion to clients."""
    turn = math.pi / 2 - 2 * math.pi * np.arange(len(sites)) / max(1, len(sites))
    if len(sites) == 2:
        turn = np.array([math.pi, 0.0])
    points = AWAY * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    largest = max([site.clients for site in sites], default=1) or 1
    room = AWAY * math.sin(math.pi / max(3, len(sites)))
    radii = np.array(
        [max(0.02, min(0.24, 0.62 * room) * math.sqrt(s.clients / largest)) for s in sites]
    )
    return points, radii


def _sites(axes: Axes, sites: Sequence[SitePlan], points: Points, radii: Points) -> None:
    from matplotlib.patches import Circle

    for place, (site, point, radius) in enumerate(zip(sites, points, radii, strict=True)):
        colour = _colour(place)
        axes.add_patch(
            Circle(
                (float(point[0]), float(point[1])),
                float(radius),
                facecolor=colour,
                edgecolor="white",
                linewidth=2.5,
                zorder=3,
            )
        )
        away = point / (np.linalg.norm(point) or 1.0)
        x, y = point + away * (radius + 0.05)
        side = "center" if abs(away[0]) < 0.3 else ("left" if away[0] > 0 else "right")
        lift = 0.1 if away[1] > 0.9 else -0.02 if away[1] < -0.9 else 0.03
        if len(sites) <= 24:
            _words(axes, (float(x), float(y)), site, colour, side, lift)
        else:
            axes.text(x, y, site.site, ha=side, va="center", fontsize=7, color=colour)


def _link(axes: Axes, curve: Points, colour: str, width: float, alpha: float) -> None:
    axes.plot(
        *(curve[:, 0], curve[:, 1]),
        color=colour,
        linewidth=width,
        alpha=alpha,
        solid_capstyle="round",
        zorder=1,
    )


def _free(curve: Points, taken: Sequence[Points]) -> Points:
    """The place on a curve, near its middle, that is farthest from places that are taken."""
    candidates = [curve[at] for at in (24, 21, 27, 18, 30, 16, 32)]
    room = [min([ROOM, *(float(np.linalg.norm(c - t)) for t in taken)]) for c in candidates]
    best: Points = candidates[int(np.argmax(room))]
    return best


def _bend(one: Points, other: Points) -> Points:
    t = np.linspace(0, 1, 48)[:, None]
    pull = (one + other) / 2 * 0.55
    curve: Points = (1 - t) ** 2 * one + 2 * t * (1 - t) * pull + t**2 * other
    return curve


def _amount(axes: Axes, at: Points, text: str) -> None:
    axes.text(
        *(at[0], at[1], text),
        ha="center",
        va="center_baseline",
        fontsize=8.5,
        color=INK,
        zorder=2,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": FAINT},
    )


def _placed(plan: Plan) -> Lines:
    """(clients,): the place of each client's site."""
    capacity = capacities(plan.inputs, (), {site.site: site.vnodes for site in plan.sites})
    return places_of(plan.assignment.shares, capacity, plan.inputs.population)


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]
