"""The folder of an embedded Ray goes with its owner, however that one went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from fedpilot.fabric.ray import home

HOLD = """
import sys
from pathlib import Path
from fedpilot.fabric.ray.home import own_folder
with own_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_the_folder_is_there_while_it_is_owned(tmp_path: Path) -> None:
    with home.own_folder(tmp_path) as folder:
        assert (folder / "owner").read_text() == f"{os.getpid()}\n"
        home.sweep(tmp_path)
        assert folder.exists()
    assert not folder.exists()


def test_the_folder_of_a_killed_owner_is_removed_by_the_next(tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "src"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        home.sweep(tmp_path)
        assert left.exists()
        owner.send_signal(signal.SIGKILL)
    assert left.exists()
    with home.own_folder(tmp_path):
        assert not left.exists()


def test_a_folder_that_a_process_still_uses_is_left_for_later(tmp_path: Path) -> None:
    folder = tmp_path / "fedpilot-used"
    folder.mkdir()
    (folder / "owner").touch()
    idle = [sys.executable, "-uc", "print('up'); input()", str(folder)]
    with subprocess.Popen(idle, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"up\n"
        home.sweep(tmp_path)
        assert folder.exists()
        user.communicate(b"\n")
    home.sweep(tmp_path)
    assert not folder.exists()


def test_a_sweep_waits_for_the_last_processes_that_use_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "fedpilot-used"
    folder.mkdir()
    (folder / "owner").touch()
    idle = [sys.executable, "-uc", "print('up'); input()", str(folder)]
    with subprocess.Popen(idle, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdin is not None
        assert user.stdout.readline() == b"up\n"
        ends = threading.Timer(0.3, user.stdin.close)
        ends.start()
        home.sweep(tmp_path, linger_s=60.0)
        ends.join()
    assert not folder.exists()


def test_a_folder_without_an_owner_file_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "fedpilot-theirs"
    theirs.mkdir()
    home.sweep(tmp_path)
    assert theirs.exists()


def test_the_token_is_secret_and_new(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = home.write_token(tmp_path / "a"), home.write_token(tmp_path / "b")
    assert first.stat().st_mode & 0o777 == 0o600
    assert len(first.read_text()) == 64
    assert first.read_text() != second.read_text()


def test_variables_are_put_back(tmp_path: Path) -> None:
    os.environ["FEDPILOT_TEST_KEPT"] = "before"
    os.environ.pop("FEDPILOT_TEST_NEW", None)
    with home.environment({"FEDPILOT_TEST_KEPT": "during", "FEDPILOT_TEST_NEW": "during"}):
        assert os.environ["FEDPILOT_TEST_KEPT"] == os.environ["FEDPILOT_TEST_NEW"] == "during"
    assert os.environ.pop("FEDPILOT_TEST_KEPT") == "before"
    assert "FEDPILOT_TEST_NEW" not in os.environ
