"""Draws a replay: what each project had over time, against its quota and its fair share."""

from __future__ import annotations

import math
from pathlib import Path

from ..core.scheduling.records import UNLIMITED, QueueIndex
from .replay import VirtualReplay

COLUMNS = 3
WIDTH, HEIGHT = 4.0, 2.4
"""Of one project, in inches."""
HAS, SHARE, QUOTA = "#4c78a8", "#f58518", "#54a24b"
TIMES = (("hours", 3600, 7200), ("minutes", 60, 600), ("seconds", 1, 0))
"""Units of time, their seconds, and from which length of a replay they are used."""


def draw(replay: VirtualReplay, title: str, file: Path) -> None:
    """A PNG with a plot per project and pool, of the first resource that is rationed there."""
    from matplotlib.figure import Figure

    facts = replay.facts
    shown = [QueueIndex(i) for i, queue in enumerate(facts.queues) if queue.leaf]
    columns = max(1, min(COLUMNS, len(shown)))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.5), layout="constrained")
    figure.suptitle(title)
    unit_of_time, seconds = next((n, s) for n, s, least in TIMES if replay.ends_s >= least)
    times = [each.at_s / seconds for each in replay.samples] + [replay.ends_s / seconds]
    for number, index in enumerate(shown):
        queue = facts.queues[index]
        resource = _resource(queue.rationed, facts.scale.gpu)
        unit, name = facts.scale.units[resource], facts.scale.names[resource]
        axes = figure.add_subplot(rows, columns, number + 1)
        has = [each.allocated[index][resource] / unit for each in replay.samples]
        share = [each.fairshare[index][resource] for each in replay.samples]
        axes.stairs(has, times, fill=True, color=HAS, alpha=0.6, label="allocated")
        if max(share, default=0) < UNLIMITED:
            axes.stairs([each / unit for each in share], times, color=SHARE, label="fair share")
        if queue.quota[resource] < UNLIMITED:
            axes.axhline(queue.quota[resource] / unit, color=QUOTA, linestyle=":", label="quota")
        axes.set_title(f"{queue.name} in {queue.pool}", fontsize="medium")
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        if number == 0:
            figure.legend(fontsize="small", loc="outside lower center", ncols=3)
        if number >= len(shown) - columns:
            axes.set_xlabel(unit_of_time)
    figure.savefig(file, dpi=110)


def _resource(rationed: tuple[bool, ...], gpu: int | None) -> int:
    """GPUs if they are rationed, else the first resource that is."""
    if gpu is not None and rationed[gpu]:
        return gpu
    return next((i for i, some in enumerate(rationed) if some), 0)
