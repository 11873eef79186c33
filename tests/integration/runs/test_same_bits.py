"""One resolved config, one model, bit for bit: however many workers and sites, whatever died."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedpilot import Federation
from fedpilot.fabric import Cluster, RayCluster
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated.config import parse_config, to_yaml
from fedpilot.federated.federation.events import Event
from real_ray import fedpilot, ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROUNDS = 4

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {
        "model": {"model_type": "mlp"},
        "data": {
            "dataset_type": "digits",
            "data_distribution_kind": "dirichlet",
            "dirichlet_beta": 0.3,
        },
        "training": {"number_of_epochs": 8, "batch_size": 10, "execution": "compiled"},
    },
    "cnn": {
        "model": {"model_type": "cnn"},
        "data": {
            "dataset_type": "synthetic",
            "options": {"samples": 600, "shape": [1, 8, 8]},
            "data_distribution_kind": "bootstrap",
            "samples_per_client": [5, 25],
        },
        "training": {"batch_size": 5, "execution": "sequential", "momentum": 0.9},
    },
    "transformer": {
        "model": {
            "model_type": "transformer",
            "options": {"vocabulary": 32, "width": 24, "heads": 2, "layers": 2, "dropout": 0.1},
        },
        "data": {
            "dataset_type": "synthetic",
            "options": {"samples": 400, "vocabulary": 32, "sequence_length": 12},
            "data_distribution_kind": "bootstrap",
            "samples_per_client": [4, 16],
        },
        "training": {"batch_size": 4, "execution": "folded", "optimizer": "adam"},
    },
}


def config(name: str, folder: Path, *, workers: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """The config of a model, resolved but for where and with how many workers it runs."""
    chosen = MODELS[name]
    return {
        "federation": {"number_of_clients": 40, "clients_per_round": 24, "rounds": rounds},
        "model": chosen["model"],
        "data": chosen["data"],
        "training": {"learning_rate": 0.01, "chunk_size": 8, **chosen["training"]},
        "resources": {"workers": workers},
        "outputs": {"folder": str(folder), "curves": False},
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Room for four workers."""
    with ray_head(num_cpus=4) as address, RayCluster.connect(address) as connected:
        yield connected


def digest(
    cluster: Cluster,
    settings: dict[str, Any],
    *,
    sites: Sequence[str] = ("local",),
    observe: Any = None,
) -> str:
    """Of the last model of a run."""
    observers = [observe] if observe else []
    with Federation(settings, cluster=cluster, sites=sites, observers=observers) as federation:
        return federation.run().digest


SOME = [
    pytest.param("mlp"),
    *(pytest.param(name, marks=pytest.mark.soak) for name in ("cnn", "transformer")),
]


@pytest.fixture(scope="module", params=SOME)
def model(request: pytest.FixtureRequest) -> str:
    """A model's name."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def expected(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one worker gives that nothing happens to, without Ray."""
    alone = FakeCluster([fake_machine("a", CPU=1)])
    return digest(alone, config(model, tmp_path_factory.mktemp("runs"), workers=1))


@pytest.mark.parametrize(
    "workers", [2, *(pytest.param(count, marks=pytest.mark.soak) for count in (3, 4))]
)
def test_the_number_of_workers_changes_nothing(
    model: str, expected: str, cluster: RayCluster, tmp_path: Path, workers: int
) -> None:
    assert digest(cluster, config(model, tmp_path, workers=workers)) == expected


@pytest.mark.soak
def test_two_sites_give_what_one_gives(
    model: str, expected: str, cluster: RayCluster, tmp_path: Path
) -> None:
    assert digest(cluster, config(model, tmp_path, workers=1), sites=("a", "b")) == expected


CLASSES = [
    {"name": "odd", "workers": 1, "clients": {"ids": "client_*[13579]"}},
    {"name": "even", "workers": {"min": 1, "max": 2}},
]


def with_classes(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "resources": {"groups": CLASSES}}


@pytest.mark.soak
def test_vnode_classes_on_a_shared_ray_change_nothing(
    model: str, expected: str, cluster: RayCluster, tmp_path: Path
) -> None:
    of_classes: list[str] = []

    def look(event: Event) -> None:
        if event.name == "worker_ready":
            of_classes.append(event.fields["vnode_class"])

    settings = with_classes(config(model, tmp_path, workers=2))
    assert digest(cluster, settings, observe=look) == expected
    assert {"odd", "even"} == set(of_classes)


@pytest.mark.soak
def test_vnode_classes_on_a_private_ray_change_nothing(
    model: str, expected: str, tmp_path: Path
) -> None:
    settings = with_classes(config(model, tmp_path, workers=2))
    settings["resources"]["ray"] = {"num_cpus": 3}
    (tmp_path / "config.yaml").write_text(to_yaml(parse_config(settings)))
    with fedpilot(["run", "config.yaml", "--json"], tmp_path) as run:
        assert run.finish() == 0, run.error()
        assert run.last("workers_ready")["vnode_classes"] == {"odd": 1, "even": 2}
        assert run.last("run_finished")["digest"] == expected


class Killer:
    """Kills one worker in the middle of every round, by SIGKILL."""

    def __init__(self, after_s: float) -> None:
        self.killed = 0
        self._after_s = after_s
        self._alive: list[int] = []

    def __call__(self, event: Event) -> None:
        if event.name == "worker_ready":
            self._alive.append(event.fields["pid"])
        elif event.name == "round_started" and self._alive:
            threading.Timer(self._after_s, self._kill, [self._alive.pop(0)]).start()

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.killed += 1


@pytest.mark.soak
def test_a_worker_killed_in_every_round_changes_nothing(
    model: str,
    expected: str,
    cluster: RayCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Many small pieces, so that a worker dies with a sum that was not handed up.
    monkeypatch.setattr("fedpilot.federated.core.rounds.chunking.SHORT_S", 0.0)
    monkeypatch.setattr("fedpilot.federated.core.rounds.chunking.LEAST_S", 0.0)
    killer = Killer(after_s=0.02)
    found = digest(cluster, config(model, tmp_path, workers=2), observe=killer)
    assert found == expected
    assert killer.killed == ROUNDS


@pytest.mark.soak
@pytest.mark.parametrize(
    "model",
    ["mlp", *(pytest.param(name, marks=pytest.mark.soak) for name in ("cnn", "transformer"))],
)
def test_a_run_killed_in_every_third_round_and_resumed_gives_the_same(
    model: str, cluster: RayCluster, tmp_path: Path
) -> None:
    settings = config(model, tmp_path / "calm", workers=2, rounds=9)
    expected = digest(cluster, settings)
    settings["outputs"]["folder"] = "runs"
    settings["resources"]["ray"] = {"num_cpus": 2}
    (tmp_path / "config.yaml").write_text(to_yaml(parse_config(settings)))
    arguments = ["run", "config.yaml", "--json", "--run-id", "r"]
    for number in (3, 6, 9):
        with fedpilot(arguments, tmp_path) as run:
            run.wait_for("round_started", round=number)
            run.signal(signal.SIGKILL)
            run.process.wait(60)
        arguments = ["run", "--resume", "r", "--json"]
    with fedpilot(arguments, tmp_path) as run:
        assert run.finish() == 0, run.error()
        assert run.last("run_finished")["digest"] == expected
