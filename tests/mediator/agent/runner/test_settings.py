"""What lies in a runner's folder: settings of today, of another version, or the rest of a cut."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpilot.mediator.agent.runner.errors import BadSettings
from fedpilot.mediator.agent.runner.process import (
    LOCK,
    SETTINGS,
    RayChoice,
    RunnerProcess,
    RunnerSettings,
)


def settings(folder: Path, **changes: Any) -> RunnerSettings:
    """Of a runner of paris."""
    values = RunnerSettings(
        run="r",
        site="paris",
        ray=RayChoice(address="127.0.0.1:6379"),
        blobs=folder / "blobs",
        data={"xrays": {"input_shape": (3, 4)}},
    )
    return replace(values, **changes)


def damaged(folder: Path) -> dict[str, str]:
    whole = settings(folder).to_json()
    return {
        "empty after a power cut": "",
        "cut in the middle": json.dumps(whole)[:40],
        "a list": "[]",
        "a key that this version does not know": json.dumps({**whole, "colour": "red"}),
        "a key of ray that this version does not know": json.dumps(
            {**whole, "ray": {**whole["ray"], "colour": "red"}}
        ),
        "a key that is missing": json.dumps({k: v for k, v in whole.items() if k != "blobs"}),
        "bytes": "\x00\x00\x00\x00",
    }


@contextmanager
def locked(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a folder's lock, as a runner does."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    process = subprocess.Popen(["sleep", "60"], pass_fds=[lock])
    os.write(lock, f"{process.pid}\n".encode())
    os.close(lock)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", damaged(Path("/x")))
def test_settings_that_nobody_can_read_are_none(tmp_path: Path, name: str) -> None:
    (tmp_path / SETTINGS).write_text(damaged(tmp_path)[name])
    (tmp_path / LOCK).touch()
    assert RunnerProcess.find(tmp_path) is None
    with pytest.raises(BadSettings, match="holds no settings of a runner"):
        RunnerSettings.read(tmp_path)


def test_settings_in_no_text_are_none(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_bytes(b"\xff\xfe")
    with pytest.raises(BadSettings):
        RunnerSettings.read(tmp_path)


@pytest.mark.parametrize("text", ["", None], ids=["damaged", "missing"])
def test_a_process_that_nobody_can_drive_is_ended(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if text is not None:
        (tmp_path / SETTINGS).write_text(text)
    with locked(tmp_path) as process, caplog.at_level(logging.WARNING):
        assert RunnerProcess.find(tmp_path) is None
        assert process.wait(60) < 0
    assert str(tmp_path) in caplog.text


def test_one_that_can_be_driven_is_found_and_left_alone(tmp_path: Path) -> None:
    settings(tmp_path).write(tmp_path)
    with locked(tmp_path) as process:
        found = RunnerProcess.find(tmp_path)
        assert found is not None
        assert (found.pid, found.settings.site) == (process.pid, "paris")
        assert process.poll() is None
    assert RunnerProcess.find(tmp_path) is None


@pytest.mark.parametrize("text", ["", "x", "0", "1", "-1", "-1234"])
def test_what_is_no_process_is_never_signalled(tmp_path: Path, text: str) -> None:
    settings(tmp_path).write(tmp_path)
    with locked(tmp_path):
        (tmp_path / LOCK).write_text(text)
        assert RunnerProcess(tmp_path).pid is None


def test_settings_are_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(tmp_path).write(tmp_path)

    def cut(path: Path, text: str) -> None:
        with path.open("w") as file:
            file.write(text[:10])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(OSError, match="no space"):
        settings(tmp_path, site="rome").write(tmp_path)
    assert RunnerSettings.read(tmp_path).site == "paris"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        pytest.param({}, (), id="nothing"),
        pytest.param({"lease_s": 9.0, "orphan_s": 9.0, "workload": "x"}, (), id="patience"),
        pytest.param({"data": {}}, ("data",), id="a data set that is withdrawn"),
        pytest.param({"policy": Path("/p.yaml")}, ("policy",), id="a policy"),
        pytest.param({"policy": None, "asks_policy": False}, ("asks_policy",), id="no policy"),
        pytest.param({"ray": RayChoice()}, ("ray",), id="a private Ray"),
        pytest.param({"ray": RayChoice(address="")}, (), id="a Ray that nobody has found yet"),
        pytest.param(
            {"ray": RayChoice(address="x:1", auth_mode="token")}, ("ray",), id="another way in"
        ),
        pytest.param(
            {"site": "rome", "data": {}, "blobs": Path("/b")}, ("site", "blobs", "data"), id="all"
        ),
    ],
)
def test_what_a_sites_admin_has_changed_is_named(
    tmp_path: Path, changes: dict[str, Any], names: tuple[str, ...]
) -> None:
    settings(tmp_path).write(tmp_path)
    before = RunnerSettings.read(tmp_path)
    assert before.changed(settings(tmp_path, **changes)) == names
