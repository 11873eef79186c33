"""Declared data sets: how clients arise, and what is refused for not being as declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import site_data
from fedpilot.federated.data import DataError
from fedpilot.federated.data.declared import load_declared, survey
from fedpilot.mediator.agent.site_config.site_files import read_site_file
from fedpilot.mediator.core.rules.disclosure import Declaration

CLIENTS = {"anna": 5, "benedict": 3}


def declaration(folder: Path, section: dict[str, Any]) -> Declaration:
    return read_site_file(Path(site_data.site_file(folder / "site.yaml", "scans", section)))[
        "scans"
    ]


def with_list(folder: Path, *ids: str) -> dict[str, Any]:
    section = site_data.column(folder, CLIENTS)
    with np.load(folder / "all.npz") as arrays:
        kept = dict(arrays)
    np.savez(folder / "all.npz", client_ids=kept.pop("patient"), **kept)
    (folder / "ids.txt").write_text("\n".join(ids) + "\n\n")
    return {**section, "clients": {"arise": "id_list", "file": str(folder / "ids.txt")}}


@pytest.mark.parametrize("make", [site_data.column, site_data.files])
def test_every_sample_has_its_client(make: Any, tmp_path: Path) -> None:
    found = load_declared(declaration(tmp_path, make(tmp_path / "data", CLIENTS)))
    assert found.client_ids is not None
    for client, samples in CLIENTS.items():
        mine = found.client_ids == client
        x, y = site_data.rows(client, samples)
        assert np.array_equal(found.x[mine], x)
        assert np.array_equal(found.y[mine], y)
    assert (found.name, found.num_classes) == ("scans", site_data.CLASSES)


def test_only_the_clients_of_a_list_take_part(tmp_path: Path) -> None:
    found = load_declared(declaration(tmp_path, with_list(tmp_path, "benedict")))
    assert set(found.client_ids.tolist()) == {"benedict"}  # type: ignore[union-attr]
    assert len(found.x) == CLIENTS["benedict"]


def test_a_survey_counts_clients_and_labels(tmp_path: Path) -> None:
    made = declaration(tmp_path, site_data.files(tmp_path / "data", CLIENTS))
    found = survey(made.to_json())
    assert found["samples"] == CLIENTS
    assert "client_labels" not in found
    assert sum(found["labels"].values()) == sum(CLIENTS.values())
    labels = np.concatenate([site_data.rows(*client)[1] for client in CLIENTS.items()])
    assert found["labels"] == {str(n): int((labels == n).sum()) for n in sorted(set(labels))}


def test_the_labels_of_clients_are_counted_where_they_may_leave(tmp_path: Path) -> None:
    told = {"client_labels": "rounded"}
    made = declaration(tmp_path, site_data.files(tmp_path / "data", CLIENTS, disclose=told))
    found = survey(made.to_json())["client_labels"]
    for client, samples in CLIENTS.items():
        labels = np.bincount(site_data.rows(client, samples)[1], minlength=site_data.CLASSES)
        assert found[client] == labels.tolist()


def test_a_declaration_comes_back_from_json(tmp_path: Path) -> None:
    section = site_data.column(tmp_path, CLIENTS, disclose={"ids": "exact", "counts": "noised"})
    made = declaration(tmp_path, section)
    assert Declaration.from_json("scans", made.to_json()) == made
    earlier = made.to_json()
    del earlier["disclose"]["client_labels"]
    assert Declaration.from_json("scans", earlier) == made


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"schema": {"input_shape": [7], "num_classes": 3}}, "input_shape", id="shape"),
        pytest.param({"schema": {"input_shape": [6], "dtype": "float64", "num_classes": 3}},
                     "dtype: float64", id="type"),
        pytest.param({"schema": {"input_shape": [6], "num_classes": 2}}, "labels in y are 0 to 1",
                     id="fewer classes than labels"),
        pytest.param({"clients": {"arise": "column", "column": "ward"}}, "an array 'patient'",
                     id="another column"),
        pytest.param({"dataset_type": "synthetic", "path": None,
                      "options": {"samples": 9, "features": 6, "classes": 3}},
                     "no option `client_column`", id="a loader without columns"),
    ],
)  # fmt: skip
def test_data_that_are_not_as_declared_are_refused(
    change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    section = {**site_data.column(tmp_path, CLIENTS), **change}
    with pytest.raises(DataError, match=text):
        load_declared(declaration(tmp_path, section))


def test_a_client_of_a_list_that_has_no_samples_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="client zoe of the list has no samples"):
        load_declared(declaration(tmp_path, with_list(tmp_path, "anna", "zoe")))


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        pytest.param({}, r"no file in .* is called \*\.npz", id="no files"),
        pytest.param({"a": 6, "b": 7}, "different shapes", id="files of two kinds"),
    ],
)
def test_files_that_make_no_data_set_are_refused(
    lengths: dict[str, int], text: str, tmp_path: Path
) -> None:
    section = site_data.files(tmp_path / "data", {})
    for name, length in lengths.items():
        x = np.zeros((2, length), dtype=np.float32)
        np.savez(tmp_path / "data" / f"{name}.npz", x=x, y=np.zeros(2, dtype=np.int64))
    with pytest.raises(DataError, match=text):
        load_declared(declaration(tmp_path, section))
