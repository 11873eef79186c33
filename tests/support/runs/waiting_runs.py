"""Runs that are long enough to be disturbed, since their model waits: that takes no processor."""

from __future__ import annotations

import shutil
from contextlib import chdir
from pathlib import Path

import waiting_nets
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation, RunResult


def waiting_model(folder: Path, step_s: float) -> str:
    """Lay `waiting_nets` beside a config; the `model` that waits in every step of its training."""
    shutil.copy(waiting_nets.__file__, folder)
    return f'{{model_type: "waiting_nets:Waits", options: {{step_s: {step_s}}}}}'


def calm_run(config: Path, run_id: str, *overrides: str, workers: int = 2) -> RunResult:
    """What a config gives when nothing happens to its run: in this process, without Ray.

    It runs in the folder of the config, which may name files there.
    """
    cluster = FakeCluster([fake_machine("a", CPU=workers)])
    own = [f"outputs.folder={config.parent / 'runs'}", f"resources.workers={workers}"]
    with (
        chdir(config.parent),
        Federation(config, overrides=[*overrides, *own], cluster=cluster) as federation,
    ):
        return federation.run(run_id=run_id)
