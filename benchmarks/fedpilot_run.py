"""fedpilot on a workload, with a given number of workers; prints seconds per round."""

from __future__ import annotations

import json
import sys
import tempfile

from peers.workload import BATCH, LEAST, MOST, RATE, SEED, WORKLOADS

from fedpilot import Federation


def config(name: str, workers: int, folder: str) -> dict[str, object]:
    """The workload as a fedpilot configuration; judged once, after the last round."""
    workload = WORKLOADS[name]
    return {
        "run": {"random_seed": SEED},
        "federation": {
            "number_of_clients": workload.population,
            "clients_per_round": workload.cohort,
            "rounds": workload.rounds,
        },
        "model": {"model_type": "mlp", "options": {"hidden": [128]}},
        "data": {
            "dataset_type": "digits",
            "data_distribution_kind": "bootstrap",
            "samples_per_client": [LEAST, MOST],
        },
        "training": {"batch_size": BATCH, "learning_rate": RATE, "shuffle": False},
        "evaluation": {"every": 1_000_000},
        "resources": {"workers": workers, "ray": {"num_cpus": workers}},
        "outputs": {"folder": folder},
    }


def main(name: str, workers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with Federation(config(name, workers, folder)) as federation:
            result = federation.run()
        seconds = [row["seconds"] for row in result.rows]
    print("RESULT", json.dumps({"cohort": WORKLOADS[name].cohort, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
