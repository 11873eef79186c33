"""Runs a benchmark: `python benchmarks NAME [options]`. README.md says what each measures."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

MODULES = (
    "peers.run",
    "training.round_time",
    "training.whole_process",
    "training.population",
    "training.accuracy",
    "training.busy_machine",
    "clusters.reserve",
    "clusters.tasks",
    "mediation.transfer",
    "mediation.link_bytes",
    "mediation.strangers",
    "mediation.sites",
    "execution.same_digest",
    "execution.cost_model_fit",
    "report",
)


def main() -> None:
    modules = {module.rpartition(".")[2]: module for module in MODULES}
    name, *words = [*sys.argv[1:], ""]
    if name not in modules:
        sys.exit(f"usage: python benchmarks NAME [options]\nNAME is one of {', '.join(modules)}")
    sys.path.append(str(Path(__file__).parent / "peers"))
    sys.argv = [f"benchmarks {name}", *words[:-1]]
    importlib.import_module(modules[name]).main()


if __name__ == "__main__":
    main()
