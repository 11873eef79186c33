"""A mediator that runs no user's code refuses configs that name any, before it is imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpilot.federated.federation.remote.coordinator_process import _serve
from fedpilot.mediator.coordinator import process
from fedpilot.mediator.errors import RequestRefused

CONFIG: dict[str, Any] = {
    "federation": {"number_of_clients": 3, "rounds": 1},
    "model": {"model_type": "mlp"},
    "data": {"dataset_type": "digits"},
}


def begin(place: Path, user_code: bool, **sections: Any) -> None:
    """Have a coordinator read a run; there is no mediator behind it."""
    (place / "config.yaml").write_text(json.dumps({**CONFIG, **sections}))
    (place / "submission.json").write_text(json.dumps({"name": "n", "interactive": False}))
    nothing: Any = None
    _serve(place, nothing, nothing, nothing, user_code)


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"data": {"dataset_type": "marked:load"}}, "marked:load"),
        ({"model": {"model_type": "marked:Net"}}, "marked:Net"),
        ({"training": {"loss_function": "marked:loss"}}, "marked:loss"),
        ({"training": {"client_update": "marked:train"}}, "marked:train"),
    ],
    ids=["a data set", "a model", "a loss", "a client update"],
)
def test_code_that_a_config_names_is_refused_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: Any, path: str
) -> None:
    (tmp_path / "marked.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RequestRefused, match=f"the config names {path}: use what is built in"):
        begin(tmp_path, False, **sections)
    assert "marked" not in sys.modules


def test_what_is_built_in_is_not_refused(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="'NoneType'"):  # it goes on, and asks its mediator
        begin(tmp_path, False)


@pytest.mark.parametrize("given", [[], ["--no-user-code"]], ids=["it may", "it may not"])
def test_a_coordinator_is_told_whether_it_may(
    monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    told: list[Any] = []

    def act(folder: Path, run: str, user_code: bool) -> int:
        told.append((folder, run, user_code))
        return 0

    class Installed(dict[str, Any]):
        names = ("federated",)

    installed = Installed(federated=SimpleNamespace(load=lambda: act))
    monkeypatch.setattr(process, "entry_points", lambda group: installed)
    monkeypatch.setattr(process, "end_with_stdin", lambda: None)
    assert process.main(["/srv", "run", *given]) == 0
    assert told == [(Path("/srv"), "run", not given)]
