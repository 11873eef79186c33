"""Runners as processes: started, found, driven, ended and killed; only a prepare needs Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedpilot.mediator import GangRequest, LinkedSite, Payload, Refusal, SiteLost
from fedpilot.mediator.agent.runner.errors import OutOfOrder, ReservationLapsed, RunnerExists
from fedpilot.mediator.agent.runner.link import OrderTensors, RunnerLink
from fedpilot.mediator.agent.runner.process import (
    LOCK,
    LOG,
    RayChoice,
    RunnerProcess,
    RunnerSettings,
)
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.local_socket import RUNNER_SOCKET
from fedpilot.mediator.wire.references import Keeping
from real_ray import eventually

SOON_S = 60.0
PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


def settings(folder: Path, **changes: object) -> RunnerSettings:
    values = RunnerSettings(
        run="r",
        site="paris",
        ray=RayChoice(address="127.0.0.1:1"),
        blobs=folder / "blobs",
        orphan_s=SOON_S,
        folder=folder / "kept",
        data={"xrays": {"classes": 3}},
    )
    return RunnerSettings.from_json({**values.to_json(), **changes})


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[RunnerProcess]:
    started = RunnerProcess.start(tmp_path / "r", settings(tmp_path), environment=PATHS)
    yield started
    started.kill()
    started.wait(SOON_S)


@pytest.fixture
def link(runner: RunnerProcess) -> Iterator[RunnerLink]:
    with contextlib.closing(linked(runner)) as made:
        yield made


def linked(runner: RunnerProcess) -> RunnerLink:
    store = BlobStore(runner.settings.blobs, 1 << 30)
    return RunnerLink(runner, OrderTensors(Keeping(store, discard=True)))


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunnerProcess, RunnerLink]]:
    """A runner that holds nothing, for tests that leave it so."""
    folder = tmp_path_factory.mktemp("idle")
    started = RunnerProcess.start(folder / "r", settings(folder), environment=PATHS)
    try:
        with contextlib.closing(linked(started)) as made:
            yield started, made
    finally:
        started.kill()
        started.wait(SOON_S)


def ask(link: RunnerLink, verb: str) -> Payload:
    return link.ask(verb, Payload(kind=verb), key=verb).result(SOON_S)


def test_settings_are_told_as_json(tmp_path: Path) -> None:
    made = settings(tmp_path)
    assert RunnerSettings.from_json(made.to_json()) == made
    assert made.folder == tmp_path / "kept"


def test_it_is_found_by_whoever_comes(idle: tuple[RunnerProcess, RunnerLink]) -> None:
    runner, link = idle
    ask(link, "release")
    found = RunnerProcess.find(runner.folder)
    assert found is not None
    assert found.pid == runner.pid
    assert found.settings == runner.settings
    assert os.getsid(runner.pid or 0) == runner.pid, "it has a session of its own"
    with pytest.raises(RunnerExists, match="already"):
        RunnerProcess.start(runner.folder, runner.settings)


def test_what_its_state_forbids_is_refused_as_it_was_raised(
    idle: tuple[RunnerProcess, RunnerLink],
) -> None:
    _, link = idle
    with pytest.raises(OutOfOrder, match="`work`"):
        ask(link, "work")
    with pytest.raises(ReservationLapsed):
        ask(link, "commit")
    with pytest.raises(OutOfOrder, match="`rm -rf`"):
        ask(link, "rm -rf")


def test_a_ray_that_is_not_there_is_a_refusal(idle: tuple[RunnerProcess, RunnerLink]) -> None:
    site = LinkedSite("paris", idle[1])
    answer = site.prepare(GangRequest(name="g", resources={"CPU": 1.0})).result(SOON_S)
    assert isinstance(answer, Refusal)
    assert "127.0.0.1:1" in answer.reason


def test_it_ends_in_order_when_its_driver_has_enough(
    runner: RunnerProcess, link: RunnerLink
) -> None:
    ask(link, "release")
    link.close("that was all")
    assert runner.wait(SOON_S)
    assert RunnerProcess.find(runner.folder) is None
    assert runner.last_words() == "ends: that was all"


def test_with_no_room_for_its_log_it_answers_and_ends_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / LOG).symlink_to("/dev/full")
    runner = RunnerProcess.start(tmp_path / "r", settings(tmp_path), environment=PATHS)
    store = BlobStore(runner.settings.blobs, 1 << 30)
    link = RunnerLink(runner, OrderTensors(Keeping(store, discard=True)))
    try:
        with pytest.raises(OutOfOrder, match="`work`"):
            ask(link, "work")
        link.close("that was all")
        assert runner.wait(SOON_S)
    finally:
        link.close()
        runner.kill()
        runner.wait(SOON_S)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_what_is_open_is_lost_with_it(
    runner: RunnerProcess, link: RunnerLink, number: signal.Signals
) -> None:
    ask(link, "release")
    assert runner.pid is not None
    os.kill(runner.pid, number)
    assert runner.wait(SOON_S)
    lost = link.ask("release", Payload(kind="release"), key="again").exception(SOON_S)
    assert isinstance(lost, SiteLost)


def test_it_does_not_outlive_its_orphanage(tmp_path: Path) -> None:
    alone = RunnerProcess.start(tmp_path / "r", settings(tmp_path, orphan_s=0.2), environment=PATHS)
    eventually(lambda: not alone.alive(), SOON_S, "it ends")
    assert alone.last_words() == "ends: no peer was connected for 0.2 s"
    assert alone.pid is None


@pytest.mark.soak
def test_it_ends_when_its_driver_is_silent_for_too_long(tmp_path: Path) -> None:
    started = RunnerProcess.start(
        tmp_path / "r", settings(tmp_path, lease_s=0.2), environment=PATHS
    )
    eventually(lambda: not started.alive(), SOON_S, "it ends")
    assert started.last_words() == "ends: its lease of 0.2 s was not renewed"


def test_one_that_cannot_listen_ends_and_says_why(tmp_path: Path) -> None:
    (tmp_path / RUNNER_SOCKET).mkdir()  # nothing can be bound there
    settings(tmp_path).write(tmp_path)
    lock = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fedpilot.mediator.agent.runner", str(tmp_path), str(lock)],
            env={**os.environ, **PATHS},
            pass_fds=[lock],
            capture_output=True,
            text=True,
            timeout=SOON_S,
        )
    finally:
        os.close(lock)
    assert done.returncode == 1
    assert f"Failed to bind to address unix:{tmp_path}/{RUNNER_SOCKET}" in done.stderr


def test_one_that_cannot_even_start_is_a_lost_site_that_says_why(tmp_path: Path) -> None:
    broken = {**PATHS, "PYTHONPATH": "", "PYTHONHOME": "/nowhere"}
    without_data = replace(settings(tmp_path), data={})  # its log stays at the site otherwise
    started = RunnerProcess.start(tmp_path / "r", without_data, environment=broken)
    store = BlobStore(tmp_path / "blobs", 1 << 20)
    link = RunnerLink(started, OrderTensors(Keeping(store, discard=True)))
    try:
        with pytest.raises(SiteLost, match=r"ended with exit code 1; the last of .*runner\.log: "):
            ask(link, "release")
    finally:
        link.close()
        started.wait(SOON_S)


FORKING = """\
import multiprocessing, os, sys
from pathlib import Path
from fedpilot.mediator import Payload
from fedpilot.mediator.agent.runner.link import OrderTensors, RunnerLink
from fedpilot.mediator.agent.runner.process import RunnerProcess
from fedpilot.mediator.wire.references import Keeping
from fedpilot.mediator.wire.blobs.store import BlobStore

runner = RunnerProcess(Path(sys.argv[1]))
blobs = BlobStore(runner.settings.blobs, 1 << 30)
link = RunnerLink(runner, OrderTensors(Keeping(blobs, discard=True)))
def release(key):
    return link.ask("release", Payload(kind="release"), key=key).result(60).kind
kinds = [release("before")]
if not (child := os.fork()):
    sys.exit(7)
kinds += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), release("between")]
worker = multiprocessing.get_context("fork").Process(target=os.getpid)
worker.start()
worker.join()
print(*kinds, worker.exitcode, release("after"))
link.close()
"""


def test_whoever_drives_a_runner_may_fork(runner: RunnerProcess) -> None:
    forked = subprocess.run(
        [sys.executable, "-c", FORKING, str(runner.folder)],
        env={**os.environ, **PATHS},
        capture_output=True,
        text=True,
        timeout=SOON_S,
    )
    assert (forked.stdout, forked.stderr) == ("done 7 done 0 done\n", "")


def test_driving_a_runner_imports_neither_ray_nor_torch_nor_grpc() -> None:
    code = (
        "import sys, fedpilot.mediator.agent.runner.main_loop\n"
        "print([m for m in ('grpc', 'ray', 'torch') if m in sys.modules])"
    )
    environment = {**os.environ, **PATHS}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout == "[]\n"
