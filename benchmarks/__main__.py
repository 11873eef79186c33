"""Runs a benchmark: `python benchmarks NAME [options]`. README.md says what each measures."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"[0-9]+")

MODULES = (
    "peers.run",
    "training.round_time",
    "training.whole_process",
    "training.population",
    "training.accuracy",
    "training.busy_machine",
    "training.topologies",
    "training.spilled",
    "clusters.lifecycle",
    "clusters.healing",
    "clusters.autoscaler",
    "clusters.reserve",
    "clusters.tasks",
    "clusters.scheduler",
    "clusters.answers",
    "clusters.exchange",
    "mediation.transfer",
    "mediation.link_bytes",
    "mediation.graph_bytes",
    "mediation.strangers",
    "mediation.sites",
    "mediation.locality",
    "mediation.data_affinity",
    "mediation.partial_sums",
    "execution.same_digest",
    "execution.cost_model_fit",
    "execution.client_states",
    "report",
)


def main() -> None:
    modules = {module.rpartition(".")[2]: module for module in MODULES}
    asked, *words = [*sys.argv[1:], ""]
    name, _, function = asked.partition(":")
    if name not in modules:
        sys.exit(f"usage: python benchmarks NAME [options]\nNAME is one of {', '.join(modules)}")
    sys.path.append(str(Path(__file__).parent / "peers"))
    module = importlib.import_module(modules[name])
    if function:
        call(getattr(module, function), words[:-1])
        return
    sys.argv = [f"benchmarks {name}", *words[:-1]]
    module.main()


def call(function: Callable[..., Any], words: Sequence[str]) -> None:
    """Call a function of a benchmark in this process (`measuring.command`); print its result."""
    found = function(*(json.loads(word) if NUMBER.fullmatch(word) else word for word in words))
    if inspect.iscoroutine(found):
        found = asyncio.run(found)
    if found is not None:
        print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
