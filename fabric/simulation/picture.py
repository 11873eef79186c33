"""Draws what each project had over time, against its quota and its fair share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.scheduling.records import UNLIMITED
from .replay import VirtualReplay

COLUMNS = 3
WIDTH, HEIGHT = 4.0, 2.4
"""Of one project, in inches."""
HAS, SHARE, QUOTA = "#4c78a8", "#f58518", "#54a24b"
TIMES = (("hours", 3600, 7200), ("minutes", 60, 600), ("seconds", 1, 0))
"""Units of time, their seconds, and from which length of a replay they are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCurve:
    """What one queue had of one resource over time."""

    title: str
    resource: str
    times_s: Sequence[float]
    """When each value begins, and at last when the last one ends."""
    allocated: Sequence[float]
    fairshare: Sequence[float] | None
    """None: unlimited."""
    quota: Sequence[float] | None
    """None: unlimited."""


def draw(replay: VirtualReplay, title: str, file: Path) -> None:
    """A PNG with a plot per project and pool, of the first resource that is rationed there."""
    facts = replay.facts
    curves = []
    for i, queue in enumerate(facts.queues):
        if not queue.leaf:
            continue
        resource = _resource(queue.rationed, facts.scale.gpu)
        unit = facts.scale.units[resource]
        share = [each.fairshare[i][resource] for each in replay.samples]
        unlimited = max(share, default=0) >= UNLIMITED
        quota = queue.quota[resource]
        curves.append(
            QueueCurve(
                title=f"{queue.name} in {queue.pool}",
                resource=facts.scale.names[resource],
                times_s=[*(each.at_s for each in replay.samples), replay.ends_s],
                allocated=[each.allocated[i][resource] / unit for each in replay.samples],
                fairshare=None if unlimited else [each / unit for each in share],
                quota=None if quota >= UNLIMITED else [quota / unit] * len(share),
            )
        )
    draw_curves(curves, title, file)


def draw_curves(
    curves: Sequence[QueueCurve], title: str, file: Path, since: str | None = None
) -> None:
    """A PNG with a plot per queue; `since` says in words when time 0 is."""
    from matplotlib.figure import Figure

    columns = max(1, min(COLUMNS, len(curves)))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.5), layout="constrained")
    figure.suptitle(title)
    ends_s = max((curve.times_s[-1] for curve in curves), default=0.0)
    unit_of_time, seconds = next((n, s) for n, s, least in TIMES if ends_s >= least)
    for number, curve in enumerate(curves):
        times = [each / seconds for each in curve.times_s]
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.stairs(curve.allocated, times, fill=True, color=HAS, alpha=0.6, label="allocated")
        if curve.fairshare is not None:
            axes.stairs(curve.fairshare, times, color=SHARE, label="fair share")
        if curve.quota is not None:
            axes.stairs(
                curve.quota, times, baseline=None, color=QUOTA, linestyle=":", label="quota"
            )
        axes.set_title(curve.title, fontsize="medium")
        axes.set_ylabel(curve.resource)
        axes.set_ylim(bottom=0)
        if number == 0:
            figure.legend(fontsize="small", loc="outside lower center", ncols=3)
        if number >= len(curves) - columns:
            axes.set_xlabel(f"{unit_of_time} since {since}" if since else unit_of_time)
    figure.savefig(file, dpi=110)


def _resource(rationed: tuple[bool, ...], gpu: int | None) -> int:
    """GPUs if they are rationed, else the first resource that is."""
    if gpu is not None and rationed[gpu]:
        return gpu
    return next((i for i, some in enumerate(rationed) if some), 0)
