"""A graph on real Ray: every client's model has the same bits, at one site or at several.

And in a run that was killed.
"""

from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from real_ray import Command, fedpilot
from waiting_runs import calm_run, waiting_model

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CONFIG = """
federation:
  number_of_clients: 24
  rounds: {rounds}
  topology: {topology}
  aggregation_strategy: {strategy}
{graph}
model: {model}
data:
  dataset_type: digits
  options: {{image: {image}}}
  data_distribution_kind: dirichlet
  dirichlet_beta: 0.5
training: {{number_of_epochs: {epochs}, batch_size: 5, execution: sequential}}
evaluation: {{every: 5}}
resources: {{workers: {workers}, ray: {{num_cpus: {workers}}}}}
sites: {sites}
outputs: {{curves: false, client_digests: true}}
"""
KILLED = {"rounds": 4, "epochs": 1}
"""With a model that waits, long enough to be killed amid a round."""


STRATEGIES = {"ring": "dpsgd", "matching": "dpsgd", "custom": "push_sum"}
DIRECTED = "\n".join(
    ",".join(str(int(to in ((of + 1) % 24, of * of % 24))) for to in range(24)) for of in range(24)
)
"""A directed ring with shortcuts, as a matrix."""


def write_config(folder: Path, *, workers: int, sites: int = 1, **keys: Any) -> Path:
    """Write the config of a run and what it names."""
    folder.mkdir(exist_ok=True)
    (folder / "directed.csv").write_text(DIRECTED)
    text = CONFIG.format(
        workers=workers,
        sites=sites,
        image=str("lenet" in keys["model"]).lower(),
        strategy=STRATEGIES[keys["topology"]],
        graph="graph: {file: directed.csv}" if keys["topology"] == "custom" else "",
        **keys,
    )
    config = folder / "config.yaml"
    config.write_text(text)
    return config


def run_in(
    folder: Path, *arguments: str, workers: int, sites: int = 1, **keys: Any
) -> AbstractContextManager[Command]:
    """A run of the config, `r`."""
    write_config(folder, workers=workers, sites=sites, **keys)
    return fedpilot(["run", *(arguments or ("config.yaml", "--run-id", "r")), "--json"], folder)


def calm(folder: Path, **keys: Any) -> str:
    """The digest of the model of a run of one worker at one site, which nothing happens to."""
    return calm_run(write_config(folder, workers=1, **keys), "r", workers=1).digest


def finished(run: Command) -> str:
    """The digest of a run's model."""
    assert run.finish() == 0, run.error()
    return str(run.last("run_finished")["digest"])


def models_of(folder: Path) -> list[tuple[Any, ...]]:
    """The digests of all clients' models after every round."""
    lines = [json.loads(line) for line in (folder / "runs/r/clients.jsonl").open()]
    return sorted((line["round"], line["client"], str(line["tensors"])) for line in lines)


@pytest.mark.parametrize(
    ("topology", "sites"),
    [
        ("ring", 1),
        pytest.param("matching", 1, marks=pytest.mark.soak),
        pytest.param("custom", 2, marks=pytest.mark.soak),
        pytest.param("ring", 2, marks=pytest.mark.soak),
    ],
)
def test_a_killed_run_resumes_to_the_same_models(topology: str, sites: int, tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
        keys = {"topology": topology, "model": waiting_model(folder, 0.005), **KILLED}
    digest = calm(undisturbed, **keys)
    with run_in(killed, workers=2 // sites, sites=sites, **keys) as run:
        run.wait_for("round_started", round=3)
        run.signal(signal.SIGKILL)
        run.process.wait(60)
    with run_in(killed, "--resume", "r", workers=2 // sites, sites=sites, **keys) as run:
        assert finished(run) == digest
        assert next(e["round"] for e in run.events if e["event"] == "round_started") <= 3
    assert models_of(killed) == models_of(undisturbed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["mlp", "lenet"])
@pytest.mark.parametrize("topology", ["ring", "matching", "custom"])
def test_however_many_workers_and_sites_give_the_same_models(
    topology: str, model: str, tmp_path: Path
) -> None:
    counts = [(workers, sites) for workers in (1, 2, 4) for sites in (1, 2, 3)]
    keys = {"topology": topology, "rounds": 3, "epochs": 2, "model": f"{{model_type: {model}}}"}
    alone = tmp_path / "alone"
    expected = (calm(alone, **keys), models_of(alone))
    for workers, sites in counts:
        folder = tmp_path / f"{workers}-{sites}"
        with run_in(folder, workers=workers, sites=sites, **keys) as run:
            assert (finished(run), models_of(folder)) == expected
