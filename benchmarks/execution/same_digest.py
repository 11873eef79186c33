"""One config, one digest: idle and beside busy processes, with cold and warm caches.

    python benchmarks same_digest [--runs 20] [--busy 8] [--models cnn,gru] [--json]

Runs of two rounds, in processes of their own on private Rays, with `execution: auto`: each model is
run idle and warm first, and then again in the conditions in turn. All of a model must end in one
digest, by one execution. A cold cache is an empty XDG_CACHE_HOME and NUMBA_CACHE_DIR. Exits 1 where
a digest differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Failed, busy, finish

HERE = Path(__file__).resolve().parent
MODELS = ("leaky_mlp", "unused_parameter", "embedding_bag", "gru", "cnn", "mlp")
CONDITIONS = tuple(itertools.product(("idle", "busy"), ("warm", "cold")))


def config_of(model: str, folder: Path) -> dict[str, Any]:
    """A small federation of the digits that trains one of the models."""
    own = model != "mlp"
    return {
        "run": {"random_seed": 7},
        "federation": {"number_of_clients": 20, "clients_per_round": 10, "rounds": 2},
        "model": {"model_type": f"same_digest_models:{model}" if own else "mlp"},
        "data": {
            "dataset_type": "digits",
            "options": {"image": model == "cnn"},
            "data_distribution_kind": "iid",
        },
        "training": {"batch_size": 10, "learning_rate": 0.05, "momentum": 0.5},
        "resources": {"workers": 2, "ray": {"num_cpus": 2}},
        "outputs": {"folder": str(folder / "runs"), "curves": False},
    }


def run(model: str, cold: bool) -> dict[str, Any]:
    """The digest of a run, its execution, and what it took from command to end."""
    with tempfile.TemporaryDirectory(prefix="same-digest-") as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(json.dumps(config_of(model, folder)))
        environment = {**os.environ, "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled")}
        if cold:
            caches = {"XDG_CACHE_HOME": str(folder / "cache")}
            environment |= {**caches, "NUMBA_CACHE_DIR": str(folder / "numba")}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        command = [sys.executable, "-m", "fedpilot", "run", str(folder / "config.yaml"), "--json"]
        try:
            printed, seconds = finish(command, env=environment)
        except Failed as failed:
            raise SystemExit(f"{model}: {failed}") from None
        events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        ended = {each["event"]: each for each in events}
        chosen = ended["execution_chosen"]
        return {
            "digest": ended["run_finished"]["digest"],
            "execution": f"{chosen['execution']} {chosen['chunk_size']}",
            "seconds": round(seconds, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=8, help="busy processes beside a run")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args()
    models = args.models.split(",")
    if unknown := [model for model in models if model not in MODELS]:
        parser.error(f"unknown models: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    rows: list[dict[str, Any]] = []
    for number in range(args.runs):
        model = models[number % len(models)]
        load, cache = CONDITIONS[number // len(models) % len(CONDITIONS)]
        with busy(args.busy if load == "busy" else 0):
            row = {"model": model, "load": load, "cache": cache, **run(model, cache == "cold")}
        rows.append(row)
        if not args.as_json:
            print(
                f"{model:17} {load:5} {cache:5} {row['execution']:14} {row['digest'][:16]} "
                f"{row['seconds']:6.1f} s",
                flush=True,
            )
    found = {
        model: sorted({(r["digest"], r["execution"]) for r in rows if r["model"] == model})
        for model in models
    }
    differing = [model for model, each in found.items() if len(each) > 1]
    if args.as_json:
        print(json.dumps({"runs": rows, "differing": differing}, indent=2))
    else:
        verdict = f"digests differ: {', '.join(differing)}" if differing else "one digest each"
        print(f"{len(rows)} runs of {len(models)} models: {verdict}")
    sys.exit(1 if differing else 0)
