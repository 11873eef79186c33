"""The metrics of declared Ray clusters: names, help, labels and values, for prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily as Counter,
    GaugeMetricFamily as Gauge,
    HistogramMetricFamily as Histogram,
)

from ...core.ray_clusters.declaration import HEAD
from ...core.ray_clusters.machines import MachineState
from ...core.ray_clusters.metering import BOUNDS_S, ClusterMeter

P = "fedpilot_raycluster"
CLUSTER, GROUP = ("cluster",), ("cluster", "group")
BOUNDS = (*map(str, BOUNDS_S), "+Inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedCluster:
    """A declared Ray cluster at one moment."""

    name: str
    state: str
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """As its manager shows them."""
    meter: ClusterMeter


def families(clusters: Iterable[ExposedCluster], *, managed: bool) -> list[Metric]:
    """All metrics, also those without a value."""
    on = Gauge(
        f"{P}_managed",
        "1 while a lifecycle manager keeps the site's Ray clusters, else 0",
        value=managed,
    )
    state = Gauge(
        f"{P}_state", "1 for the state that the cluster is in", labels=(*CLUSTER, "state")
    )
    wanted = Gauge(f"{P}_machines_wanted", "machines that a group should have", labels=GROUP)
    machines = Gauge(
        f"{P}_machines", "machines that a group has, by state", labels=(*GROUP, "state")
    )
    idle_share = Gauge(
        f"{P}_idle_share",
        "idle workers among those that are ready, from 0 to 1, in groups of which it is known",
        labels=CLUSTER,
    )
    reaction = Histogram(
        f"{P}_reaction_seconds",
        "seconds from a declaration to the first event of its manager for it",
        labels=CLUSTER,
    )
    ready = Histogram(
        f"{P}_ready_seconds",
        "seconds from a declaration to a cluster that is as declared",
        labels=CLUSTER,
    )
    heal = Histogram(
        f"{P}_heal_seconds",
        "seconds from the notice that machines are missing to a cluster that is whole again",
        labels=CLUSTER,
    )
    machine_s = Counter(
        f"{P}_machine_seconds_total",
        "seconds of ready machines, summed over those of which it is known whether they are idle",
        labels=GROUP,
    )
    idle_s = Counter(
        f"{P}_idle_seconds_total", "those of them in which a machine was idle", labels=GROUP
    )
    for each in sorted(clusters, key=lambda each: each.name):
        state.add_metric((each.name, each.state), 1)
        idle, known = 0, 0
        for name, group in sorted(each.groups.items()):
            wanted.add_metric((each.name, name), group.get("wanted", 0))
            for of in MachineState:
                if of in group:
                    machines.add_metric((each.name, name, of), group[of])
            if "idle" in group and name != HEAD:
                idle, known = idle + group["idle"], known + group.get("ready", 0)
        if known:
            idle_share.add_metric((each.name,), idle / known)
        meter = each.meter
        for histogram, durations in (
            (reaction, meter.reaction),
            (ready, meter.ready),
            (heal, meter.heal),
        ):
            buckets = list(zip(BOUNDS, accumulate(durations.counts), strict=True))
            histogram.add_metric((each.name,), buckets, durations.sum_s)
        for counter, seconds in ((machine_s, meter.machine_s), (idle_s, meter.idle_s)):
            for name, value in sorted(seconds.items()):
                counter.add_metric((each.name, name), value)
    return [on, state, wanted, machines, idle_share, reaction, ready, heal, machine_s, idle_s]
