"""`confine`: a command runs once its virtual cluster has its places, and ends when that ends."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from confined_clusters import ConfinedClusters, alive, run
from fedpilot.fabric.errors import (
    FabricError,
    NameTaken,
    NotInTime,
)
from fedpilot.fabric.jobs import confine
from fedpilot.fabric.jobs.confined import HOOK_VARIABLE, OTHER_HOOK_VARIABLE
from real_ray import eventually

# -- whose it is ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_that_of_the_command(code: int) -> None:
    assert run(ConfinedClusters(), sys.executable, "-c", f"raise SystemExit({code})") == code


def test_a_command_that_is_not_there_fails(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(ConfinedClusters(), "/no/such/command") == 1
    assert "/no/such/command: No such file" in capfd.readouterr().err


def test_what_others_have_made_under_the_name_is_left_alone(tmp_path: Path) -> None:
    clusters = ConfinedClusters("a")
    with pytest.raises(NameTaken):
        run(clusters, "touch", str(tmp_path / "ran"))
    assert list(clusters.there) == ["a"]
    assert not (tmp_path / "ran").exists()


def test_what_was_joined_stays() -> None:
    clusters = ConfinedClusters("a")
    assert run(clusters, "true", options=["--join"]) == 0
    assert list(clusters.there) == ["a"]


# -- waiting ----------------------------------------------------------------------------------


def test_it_waits_saying_why_once(capfd: pytest.CaptureFixture[str]) -> None:
    clusters = ConfinedClusters()
    clusters.states = ["waiting", "waiting", "waiting", "starting", "active"]
    assert run(clusters, "true") == 0
    assert capfd.readouterr().err.splitlines() == [
        "fedpilot: virtual cluster a is waiting: it needs 1 CPU",
        "fedpilot: virtual cluster a is starting: it needs 1 CPU",
        "fedpilot: virtual cluster a is active; its command starts",
    ]


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted, and made by others"])
def test_one_that_is_deleted_while_it_waits_never_runs(again: bool, tmp_path: Path) -> None:
    class Deleted(ConfinedClusters):
        def show(self, name: str) -> Mapping[str, Any]:
            found = super().show(name)
            self.delete(name)
            if again:
                self.there[name] = {**self._made(name), "asked_at": 1.0}
            return found

    clusters = Deleted()
    clusters.states = ["waiting"]
    with pytest.raises(NotInTime, match="it was deleted"):
        run(clusters, "touch", str(tmp_path / "ran"))
    assert not (tmp_path / "ran").exists()
    assert list(clusters.there) == ["a"] * again


# -- its end ----------------------------------------------------------------------------------

FAMILY = """
import pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
def told(*_):
    pathlib.Path(sys.argv[1]).write_text(f"{child.pid} told")
    if sys.argv[2] == "ends":
        sys.exit(0)
signal.signal(signal.SIGTERM, told)
pathlib.Path(sys.argv[1]).write_text(f"{child.pid} runs")
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(("how", "code"), [("ends", 1), ("goes on", 128 + signal.SIGKILL)])
@pytest.mark.parametrize("join", [False, True], ids=["its own", "joined"])
def test_a_command_ends_with_its_virtual_cluster_and_all_that_it_started_too(
    how: str, code: int, join: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Deleted(ConfinedClusters):
        def show(self, name: str) -> Mapping[str, Any]:
            if note.exists() and note.read_text().endswith("runs") and name in self.there:
                self.delete(name)
            return super().show(name)

    note = tmp_path / "note"
    clusters = Deleted("a") if join else Deleted()
    options = ["--join"] if join else []
    assert run(clusters, sys.executable, "-c", FAMILY, str(note), how, options=options) == code
    pid, _, what = note.read_text().partition(" ")
    assert what == "told"
    eventually(lambda: not alive(int(pid)), 60, "what it started has ended")
    assert capfd.readouterr().err.splitlines()[-1] == (
        "fedpilot: its virtual cluster has ended, and so has this command: it was deleted"
    )


COUNTS = """
import pathlib, signal, sys, time
note, told = pathlib.Path(sys.argv[1]), []
def tell(*_):
    told.append(1)
    note.write_text(str(len(told)))
signal.signal(signal.SIGTERM, tell)
note.touch()
end = time.monotonic() + 10
while time.monotonic() < end:
    time.sleep(0.1)
"""


def test_who_was_told_to_end_is_not_told_again_and_has_time(tmp_path: Path) -> None:
    note, others = tmp_path / "note", set(psutil.Process().children())

    class Stopped(ConfinedClusters):
        """Ray's job server tells all processes of a job to end, this one and the command."""

        def show(self, name: str) -> Mapping[str, Any]:
            if note.exists() and not self.silent:
                self.silent = True
                for each in {*psutil.Process().children(), psutil.Process()} - others:
                    each.terminate()
            return super().show(name)

    before = signal.signal(signal.SIGTERM, confine._stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(Stopped(), sys.executable, "-c", COUNTS, str(note))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert note.read_text() == "1"


def test_a_manager_that_does_not_answer_ends_nothing() -> None:
    class Starting(ConfinedClusters):
        asked = 0

        def show(self, name: str) -> Mapping[str, Any]:
            self.asked += 1
            self.silent = 2 < self.asked < 5
            return super().show(name)

    clusters = Starting()
    assert run(clusters, sys.executable, "-c", "import time; time.sleep(0.5)") == 0
    assert clusters.asked > 5


# -- what the command finds -------------------------------------------------------------------

ASKS_RAY = """
import os
from ray._private.worker import _maybe_modify_runtime_env
print(_maybe_modify_runtime_env({"pip": ["x"]}, False))
from fedpilot.fabric.inside.patching import originals
print("wrapped" if originals else "not wrapped")
"""


@pytest.mark.parametrize("path", [None, "/somewhere"], ids=["ours", "a search path of its own"])
def test_ray_is_wrapped_whatever_the_search_path(
    path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def hook(env): return {**env, 'mine': True}\n")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv(HOOK_VARIABLE, "mine.hook")
    env = confine.environment("a", "127.0.0.1:1")
    found = path or env["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASKS_RAY],
        env={**env, "PYTHONPATH": f"{found}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["{'pip': ['x'], 'mine': True}", "wrapped"]


def test_a_job_within_a_job_has_the_same_hook_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOOK_VARIABLE, raising=False)
    monkeypatch.delenv(OTHER_HOOK_VARIABLE, raising=False)
    once = confine.environment("a", "127.0.0.1:1")
    for name, value in once.items():
        monkeypatch.setenv(name, value)
    twice = confine.environment("b", "127.0.0.1:1")
    assert twice[HOOK_VARIABLE] == once[HOOK_VARIABLE]
    assert OTHER_HOOK_VARIABLE not in {*once, *twice}


def test_errors_end_it_before_the_command_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(given: argparse.Namespace, command: object) -> int:
        raise FabricError("no")

    monkeypatch.setattr(confine, "_run", refused)
    assert confine.main(["--name", "a", "--", "true"]) == 3
    assert capsys.readouterr().err == "fedpilot: no\n"
