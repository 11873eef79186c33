"""The metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics, parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from fedpilot.fabric.core.ray_clusters.metering import ClusterMeter, Durations
from fedpilot.fabric.ray_clusters.metrics.families import ExposedCluster, families

DEMO = ExposedCluster(
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


class Told:
    """A collector of these families."""

    def __init__(self, *clusters: ExposedCluster) -> None:
        self.clusters = clusters

    def collect(self) -> list[Metric]:
        return families(self.clusters, managed=True)


def registered(*clusters: ExposedCluster) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Told(*clusters))
    return registry


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("managed", {}, 1),
        ("state", {"cluster": "demo", "state": "scaling"}, 1),
        ("machines_wanted", {"cluster": "demo", "group": "small"}, 5),
        ("machines", {"cluster": "demo", "group": "small", "state": "starting"}, 1),
        ("machines", {"cluster": "demo", "group": "far", "state": "starting"}, None),
        ("idle_share", {"cluster": "demo"}, 0.25),
        ("heal_seconds_bucket", {"cluster": "demo", "le": "0.1"}, 0),
        ("heal_seconds_bucket", {"cluster": "demo", "le": "0.3"}, 1),
        ("heal_seconds_bucket", {"cluster": "demo", "le": "10.0"}, 2),
        ("heal_seconds_bucket", {"cluster": "demo", "le": "+Inf"}, 3),
        ("heal_seconds_sum", {"cluster": "demo"}, 1009.2),
        ("heal_seconds_count", {"cluster": "demo"}, 3),
        ("ready_seconds_count", {"cluster": "demo"}, 0),
        ("machine_seconds_total", {"cluster": "demo", "group": "small"}, 12.5),
        ("idle_seconds_total", {"cluster": "demo", "group": "small"}, 2),
    ],
)
def test_a_value_is_found_by_its_name_and_labels(
    name: str, labels: dict[str, str], value: float | None
) -> None:
    assert registered(DEMO).get_sample_value(f"fedpilot_raycluster_{name}", labels) == value


@pytest.mark.parametrize(
    ("write", "read"),
    [
        pytest.param(generate_latest, text_string_to_metric_families, id="Prometheus' text"),
        pytest.param(
            openmetrics.generate_latest,
            openmetrics_parser.text_string_to_metric_families,
            id="OpenMetrics",
        ),
    ],
)
def test_what_is_written_is_read_again(
    write: Callable[[CollectorRegistry], bytes], read: Callable[[str], list[Metric]]
) -> None:
    odd = ExposedCluster(name='a"\\\n', state="ready", meter=ClusterMeter())
    registry = registered(DEMO, odd)
    assert list(read(write(registry).decode())) == list(registry.collect())


def test_without_clusters_each_metric_is_told_of() -> None:
    told = families((), managed=False)
    assert [each.name for each in told] == [each.name for each in families([DEMO], managed=True)]
    assert [sample.value for each in told for sample in each.samples] == [0]
