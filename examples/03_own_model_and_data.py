"""Your own model and your own data, registered by name; clients come from an id per sample."""

import numpy as np
from torch import Tensor, nn

from fedpilot import Federation, register_dataset, register_model
from fedpilot.federated import Dataset


@register_model("two-towers")
class TwoTowers(nn.Module):
    """`input_shape` and `num_classes` are filled in from the data; `width` is an option."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 32) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(input_shape[0], width), nn.Tanh())
        self.right = nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU())
        self.top = nn.Linear(2 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        import torch

        return self.top(torch.cat([self.left(x), self.right(x)], dim=1))


@register_dataset("wards")
def wards(patients: int = 600) -> Dataset:
    """Patients of twelve hospital wards, told apart by two measurements."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((patients, 2)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    ward = np.array([f"ward-{i % 12:02d}" for i in range(patients)])
    return Dataset(name="wards", x=x, y=y, num_classes=2, client_ids=ward)


CONFIG = {
    "federation": {"rounds": 25, "clients_per_round": 6},
    "model": {"model_type": "two-towers", "options": {"width": 16}},
    "data": {"dataset_type": "wards", "data_distribution_kind": "natural"},
    "training": {"number_of_epochs": 5, "optimizer": "adam", "learning_rate": 0.01},
    "evaluation": {"early_stopping": {"target": 0.97}},
    "resources": {"workers": 2},
}

if __name__ == "__main__":
    with Federation(CONFIG) as federation:
        print(f"clients: {', '.join(federation)}")
        result = federation.run()
    print(f"{result.reason} after {result.rounds} rounds; accuracy {result.accuracy:.3f}")
