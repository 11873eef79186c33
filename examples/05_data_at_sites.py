"""Data that stays where it is: three hospitals declare theirs, and one model learns from all.

Each hospital has a folder with a file per ward, and a site.yaml that says what is there and what of
it may be told. Here all three are on this machine; with a mediator the same config trains over the
sites that have declared `digits`.
"""

from pathlib import Path

import numpy as np

from fedpilot import Federation
from fedpilot.federated import data

HOSPITALS = ("charite", "mayo", "tata")
WARDS = 4
SITE_FILE = """\
datasets:
  digits:
    dataset_type: npz
    path: wards
    schema: {input_shape: [64], num_classes: 10}
    clients: {arise: file_per_client, pattern: "*.npz"}
    residency: pinned
    disclose: {ids: none, counts: rounded}
"""
CONFIG = {
    "federation": {"clients_per_round": 10, "rounds": 10},
    "model": {"model_type": "mlp"},
    "data": {"from": "sites", "dataset": "digits"},
    "training": {"number_of_epochs": 2, "batch_size": 10, "learning_rate": 0.1},
    "evaluation": {"where": "sites"},
    "resources": {"workers": 1},
}


def furnish(folder: Path, x: np.ndarray, y: np.ndarray) -> Path:
    """Give a hospital its files and its declaration."""
    (folder / "wards").mkdir(parents=True)
    for ward in range(WARDS):
        np.savez(folder / "wards" / f"ward-{ward}.npz", x=x[ward::WARDS], y=y[ward::WARDS])
    (folder / "site.yaml").write_text(SITE_FILE)
    return folder / "site.yaml"


if __name__ == "__main__":
    digits = data.load("digits")
    x, y = digits.x, digits.y
    site_files = [
        str(furnish(Path("hospitals") / name, x[i :: len(HOSPITALS)], y[i :: len(HOSPITALS)]))
        for i, name in enumerate(HOSPITALS)
    ]
    sites = {"count": len(HOSPITALS), "site_files": site_files}
    with Federation({**CONFIG, "sites": sites}) as federation:
        federation.run(progress=True)
        print(federation[next(iter(federation))].explain())
