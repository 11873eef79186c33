"""Memory of a ring whose clients' models are too much for it, and lie in files.

    python benchmarks spilled [--clients 1000] [--store 1024]

It takes the peak PSS of the process tree, and the longest round, of a ring whose models are limited
to `resources.store_bytes` (in MiB), and of a star of the same clients, which keeps one model.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from subprocess import PIPE, Popen
from typing import Any

from measuring import Failed, Run, command, end, measured, parser, spread, table

from fedpilot import Federation

SECTION = "spilled"
HIDDEN = [1230, 1230]
"""Of an MLP with 1.6 million parameters."""
ROUNDS = 2
RING = {"topology": "ring", "aggregation_strategy": "dpsgd"}


def run(topology: str, clients: int, store_mib: int) -> dict[str, Any]:
    """Train a few rounds in this process; returns their seconds."""
    with tempfile.TemporaryDirectory(dir=".", prefix="spilled-") as folder:
        config = {
            "federation": {
                "number_of_clients": clients,
                "rounds": ROUNDS,
                **(RING if topology == "ring" else {}),
            },
            "model": {"model_type": "mlp", "options": {"hidden": HIDDEN}},
            "data": {
                "dataset_type": "digits",
                "data_distribution_kind": "bootstrap",
                "samples_per_client": [10, 20],
            },
            "training": {"batch_size": 10, "execution": "sequential"},
            "evaluation": {"every": 1_000_000},
            "resources": {
                "workers": 2,
                "ray": {"num_cpus": 2},
                "store_bytes": f"{store_mib}MiB",
            },
            "outputs": {"folder": folder, "curves": False},
        }
        with Federation(config) as federation:
            rows = federation.run().rows
            return {
                "seconds": [row["seconds"] for row in rows],
                "parameters": federation.loaded.inputs.parameters,
                "models": 2 * clients * federation.loaded.inputs.bytes_of_update,
            }


def once(name: str, _turn: int) -> Run:
    from training.population import tree_pss

    topology, clients, store = name.split(", ")
    words = topology, int(clients.split()[0]), int(store.split()[0])
    process, peak = Popen(command("spilled:run", *words), stdout=PIPE, start_new_session=True), 0
    try:
        while process.poll() is None:
            peak = max(peak, tree_pss(process.pid))
            time.sleep(0.1)
    finally:
        end(process)
    assert process.stdout is not None
    text = process.stdout.read().decode()
    if process.returncode:
        raise Failed("\n".join(text.splitlines()[-8:]))
    found: Run = json.loads(text[text.rindex("RESULT ") + 7 :])
    return {**found, "peak_pss_mib": peak / 2**20}


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    rows = []
    for name, each in runs.items():
        peak = spread(one["peak_pss_mib"] for one in each).text()
        longest = spread(max(one["seconds"]) for one in each).text(1)
        models = f"{each[0]['models'] / 2**20:,.0f}" if name.startswith("ring") else ""
        rows.append([name, models, peak, longest])
    return table(["run", "both stacks, MiB", "peak PSS, MiB", "longest round, s"], rows)


def main() -> None:
    options = parser(__doc__ or "", reps=1)
    options.add_argument("--clients", type=int, default=1_000)
    options.add_argument("--store", type=int, default=1_024)
    arguments = options.parse_args()
    size = f"{arguments.clients} clients, {arguments.store} MiB"

    def say(run: Run) -> str:
        return f"{run['peak_pss_mib']:>8,.0f} MiB  {max(run['seconds']):.1f} s"

    names = [f"{topology}, {size}" for topology in ("star", "ring")]
    print("\n" + text(measured(SECTION, names, once, say, arguments)))
