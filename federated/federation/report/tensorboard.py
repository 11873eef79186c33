"""TensorBoard event files of a run, to compare many runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from ..events import Event

SCALARS = {
    "accuracy": "evaluation/accuracy",
    "loss": "evaluation/loss",
    "node_accuracy": "evaluation/node_accuracy",
    "worst_node_accuracy": "evaluation/worst_node_accuracy",
    "train_loss": "training/loss",
    "learning_rate": "training/learning_rate",
    "consensus_distance": "training/consensus_distance",
    "clients_per_second": "speed/clients_per_second",
    "refused": "training/refused_updates",
}


class TensorBoardWriter:
    """Observes a run and writes its metrics under `tensorboard/`."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __call__(self, event: Event) -> None:
        """Write the metrics of a finished round."""
        if event.name != "round_finished":
            return
        for field, tag in SCALARS.items():
            value = event.fields.get(field)
            if value is not None:
                self._writer.add_scalar(tag, value, event.fields["round"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
