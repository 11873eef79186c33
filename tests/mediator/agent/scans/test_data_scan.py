"""What a data set holds is found out in a process beside the agent, or the reason why not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fedpilot.mediator.agent.errors import SurveyFailed
from fedpilot.mediator.agent.scans.data_scan import look, surveyed
from fedpilot.mediator.agent.site_config.site_files import read_site_file

SCANS = """\
datasets:
  scans:
    dataset_type: npz
    path: scans
    schema: {input_shape: [3]}
    clients: CLIENTS
    disclose: {ids: exact, counts: exact}
"""
FILES, LIST = "{arise: file_per_client, pattern: '*.npz'}", "{arise: id_list, file: ids.txt}"


def declare(folder: Path, clients: str) -> Path:
    path = folder / "site.yaml"
    path.write_text(SCANS.replace("CLIENTS", clients))
    return path


@pytest.fixture(autouse=True)
def _no_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed, here nobody but the files tells of clients."""
    monkeypatch.setattr("fedpilot.mediator.agent.scans.data_scan.GROUP", "fedpilot.none")


def found(folder: Path, clients: str) -> Any:
    (declaration,) = read_site_file(declare(folder, clients)).values()
    return look(declaration)["samples"]


def test_a_file_for_each_client(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for name in ("b.npz", "a.npz", "notes.txt"):
        (tmp_path / "scans" / name).touch()
    assert found(tmp_path, FILES) == {"a": None, "b": None}


def test_a_list_of_ids(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("b\n\n a \n")
    assert found(tmp_path, LIST) == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("clients", "ids", "said"),
    [
        pytest.param(FILES, "", "there is no folder", id="no folder"),
        pytest.param(LIST, None, "No such file", id="no list"),
        pytest.param(LIST, "\n", "has no clients", id="nobody"),
        pytest.param(LIST, "a\na\n", "client a is there twice", id="somebody twice"),
        pytest.param("{arise: column, column: id}", "", "no installed package", id="a column"),
    ],
)
def test_what_cannot_be_found_out(tmp_path: Path, clients: str, ids: str | None, said: str) -> None:
    if ids is not None:
        (tmp_path / "ids.txt").write_text(ids)
    with pytest.raises(SurveyFailed, match=said):
        found(tmp_path, clients)


def test_a_survey_that_fails_or_hangs_says_so(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("a\n")
    path = declare(tmp_path, LIST)
    with pytest.raises(SurveyFailed, match=r"were not read in 0\.01 s"):
        asyncio.run(surveyed(path, b"secret", 0.01))
    path.write_text(SCANS.replace("CLIENTS", "{arise: id_list, file: none.txt}"))
    with pytest.raises(SurveyFailed, match=r"cannot be read: .+"):
        asyncio.run(surveyed(path, b"secret", 60.0))
