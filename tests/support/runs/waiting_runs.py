"""Runs that are long enough to be disturbed, since their model waits: that takes no processor."""

from __future__ import annotations

from pathlib import Path

from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation, RunResult

WAITS = '''
import time

from torch import nn


class Net(nn.Module):
    """Waits for {seconds} s in every step of its training."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_shape[0], 16), nn.ReLU(), nn.Linear(16, num_classes)
        )

    def forward(self, x):
        if self.training:
            time.sleep({seconds})
        return self.layers(x)
'''


def write_model(folder: Path, seconds: float) -> str:
    """Write a model that waits beside a config; its `model_type`.

    It trains in the folders of others too, so its module has a name of its own.
    """
    name = f"waits_{int(1000 * seconds)}_ms"
    (folder / f"{name}.py").write_text(WAITS.format(seconds=seconds))
    return f"{name}:Net"


def calm_run(config: Path, run_id: str, *overrides: str, workers: int = 2) -> RunResult:
    """What a config gives when nothing happens to its run: in this process, without Ray."""
    cluster = FakeCluster([fake_machine("a", CPU=workers)])
    own = [f"outputs.folder={config.parent / 'runs'}", f"resources.workers={workers}"]
    with Federation(config, overrides=[*overrides, *own], cluster=cluster) as federation:
        return federation.run(run_id=run_id)
