"""The metrics of declared Ray clusters as Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.ray_clusters.declaration import HEAD
from ...core.ray_clusters.machines import MachineState
from ...core.ray_clusters.metering import BOUNDS_S, ClusterMeter, Durations

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of values."""

    name: str
    kind: str
    """`gauge`, `counter` or `histogram`."""
    labels: tuple[str, ...]
    help: str
    """One sentence."""


P = "fedpilot_raycluster"
MANAGED = Metric(
    f"{P}_managed", "gauge", (), "1 while a lifecycle manager keeps the site's Ray clusters, else 0"
)
STATE = Metric(
    f"{P}_state", "gauge", ("cluster", "state"), "1 for the state that the cluster is in"
)
WANTED = Metric(
    f"{P}_machines_wanted", "gauge", ("cluster", "group"), "machines that a group should have"
)
MACHINES = Metric(
    f"{P}_machines", "gauge", ("cluster", "group", "state"), "machines that a group has, by state"
)
IDLE_SHARE = Metric(
    f"{P}_idle_share",
    "gauge",
    ("cluster",),
    "idle workers among those that are ready, from 0 to 1, in groups of which it is known",
)
REACTION = Metric(
    f"{P}_reaction_seconds",
    "histogram",
    ("cluster",),
    "seconds from a declaration to the first event of its manager for it",
)
READY = Metric(
    f"{P}_ready_seconds",
    "histogram",
    ("cluster",),
    "seconds from a declaration to a cluster that is as declared",
)
HEAL = Metric(
    f"{P}_heal_seconds",
    "histogram",
    ("cluster",),
    "seconds from the notice that machines are missing to a cluster that is whole again",
)
MACHINE_SECONDS = Metric(
    f"{P}_machine_seconds_total",
    "counter",
    ("cluster", "group"),
    "seconds of ready machines, summed over those of which it is known whether they are idle",
)
IDLE_SECONDS = Metric(
    f"{P}_idle_seconds_total",
    "counter",
    ("cluster", "group"),
    "those of them in which a machine was idle",
)
METRICS = (
    *(MANAGED, STATE, WANTED, MACHINES, IDLE_SHARE),
    *(REACTION, READY, HEAL, MACHINE_SECONDS, IDLE_SECONDS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedCluster:
    """A declared Ray cluster at one moment."""

    name: str
    state: str
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """As its manager shows them."""
    meter: ClusterMeter


Sample = tuple[str, Mapping[str, str], float]
"""A suffix of the name, labels and a value."""


def exposition(clusters: Sequence[ExposedCluster], *, managed: bool) -> str:
    """The text of all metrics."""
    samples = _samples(sorted(clusters, key=lambda each: each.name), managed)
    return "".join(_family(metric, samples[metric.name]) for metric in METRICS)


def _samples(clusters: Sequence[ExposedCluster], managed: bool) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
    found[MANAGED.name].append(("", {}, float(managed)))
    for each in clusters:
        of = {"cluster": each.name}
        found[STATE.name].append(("", {**of, "state": each.state}, 1.0))
        idle, known = 0, 0
        for name, group in sorted(each.groups.items()):
            here = {**of, "group": name}
            found[WANTED.name].append(("", here, group.get("wanted", 0)))
            for state in MachineState:
                if state in group:
                    found[MACHINES.name].append(("", {**here, "state": state}, group[state]))
            if "idle" in group and name != HEAD:
                idle, known = idle + group["idle"], known + group.get("ready", 0)
        if known:
            found[IDLE_SHARE.name].append(("", of, idle / known))
        for metric, durations in (
            (REACTION, each.meter.reaction),
            (READY, each.meter.ready),
            (HEAL, each.meter.heal),
        ):
            found[metric.name] += _histogram(of, durations)
        for metric, seconds in (
            (MACHINE_SECONDS, each.meter.machine_s),
            (IDLE_SECONDS, each.meter.idle_s),
        ):
            found[metric.name] += [
                ("", {**of, "group": name}, value) for name, value in sorted(seconds.items())
            ]
    return found


def _histogram(of: Mapping[str, str], durations: Durations) -> Iterator[Sample]:
    below = 0
    for bound, count in zip((*BOUNDS_S, None), durations.counts, strict=True):
        below += count
        yield "_bucket", {**of, "le": "+Inf" if bound is None else f"{bound:g}"}, below
    yield "_sum", of, durations.sum_s
    yield "_count", of, durations.count


def _family(metric: Metric, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
    for suffix, labels, value in samples:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{metric.name}{suffix}{f'{{{told}}}' if told else ''} {value:.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
