"""Data that lies at sites: files as a site's admin has them, and what declares them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES = 6, 3
SECRET_VALUE = 0.31415927
"""Stands in the first sample of every client, so that a test can look for its bytes."""
LOUD = "greta"
"""The samples of this client are far away from all others."""


def rows(client: str, samples: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Samples of one client, the same wherever they are asked for."""
    rng = np.random.default_rng([ord(letter) for letter in client])
    y = rng.integers(0, CLASSES, samples)
    x = rng.normal(size=(samples, FEATURES)) + y[:, None]
    x[0] = SECRET_VALUE
    if client == LOUD:
        x[1:] *= 1e4
    return x.astype(np.float32), y.astype(np.int64)


def column(folder: Path, clients: Mapping[str, int], **told: Any) -> dict[str, Any]:
    """One file with a column of ids; the data set as `site.yaml` says it."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [rows(client, samples) for client, samples in clients.items()]
    owners = np.repeat(list(clients), list(clients.values()))
    np.savez(
        folder / "all.npz",
        x=np.concatenate([x for x, _ in parts]),
        y=np.concatenate([y for _, y in parts]),
        patient=owners,
    )
    return dataset(folder / "all.npz", {"arise": "column", "column": "patient"}, **told)


def files(folder: Path, clients: Mapping[str, int], **told: Any) -> dict[str, Any]:
    """A file for each client."""
    folder.mkdir(parents=True, exist_ok=True)
    for client, samples in clients.items():
        x, y = rows(client, samples)
        np.savez(folder / f"{client}.npz", x=x, y=y)
    return dataset(folder, {"arise": "file_per_client", "pattern": "*.npz"}, **told)


def dataset(path: Path, clients: Mapping[str, Any], **told: Any) -> dict[str, Any]:
    """A section of `site.yaml`; `told` replaces parts of it."""
    return {
        "dataset_type": "npz",
        "path": str(path),
        "schema": {"input_shape": [FEATURES], "num_classes": CLASSES},
        "clients": dict(clients),
        **told,
    }


def site_file(path: Path, name: str, section: Mapping[str, Any]) -> str:
    """Write a `site.yaml`; its path. JSON is YAML."""
    path.write_text(json.dumps({"datasets": {name: section}}))
    return str(path)


def config(site_files: Sequence[str], runs: Path, **keys: Any) -> dict[str, Any]:
    """A run over such sites; `federation__rounds=2` changes a key."""
    made: dict[str, Any] = {
        "run": {"name": "test", "random_seed": 3},
        "federation": {"rounds": 3, "clients_per_round": 4},
        "model": {"model_type": "logistic_regression"},
        "data": {"from": "sites", "dataset": "scans"},
        "training": {"batch_size": 8, "execution": "sequential"},
        "evaluation": {"where": "sites", "clients": "all"},
        "resources": {"workers": 1},
        "sites": {"count": len(site_files), "site_files": list(site_files)},
        "outputs": {"folder": str(runs), "curves": False},
    }
    for key, value in keys.items():
        section, _, name = key.partition("__")
        made.setdefault(section, {})[name] = value
    return made
