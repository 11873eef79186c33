"""fedpilot on a workload; prints seconds per round.

A round is over when the next one begins: with its checkpoint and its row of metrics, which the
`seconds` of that row leave out. `config` is the workload as a fedpilot configuration, for
everything here that runs fedpilot.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from workload import BATCH, CLASSES, SEED, VOCABULARY, WORKLOADS

from fedpilot import Federation
from fedpilot.federated.data import Dataset
from fedpilot.federated.federation.events import Event

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"model_type": "mlp", "options": {"hidden": [128]}},
    "cnn": {"model_type": "cnn"},
    "resnet18": {"model_type": "resnet18"},
    "transformer": {
        "model_type": "transformer",
        "options": {"vocabulary": VOCABULARY, "width": 192, "layers": 4, "heads": 6},
    },
}
"""fedpilot's built-ins that are the peers' models."""


def pool(*, workload: str) -> Dataset:
    """The samples that the peers' clients draw from."""
    x, y = WORKLOADS[workload].pool
    return Dataset(name=workload, x=x, y=y, num_classes=CLASSES)


def config(
    name: str,
    *,
    workers: int = 2,
    folder: str = "runs",
    population: int | None = None,
    cohort: int | None = None,
    rounds: int | None = None,
    evaluate: bool = False,
) -> dict[str, Any]:
    """A workload as a configuration: judged once, after the last round, or after every one.

    Journal and checkpoints are as always; nothing is switched off but the picture.
    """
    workload = WORKLOADS[name]
    digits = workload.model == "mlp"
    return {
        "run": {"name": name, "random_seed": SEED},
        "federation": {
            "number_of_clients": population or workload.population,
            "clients_per_round": cohort or workload.cohort,
            "rounds": rounds or workload.rounds,
        },
        "model": MODELS[workload.model],
        "data": {
            "dataset_type": "digits" if digits else "fedpilot_run:pool",
            "options": {} if digits else {"workload": name},
            "test_fraction": 0.2 if evaluate else 0.01,
            "data_distribution_kind": "bootstrap",
            "samples_per_client": list(workload.samples),
        },
        "training": {"batch_size": BATCH, "learning_rate": workload.rate, "shuffle": False},
        "evaluation": {"every": 1 if evaluate else 1_000_000},
        "resources": {"workers": workers, "ray": {"num_cpus": workers}},
        "outputs": {"folder": folder, "curves": evaluate},
    }


class Clock:
    """An observer that notes when rounds begin."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def __call__(self, event: Event) -> None:
        if event.name == "round_started":
            self.marks.append(time.time())

    @property
    def seconds(self) -> list[float]:
        """Of every round but the last, which is evaluated too."""
        return [after - before for before, after in itertools.pairwise(self.marks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--population", type=int)
    parser.add_argument("--cohort", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    arguments = vars(parser.parse_args())
    name, overrides = arguments.pop("workload"), arguments.pop("overrides")
    workload, clock = WORKLOADS[name], Clock()
    arguments["rounds"] = 1 + (arguments["rounds"] or workload.rounds)
    options: dict[str, Any] = {"overrides": overrides, "observers": [clock]}
    options["search"] = [str(Path(__file__).parent)]
    with tempfile.TemporaryDirectory() as folder:
        with Federation(config(name, folder=folder, **arguments), **options) as federation:
            rows = federation.run().rows[:-1]
        accuracy = workload.accuracy(federation.module())
    result = {
        "cohort": rows[-1]["clients"],
        "seconds": clock.seconds,
        "training_seconds": [row["training_seconds"] for row in rows if "training_seconds" in row],
        "start_s": clock.marks[0] - psutil.Process().create_time(),
        "accuracy": accuracy,
        "digest": rows[-1]["model"],
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
