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

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CONFIG = """
federation:
  number_of_clients: 24
  rounds: {rounds}
  topology: {topology}
  aggregation_strategy: {strategy}
{graph}
model: {{model_type: {model}}}
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
KILLED = {"rounds": 5, "epochs": 15, "model": "mlp"}
"""Long enough to be killed amid a round."""


STRATEGIES = {"ring": "dpsgd", "matching": "dpsgd", "custom": "push_sum"}
DIRECTED = "\n".join(
    ",".join(str(int(to in ((of + 1) % 24, of * of % 24))) for to in range(24)) for of in range(24)
)
"""A directed ring with shortcuts, as a matrix."""


def run_in(
    folder: Path, *arguments: str, workers: int, sites: int = 1, **keys: Any
) -> AbstractContextManager[Command]:
    """A run of the config, `r`."""
    folder.mkdir(exist_ok=True)
    (folder / "directed.csv").write_text(DIRECTED)
    text = CONFIG.format(
        workers=workers,
        sites=sites,
        image=str(keys["model"] != "mlp").lower(),
        strategy=STRATEGIES[keys["topology"]],
        graph="graph: {file: directed.csv}" if keys["topology"] == "custom" else "",
        **keys,
    )
    (folder / "config.yaml").write_text(text)
    return fedpilot(["run", *(arguments or ("config.yaml", "--run-id", "r")), "--json"], folder)


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
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    keys = {"topology": topology, **KILLED}
    with run_in(calm, workers=1, **keys) as run:
        digest = finished(run)
    with run_in(killed, workers=2 // sites, sites=sites, **keys) as run:
        run.wait_for("round_started", round=3)
        run.signal(signal.SIGKILL)
        run.process.wait(60)
    with run_in(killed, "--resume", "r", workers=2 // sites, sites=sites, **keys) as run:
        assert finished(run) == digest
        assert next(e["round"] for e in run.events if e["event"] == "round_started") <= 3
    assert models_of(killed) == models_of(calm)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["mlp", pytest.param("lenet", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "topology",
    [
        "ring",
        pytest.param("matching", marks=pytest.mark.soak),
        pytest.param("custom", marks=pytest.mark.soak),
    ],
)
def test_however_many_workers_and_sites_give_the_same_models(
    topology: str, model: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = request.node.get_closest_marker("soak") is not None
    counts = [(w, s) for w in (1, 2, 4) for s in (1, 2, 3)] if whole else [(1, 1), (2, 3)]
    found = []
    for workers, sites in counts:
        folder = tmp_path / f"{workers}-{sites}"
        keys = {"topology": topology, "rounds": 3, "epochs": 2, "model": model}
        with run_in(folder, workers=workers, sites=sites, **keys) as run:
            found.append((finished(run), models_of(folder)))
    assert found[1:] == found[:1] * (len(counts) - 1)
