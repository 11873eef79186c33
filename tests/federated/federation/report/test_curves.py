"""A run is drawn as curves, and written for TensorBoard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedpilot.federated.federation.report.curves import draw
from fedpilot.federated.federation.report.tensorboard import TensorBoardWriter
from run_events import UNUSUAL, a_run, row

# -- curves -----------------------------------------------------------------------------------


PNG = b"\x89PNG\r\n\x1a\n"


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in each.items() if k not in names} for each in rows]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([row(n) for n in range(1, 30)], id="many rounds"),
        pytest.param([row(1)], id="one round"),
        pytest.param(without([row(n) for n in (1, 2)], "accuracy", "loss"), id="no evaluation"),
        pytest.param(
            [row(1), *without([row(2)], "accuracy", "loss"), row(3)], id="some evaluations"
        ),
        pytest.param([row(n, accuracy=0.0) for n in (1, 2)], id="accuracy that stays zero"),
        pytest.param([row(n, accuracy=1.0) for n in (1, 2)], id="accuracy that stays one"),
        pytest.param([row(n, loss=None, train_loss=None) for n in (1, 2)], id="no loss was finite"),
        pytest.param([row(n, loss=1e30) for n in (1, 2)], id="a huge loss"),
        pytest.param(
            [row(n, node_accuracy=0.4, worst_node_accuracy=0.1) for n in (1, 2)],
            id="clients with models of their own",
        ),
        pytest.param([row(n, loss=0.0, train_loss=0.0) for n in (1, 2)], id="no loss at all"),
    ],
)
def test_curves_are_a_picture(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    draw(rows, tmp_path / "curves.png", title="try-1")
    content = (tmp_path / "curves.png").read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 10_000
    assert [p.name for p in tmp_path.iterdir()] == ["curves.png"]


BACKEND = """
import sys, matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as pyplot
figure = pyplot.figure()
from pathlib import Path
from fedpilot.federated.federation.report.curves import draw
draw([{"round": 1, "accuracy": 0.5, "loss": 1.0, "train_loss": 1.0}], Path(sys.argv[1]), title="t")
assert matplotlib.get_backend().lower() == "svg", matplotlib.get_backend()
assert pyplot.get_fignums() == [figure.number]
"""


def test_drawing_leaves_the_users_own_plots_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BACKEND, str(tmp_path / "c.png")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_tensorboard_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with TensorBoardWriter(tmp_path) as writer:
        for each in [*a_run(2), *UNUSUAL]:
            writer(each)
    assert [p for p in (tmp_path / "tensorboard").iterdir() if p.stat().st_size > 100]
