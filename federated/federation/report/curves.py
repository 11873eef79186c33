"""Draws curves.png: accuracy, loss and speed of a run's rounds."""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, ACCENT, SECOND, FAINT = "#1f2933", "#0b7285", "#e8590c", "#cbd2d9"


def prepare() -> None:
    """Import in a thread what `draw` needs, since the import takes longer than to draw."""
    importing = threading.Thread(target=_import, name="curves", daemon=True)
    importing.start()


def _import() -> None:
    with suppress(ImportError):  # `draw` reports it
        importlib.import_module("matplotlib.figure")


def draw(
    rows: Sequence[Mapping[str, Any]], path: Path, *, title: str, metric: str = "accuracy"
) -> None:
    """Draw the metrics of a run's rounds into a PNG; the best by `metric` is marked."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 4.2), dpi=150)
    figure.subplots_adjust(left=0.055, right=0.99, top=0.84, bottom=0.125, wspace=0.12)
    left, right = figure.subplots(1, 2)
    rounds, accuracies = _series(rows, "accuracy")
    if accuracies:
        best = _best(rows, metric, rounds)
        left.plot(rounds, accuracies, color=ACCENT, linewidth=2)
        left.plot(rounds[best], accuracies[best], "o", color=ACCENT, markersize=6)
        left.annotate(
            f"best {accuracies[best]:.4f}\nround {rounds[best]}",
            (rounds[best], accuracies[best]),
            textcoords="offset points",
            xytext=(0, -14),
            ha="right" if rounds[best] > rounds[-1] / 2 else "left",
            va="top",
            color=INK,
            fontsize=9,
        )
        shown = [*accuracies, *_of_nodes(left, rows)]
        left.set_ylim(max(0.0, min(shown) - 0.05), min(1.02, max(shown) + 0.05))
    left.set_title("accuracy", loc="left", fontsize=11, color=INK)
    for name, label, colour in (
        ("train_loss", "clients, while training", FAINT),
        ("loss", "global model", SECOND),
    ):
        rounds, losses = _series(rows, name)
        if losses:
            alone = "o" if len(losses) == 1 else None  # a line of one point is invisible
            right.plot(rounds, losses, marker=alone, color=colour, linewidth=2, label=label)
    right.set_title("loss", loc="left", fontsize=11, color=INK)
    right.set_ylim(bottom=0)
    if right.lines:
        right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.set_xlabel("round", color=INK)
        if rows:
            first, last = rows[0]["round"], rows[-1]["round"]
            beside = max(0.5, (last - first) / 40)
            axes.set_xlim(first - beside, last + beside)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=FAINT, linewidth=0.6, alpha=0.7)
        axes.tick_params(colors=INK)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    aside = path.with_name(f".{path.name}.tmp")
    figure.savefig(aside, format="png")
    aside.replace(path)


def _of_nodes(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Draw the accuracy of a graph's nodes, if there is any; returns all that was drawn."""
    drawn: list[float] = []
    for name, label, style in (
        ("node_accuracy", "clients' own models", "-"),
        ("worst_node_accuracy", "worst tenth of them", ":"),
    ):
        rounds, accuracies = _series(rows, name)
        if accuracies:
            alone = "o" if len(accuracies) == 1 else None
            axes.plot(rounds, accuracies, style, marker=alone, color=SECOND, label=label)
            drawn += accuracies
    if drawn:
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    return drawn


def _best(rows: Sequence[Mapping[str, Any]], metric: str, rounds: Sequence[int]) -> int:
    values = dict(zip(*_series(rows, metric), strict=True))
    sign = 1.0 if metric == "accuracy" else -1.0
    return max(range(len(rounds)), key=lambda i: sign * values.get(rounds[i], -sign * math.inf))


def _series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    pairs = [(row["round"], row[name]) for row in rows if row.get(name) is not None]
    return [r for r, _ in pairs], [value for _, value in pairs]
