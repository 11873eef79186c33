"""A command whose virtual cluster must leave its places ends, waits, and runs again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from confined_clusters import ConfinedClusters, alive, run
from fedpilot.fabric.errors import FabricError, ManagerUnreachable
from fedpilot.fabric.jobs import confine
from real_ray import eventually

LONG_S = 60.0
"""A grace that no test waits for, unless it fails."""

COMMAND = """
import os, pathlib, signal, subprocess, sys, time
log, how = pathlib.Path(sys.argv[1]), sys.argv[2]
def say(text):
    with log.open("a") as file:
        file.write(f"{text} {os.environ['FEDPILOT_ATTEMPT']}\\n")
def told(*_):
    if how == "ignores":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        say(f"left {child.pid} behind in")
    say("told in")
    if how == "saves":
        sys.exit(0)
    if how == "saves long":
        time.sleep(1)
        say("saved in")
        sys.exit(1)
if os.environ["FEDPILOT_ATTEMPT"] != "1":
    say("finished in")
    sys.exit(7)
signal.signal(signal.SIGTERM, told)
say("began")
if how == "fails":
    sys.exit(5)
end = time.monotonic() + 30
while time.monotonic() < end:
    time.sleep(0.05)
say("was left alone in")
"""


class Preempting(ConfinedClusters):
    """One virtual cluster: it gets a notice once its command has begun, leaves, and comes back."""

    def __init__(self, log: Path, grace_s: float = LONG_S) -> None:
        super().__init__()
        self.log, self.grace_s = log, grace_s
        self.notice: dict[str, Any] | None = None
        self.stopped: dict[str, Any] | None = None
        self.waits = 0
        """How often it is still seen without places."""
        self.left = 0

    def told(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def comes(self) -> None:
        """What happens once the command has begun."""
        self.notice = {
            "at": time.time() + self.grace_s,
            "claimant": "b",
            "rule": "reclaim-quota",
            "reason": "its project has less",
        }

    def leaves(self) -> None:
        self.stopped, self.notice, self.waits = self.notice, None, 3

    def show(self, name: str) -> Mapping[str, Any]:
        if self.notice is None and self.stopped is None and "began 1" in self.told():
            self.comes()
        if self.notice is not None and time.time() >= self.notice["at"]:
            self.leaves()
        found = super().show(name)
        if self.waits:
            self.waits -= 1
            found = {**found, "state": "waiting", "position": 1, "reason": "no room"}
        return {**found, "leaves": self.notice, "stopped": self.stopped}

    def leave(self, name: str) -> None:
        self.left += 1
        assert "told in 1" in self.told(), "its command has ended"
        if self.notice is not None:
            self.leaves()


def ended(clusters: Preempting, how: str = "saves", options: Sequence[str] = ()) -> int:
    return run(clusters, sys.executable, "-c", COMMAND, str(clusters.log), how, options=options)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_a_command_that_saves_and_ends_well_has_not_finished_and_runs_again(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    clusters = Preempting(log)
    assert ended(clusters) == 7
    assert clusters.told().splitlines() == ["began 1", "told in 1", "finished in 2"]
    assert clusters.left == 1, "the claimant does not wait for the rest of the grace"
    assert capfd.readouterr().err.splitlines() == [
        "fedpilot: virtual cluster a is active; its command starts",
        "fedpilot: virtual cluster a has to leave its places to b in 60 s: its project has less "
        "(reclaim-quota); its command is told to end",
        "fedpilot: exit code 0: its command has ended",
        "fedpilot: virtual cluster a is waiting (position 1): no room",
        "fedpilot: virtual cluster a is active; attempt 2: its command starts",
    ]


def test_it_has_all_of_the_grace_to_save(log: Path) -> None:
    clusters = Preempting(log)
    assert ended(clusters, "saves long") == 7
    assert clusters.told().splitlines() == ["began 1", "told in 1", "saved in 1", "finished in 2"]


def test_one_that_does_not_end_is_killed_with_what_it_started_meanwhile(log: Path) -> None:
    clusters = Preempting(log, grace_s=1.5)
    assert ended(clusters, "ignores") == 7
    left, told, finished = clusters.told().splitlines()[1:]
    assert (told, finished) == ("told in 1", "finished in 2")
    eventually(lambda: not alive(int(left.split()[1])), 60, "what it started has ended")


def test_one_that_should_not_run_again_ends_with_a_code_of_its_own(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    clusters = Preempting(log)
    assert ended(clusters, options=["--on-preempt", "fail"]) == 75
    assert clusters.told().splitlines() == ["began 1", "told in 1"]
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "fedpilot: preempted by b: its project has less (reclaim-quota)"


def test_a_notice_withdrawn_while_it_ends_lets_it_begin_again_without_a_wait(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Withdrawn(Preempting):
        def leave(self, name: str) -> None:
            raise AssertionError("there is nothing to leave any more")

        def show(self, name: str) -> Mapping[str, Any]:
            if "told in 1" in self.told():
                self.stopped, self.notice = {}, None
            return super().show(name)

    clusters = Withdrawn(log, grace_s=2.0)
    assert ended(clusters) == 7
    said = capfd.readouterr().err.splitlines()
    assert said[2:] == [
        "fedpilot: exit code 0: its command has ended",
        "fedpilot: virtual cluster a is active; attempt 2: its command starts",
    ]


@pytest.mark.parametrize("back", [False, True], ids=["it waits", "it has places again"])
def test_places_that_are_gone_without_a_notice_end_it_too(
    log: Path, back: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    class Missed(Preempting):
        since = 5.0

        def comes(self) -> None:
            super().comes()
            self.leaves()
            if back:
                self.since, self.waits = 6.0, 0

        def show(self, name: str) -> Mapping[str, Any]:
            return {**super().show(name), "since": self.since}

    clusters = Missed(log)
    assert ended(clusters) == 7
    assert clusters.told().splitlines() == ["began 1", "told in 1", "finished in 2"]
    assert capfd.readouterr().err.splitlines()[1] == (
        "fedpilot: virtual cluster a has lost its places to b: its project has less "
        "(reclaim-quota); its command is told to end"
    )


def test_one_that_fails_because_its_places_were_taken_runs_again(
    log: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ended before anybody looked; the notice is found by the look after its end."""
    monkeypatch.setattr(confine, "WATCH_S", LONG_S)

    class Fails(Preempting):
        def leave(self, name: str) -> None:
            self.leaves()

    clusters = Fails(log)
    assert ended(clusters, "fails") == 7
    assert clusters.told().splitlines() == ["began 1", "finished in 2"]
    assert "(reclaim-quota); exit code 5: its command has ended" in capfd.readouterr().err


def test_one_that_fails_by_itself_does_not(log: Path) -> None:
    class Calm(Preempting):
        def comes(self) -> None:
            pass

    clusters = Calm(log)
    assert ended(clusters, "fails") == 5
    assert clusters.told().splitlines() == ["began 1"]


def test_a_manager_that_is_away_during_the_grace_and_the_wait_changes_nothing(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Away(Preempting):
        away = 0

        def show(self, name: str) -> Mapping[str, Any]:
            if self.away < (5 if self.notice else 10) and "told in 1" in self.told():
                self.away += 1
                raise ManagerUnreachable("it starts again")
            return super().show(name)

        def leave(self, name: str) -> None:
            self.leaves()
            raise FabricError("it has left, but the answer was lost")

    clusters = Away(log)
    assert ended(clusters) == 7
    assert clusters.told().splitlines() == ["began 1", "told in 1", "finished in 2"]
    said = capfd.readouterr().err
    assert said.count("a waits: the manager of this Ray cluster does not answer: it starts") == 1


def test_a_virtual_cluster_of_others_is_not_left_for_them(log: Path) -> None:
    class Joined(Preempting):
        def leave(self, name: str) -> None:
            raise AssertionError("others may still work in it")

    clusters = Joined(log, grace_s=2.0)
    clusters.there["a"] = clusters._made("a")
    assert ended(clusters, options=["--join"]) == 7


def test_who_stops_it_during_the_grace_does_not_wait_for_the_rest_of_it(log: Path) -> None:
    class Stopped(Preempting):
        def show(self, name: str) -> Mapping[str, Any]:
            if "told in 1" in self.told() and not self.silent:
                self.silent = True
                os.kill(os.getpid(), signal.SIGTERM)
            return super().show(name)

    clusters = Stopped(log)
    before = signal.signal(signal.SIGTERM, confine._stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            ended(clusters, "ignores")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert clusters.told().splitlines()[-1] == "told in 1"


def test_one_that_is_deleted_while_it_waits_again_says_so(log: Path) -> None:
    class Deleted(Preempting):
        def leaves(self) -> None:
            super().leaves()
            self.delete("a")

    with pytest.raises(FabricError, match=r"did not get its places in .*: it was deleted"):
        ended(Deleted(log))
