"""The metrics as Prometheus reads them."""

from __future__ import annotations

import re

from fedpilot.fabric.core.ray_clusters.metering import ClusterMeter, Durations
from fedpilot.fabric.ray_clusters.metrics.exposition import METRICS, ExposedCluster, exposition

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


def test_values_are_lines_below_their_help_and_type() -> None:
    cluster = ExposedCluster(
        name="demo",
        state="scaling",
        groups={
            "headgroup": {"wanted": 1, "ready": 1, "starting": 0, "idle": 1},
            "small": {"wanted": 5, "ready": 4, "starting": 1, "idle": 1},
            "far": {"wanted": 1, "ready": 1},
        },
        meter=ClusterMeter(
            heal=Durations().with_one(0.2).with_one(9.0).with_one(1000.0),
            machine_s={"small": 12.5},
            idle_s={"small": 2.0},
        ),
    )
    text = exposition([cluster], managed=True)
    lines = text.splitlines()
    assert text.endswith("\n")
    for line in (
        "fedpilot_raycluster_managed 1",
        'fedpilot_raycluster_state{cluster="demo",state="scaling"} 1',
        'fedpilot_raycluster_machines_wanted{cluster="demo",group="small"} 5',
        'fedpilot_raycluster_machines{cluster="demo",group="small",state="starting"} 1',
        'fedpilot_raycluster_idle_share{cluster="demo"} 0.25',
        'fedpilot_raycluster_heal_seconds_bucket{cluster="demo",le="0.1"} 0',
        'fedpilot_raycluster_heal_seconds_bucket{cluster="demo",le="0.3"} 1',
        'fedpilot_raycluster_heal_seconds_bucket{cluster="demo",le="10"} 2',
        'fedpilot_raycluster_heal_seconds_bucket{cluster="demo",le="+Inf"} 3',
        'fedpilot_raycluster_heal_seconds_sum{cluster="demo"} 1009.2',
        'fedpilot_raycluster_heal_seconds_count{cluster="demo"} 3',
        'fedpilot_raycluster_ready_seconds_count{cluster="demo"} 0',
        'fedpilot_raycluster_machine_seconds_total{cluster="demo",group="small"} 12.5',
        'fedpilot_raycluster_idle_seconds_total{cluster="demo",group="small"} 2',
    ):
        assert line in lines
    for metric in METRICS:
        start = lines.index(f"# HELP {metric.name} {metric.help}")
        assert lines[start + 1] == f"# TYPE {metric.name} {metric.kind}"
        assert lines[start + 2].startswith(metric.name)
    values = [line for line in lines if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in values)
    assert len({line.rpartition(" ")[0] for line in values}) == len(values)


def test_without_clusters_each_metric_is_told_of() -> None:
    lines = exposition((), managed=False).splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["fedpilot_raycluster_managed 0"]


def test_a_label_is_escaped() -> None:
    odd = ExposedCluster(name='a"\\\n', state="ready", meter=ClusterMeter())
    assert '{cluster="a\\"\\\\\\n",state="ready"} 1' in exposition([odd], managed=True)
