"""Loads the data sets that a site's admin declared, and finds their clients.

* A loader whose data differ from the declaration (shape, type, classes) is refused.
* Every sample belongs to a client; a loader's own test samples are left out, since models are
  evaluated on the clients' samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpilot.mediator.core.rules.disclosure import Declaration, Disclosure

from .dataset import Dataset
from .errors import DataError
from .registry import load, options

CLIENT_COLUMN = "client_column"
"""The option of loaders that read the clients' ids from a column of any name."""


def load_declared(declaration: Declaration) -> Dataset:
    """The declared data set, with each sample's client.

    Raises DataError (data differ from the declaration), RegistryError or OSError.
    """
    match declaration.clients["arise"]:
        case "file_per_client":
            found = _of_files(declaration)
        case "column":
            found = _of_column(declaration)
        case _:
            found = _of_list(declaration)
    _check(declaration, found)
    return found


def survey(values: Mapping[str, Any]) -> dict[str, Any]:
    """Count a declared data set: the samples of each client and of each label.

    If the admin discloses anything of them, also the samples of each label of each client.

    The site's agent calls this before the site joins; `mediator.core.rules.disclosure` decides
    which counts leave the site. Raises what `load_declared` does.
    """
    declaration = Declaration.from_json("declared", values)
    found = load_declared(declaration)
    samples = Counter(_ids(found).tolist())
    labels = Counter(found.y.tolist())
    counted: dict[str, Any] = {
        "samples": {str(id): count for id, count in sorted(samples.items())},
        "labels": {str(label): count for label, count in sorted(labels.items())},
    }
    if declaration.disclose.client_labels is not Disclosure.NONE:
        counted["client_labels"] = _labels_of_clients(found, declaration.num_classes or 0)
    return counted


def _labels_of_clients(found: Dataset, classes: int) -> dict[str, list[int]]:
    """By client: its samples of each label."""
    ids, owners = np.unique(_ids(found), return_inverse=True)
    counts = np.bincount(owners * classes + found.y, minlength=len(ids) * classes)
    return dict(zip(map(str, ids.tolist()), counts.reshape(len(ids), -1).tolist(), strict=True))


def _of_files(declaration: Declaration) -> Dataset:
    """One file per client, named after it."""
    name, folder = declaration.name, Path(declaration.path or ".")
    files = sorted(path for path in folder.glob(declaration.clients["pattern"]) if path.is_file())
    if not files:
        raise DataError(name, f"no file in {folder} is called {declaration.clients['pattern']}")
    twice = [id for id, count in Counter(path.stem for path in files).items() if count > 1]
    if twice:
        raise DataError(name, f"client {min(twice)} has more than one file")
    parts = []
    for path in files:
        found = _loaded(declaration, path=str(path))
        ids = np.repeat(np.array([path.stem], dtype=np.str_), len(found.y))
        parts.append(replace(found, client_ids=ids))
    return _joined(name, parts)


def _of_column(declaration: Declaration) -> Dataset:
    """Clients from a column that the loader reads."""
    column = declaration.clients["column"]
    if CLIENT_COLUMN in options(declaration.dataset_type):
        return _with_ids(declaration, _loaded(declaration, **{CLIENT_COLUMN: column}))
    if column != "client_ids":
        raise DataError(
            declaration.name,
            f"its loader `{declaration.dataset_type}` has no option `{CLIENT_COLUMN}`, so clients "
            "can arise from a column called client_ids only",
        )
    return _with_ids(declaration, _loaded(declaration))


def _of_list(declaration: Declaration) -> Dataset:
    """The listed clients, among those that the loader names."""
    name = declaration.name
    lines = Path(declaration.clients["file"]).read_text().splitlines()
    listed = sorted({line.strip() for line in lines if line.strip()})
    found = _with_ids(declaration, _loaded(declaration))
    ids = _ids(found)
    if missing := sorted(set(listed) - set(ids.tolist())):
        raise DataError(name, f"client {missing[0]} of the list has no samples")
    if not listed:
        raise DataError(name, "the list of clients is empty")
    return found.rows(np.flatnonzero(np.isin(ids, listed)))


def _loaded(declaration: Declaration, **more: Any) -> Dataset:
    """Call the loader, with the declared path and classes if it takes them."""
    takes = options(declaration.dataset_type)
    given: dict[str, Any] = {}
    if declaration.path is not None:
        given["path"] = declaration.path
    if declaration.num_classes is not None and "num_classes" in takes:
        given["num_classes"] = declaration.num_classes
    found = load(declaration.dataset_type, {**given, **declaration.options, **more})
    return replace(found, name=declaration.name, test_x=None, test_y=None)


def _with_ids(declaration: Declaration, found: Dataset) -> Dataset:
    if found.client_ids is None:
        raise DataError(declaration.name, "its loader does not say whose the samples are")
    return found


def _joined(name: str, parts: Sequence[Dataset]) -> Dataset:
    """Join the samples of several files of one kind."""
    kinds = {(part.input_shape, part.x.dtype.name) for part in parts}
    if len(kinds) > 1:
        raise DataError(name, "its files hold samples of different shapes or types")
    return Dataset(
        name=name,
        x=np.concatenate([part.x for part in parts]),
        y=np.concatenate([part.y for part in parts]),
        num_classes=max(part.num_classes for part in parts),
        client_ids=np.concatenate([_ids(part) for part in parts]),
        columns={
            column: np.concatenate([part.columns[column] for part in parts])
            for column in sorted(set.intersection(*(set(part.columns) for part in parts)))
        },
    )


def _ids(found: Dataset) -> np.ndarray[Any, np.dtype[np.str_]]:
    assert found.client_ids is not None
    return found.client_ids


def _check(declaration: Declaration, found: Dataset) -> None:
    """Raise DataError for data that differ from the declaration."""
    pairs = {
        "input_shape": (list(declaration.input_shape), list(found.input_shape)),
        "dtype": (declaration.dtype, found.x.dtype.name),
        "num_classes": (declaration.num_classes, found.num_classes),
    }
    for key, (declared, loaded) in pairs.items():
        if declared != loaded:
            problem = f"declared is `{key}: {declared}`, found {loaded}"
            raise DataError(declaration.name, problem)
