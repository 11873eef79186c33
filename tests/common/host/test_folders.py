"""Where a user's programs keep what outlives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.common.host.folders import state_home


@pytest.mark.parametrize(
    ("said", "folder"),
    [
        pytest.param("/var/state", Path("/var/state/fedpilot"), id="the variable names it"),
        pytest.param("", Path("/home/ann/.local/state/fedpilot"), id="an empty one names nothing"),
    ],
)
def test_state_is_kept_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, said: str, folder: Path
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_STATE_HOME", said)
    assert state_home() == folder
