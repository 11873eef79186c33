"""Jobs and blocks that begin: what is asked of the manager, and what is taken back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from fedpilot import fabric
from fedpilot.fabric import VirtualCluster
from fedpilot.fabric.core.cluster_state import Entry
from fedpilot.fabric.core.records import ROOT
from fedpilot.fabric.errors import NameTaken, NoSuchCluster, NotInTime, SpecError
from fedpilot.fabric.inside import context, session
from fedpilot.fabric.inside.virtual_clusters import SLICE_S, VirtualClusters
from fedpilot.fabric.spec import QueueOptions

SPEC = VirtualCluster(flex_resource_min={"CPU": 1})


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.pass_by)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Manager(VirtualClusters):
    """A manager of virtual clusters that get their places at a moment; asked without Ray."""

    def __init__(self, clock: Clock, placed_at: float, ends_at: float = float("inf")) -> None:
        self.clock, self.placed_at, self.ends_at = clock, placed_at, ends_at
        self.entries: list[Entry] = []
        self.waits: list[float] = []
        self.refuses: Exception | None = None
        self.deleted: list[str] = []

    def call(self, method: str, *args: Any, patience_s: float = 0.0) -> Any:
        answers: Any = {
            "create": self._create,
            "show": self._show,
            "delete": self._delete,
            "history": lambda: ({"cluster": "team", "event": "ended", "reason": "a bad day"},),
        }
        return answers[method](*args)

    def _state(self) -> Mapping[str, Any]:
        state = "active" if self.clock.now >= self.placed_at else "waiting"
        return {"state": state, "reason": "no room"}

    def _create(self, entry: Entry, wait_s: float) -> Mapping[str, Any]:
        if self.refuses is not None:
            raise self.refuses
        self.entries.append(entry)
        self.waits.append(wait_s)
        self.clock.now = min(self.clock.now + wait_s, max(self.clock.now, self.placed_at))
        if self.clock.now >= self.ends_at:
            raise NotInTime(entry.request.id, wait_s, "its deadline is over")
        return self._state()

    def _show(self, name: str) -> Mapping[str, Any]:
        if self.clock.now >= self.ends_at:
            raise NoSuchCluster(name, [])
        return self._state()

    def _delete(self, name: str, key: str, user: str, force: bool) -> tuple[str, ...]:
        self.deleted.append(name)
        return (name,)


def test_who_waits_long_asks_again_and_again_for_the_same(clock: Clock) -> None:
    manager = Manager(clock, placed_at=clock.now + 2.5 * SLICE_S)
    found = manager.create("team", SPEC, wait_s=24 * 3600, detached=True)
    assert found["state"] == "active"
    assert manager.waits == [SLICE_S] * 3
    assert all(entry == manager.entries[0] for entry in manager.entries)


@pytest.mark.parametrize(
    ("wait_s", "waits"),
    [
        pytest.param(0.0, [0.0], id="not at all"),
        pytest.param(2.0, [2.0], id="shortly"),
        pytest.param(2 * SLICE_S + 1, [SLICE_S, SLICE_S, 1.0], id="longer than a call may"),
    ],
)
def test_nobody_waits_for_longer_than_it_said(
    clock: Clock, wait_s: float, waits: list[float]
) -> None:
    manager = Manager(clock, placed_at=float("inf"))
    assert manager.create("team", SPEC, wait_s=wait_s, detached=True)["state"] == "waiting"
    assert manager.waits == waits


def test_a_request_has_the_place_in_line_that_was_asked_for(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(clock, placed_at=0)
    monkeypatch.setattr(manager, "create", partial(manager.create, detached=True))  # no job of Ray
    queue = QueueOptions(project="vision", preemptible=False, priority=2)
    session._begin(manager, "team", SPEC, parent=ROOT, **queue)
    request = manager.entries[0].request
    assert (request.project, request.preemptible, request.priority) == ("vision", False, 2)


def test_a_deadline_ends_the_waiting(clock: Clock) -> None:
    manager = Manager(clock, placed_at=float("inf"), ends_at=clock.now + 2 * SLICE_S)
    with pytest.raises(NotInTime, match="its deadline is over"):
        manager.create("team", SPEC, wait_s=3600, deadline_s=2 * SLICE_S, detached=True)


def test_a_job_waits_for_the_virtual_cluster_that_it_is_to_join(clock: Clock) -> None:
    began = clock.now
    Manager(clock, placed_at=began + 7).wait("team", 60)
    assert clock.now >= began + 7


@pytest.mark.parametrize(
    ("ends_in", "wait_s", "reason"),
    [
        pytest.param(float("inf"), 5.0, "no room", id="for as long as it said"),
        pytest.param(3.0, 60.0, "a bad day", id="until that ended"),
    ],
)
def test_a_job_does_not_wait_for_ever(
    clock: Clock, ends_in: float, wait_s: float, reason: str
) -> None:
    manager = Manager(clock, placed_at=float("inf"), ends_at=clock.now + ends_in)
    began = clock.now
    with pytest.raises(NotInTime, match=reason):
        manager.wait("team", wait_s)
    assert clock.now - began == pytest.approx(min(ends_in, wait_s))


def test_nobody_joins_what_is_not_there(clock: Clock) -> None:
    with pytest.raises(NoSuchCluster):
        Manager(clock, placed_at=0, ends_at=0).wait("team", 60)


@pytest.mark.parametrize(
    ("refusal", "deleted"),
    [
        pytest.param(NameTaken("team"), [], id="what others made stays"),
        pytest.param(KeyboardInterrupt(), ["team"], id="what may have been made goes"),
    ],
)
def test_a_request_that_failed_is_taken_back(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    refusal: BaseException,
    deleted: list[str],
) -> None:
    manager = Manager(clock, placed_at=0)

    def refuse(*_: Any, **__: Any) -> Any:
        raise refusal

    monkeypatch.setattr(manager, "create", refuse)
    with pytest.raises(type(refusal)):
        session._begin(manager, "team", SPEC, parent="")
    assert manager.deleted == deleted


def test_a_setup_hook_of_somebody_else_is_refused() -> None:
    with pytest.raises(SpecError, match="worker_process_setup_hook"):
        fabric.init(runtime_env={"worker_process_setup_hook": "mine.hook"})


# -- blocks -----------------------------------------------------------------------------------


class Blocks:
    """What `with` asks for and deletes, by whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: dict[str, tuple[str, str]] = {}
        self.deleted: dict[str, str] = {}
        monkeypatch.setattr("fedpilot.fabric.inside.hooks.install", lambda: None)
        monkeypatch.setattr(session, "VirtualClusters", lambda: self)
        monkeypatch.setattr("ray.is_initialized", lambda: True)
        monkeypatch.setattr(context, "own_group", lambda: None)
        monkeypatch.delenv(context.JOB_VARIABLE, raising=False)

    def create(self, name: str, spec: VirtualCluster, *, parent: str, **_: Any) -> Any:
        spec.request(name)
        self.begun[name] = (parent, threading.current_thread().name)
        return {"state": "active"}

    def delete(self, name: str) -> None:
        self.deleted[name] = threading.current_thread().name


def test_blocks_may_be_nested_as_deep_as_anybody_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks(monkeypatch)

    def nest(depth: int) -> None:
        if depth:
            with SPEC as info:
                assert context.current_id() == info.id
                nest(depth - 1)

    nest(12)
    names = list(blocks.begun)
    assert [parent for parent, _ in blocks.begun.values()] == [ROOT, *names[:-1]]
    assert list(blocks.deleted) == names[::-1]


def test_threads_enter_one_spec_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, there = Blocks(monkeypatch), threading.Barrier(2)
    wrong: list[BaseException] = []

    def use() -> None:
        try:
            there.wait(60)
            with SPEC:
                there.wait(60)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, name=f"T{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert {parent for parent, _ in blocks.begun.values()} == {ROOT}
    assert blocks.deleted == {name: by for name, (_, by) in blocks.begun.items()}
