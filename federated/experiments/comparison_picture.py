"""Draws the rounds of several points into one picture: means over seeds, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpilot.common.host.whole_files import replacing

from ..federation.report.curves import FAINT, INK
from .comparison import ComparedPoint, short_names

COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#1864ab", "#846358", "#5c940d")
MOST_IN_LEGEND = 24


def draw_comparison(
    points: Sequence[ComparedPoint], path: Path, *, metric: str, title: str
) -> None:
    """Draw a metric of some points over the rounds into a PNG; a point without values is left out.

    With more points than `COLOURS`, the colours go from dark to light in the order of the points.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    names = short_names(points[0].values if points else ())
    many = colormaps["viridis"]
    drawn = [(point, band) for point in points if (band := point.band(metric))]
    for at, (point, band) in enumerate(drawn):
        few = len(drawn) <= len(COLOURS)
        colour = COLOURS[at] if few else many(at / len(drawn))
        rounds, means = [number for number, _ in band], [spread.mean for _, spread in band]
        widths = [spread.half_width or 0.0 for _, spread in band]
        alone = "o" if len(rounds) == 1 else None  # a line of one point is invisible
        label = _plain(point.label(names)) if at < MOST_IN_LEGEND else None
        axes.plot(rounds, means, color=colour, marker=alone, linewidth=2, label=label)
        if any(widths):
            low = [mean - width for mean, width in zip(means, widths, strict=True)]
            high = [mean + width for mean, width in zip(means, widths, strict=True)]
            axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    counts = {spread.count for _, band in drawn for _, spread in band}
    if counts and max(counts) > 1:
        seeds = "-".join(str(each) for each in sorted({min(counts), max(counts)}))
        title = f"{title}: mean and 95 % interval over {seeds} seeds"
    axes.set_title(_plain(title), loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel("round", color=INK)
    axes.set_ylabel(metric.replace("_", " "), color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, linewidth=0.6, alpha=0.7)
    axes.tick_params(colors=INK)
    if drawn and names:
        axes.legend(frameon=False, fontsize=9)
    with replacing(path) as aside:
        figure.savefig(aside, format="png")


def _plain(text: str) -> str:
    """A text without the sign that begins a formula."""
    return text.replace("$", r"\$")
