"""The manager is asked over a connection of its own, and through Ray whatever happens to that."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from fedpilot.fabric.errors import (
    CallUnavailable,
    FabricError,
    ManagerAway,
    ManagerGone,
    ManagerUnreachable,
    NoSuchCluster,
)
from fedpilot.fabric.inside import virtual_clusters
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.manager import actor, rpc
from fedpilot.fabric.manager.rpc import LENGTH, TOKEN_BYTES, Address, Port, call, hang_up

HOST = "127.0.0.1"
PATIENCE_S = 60.0


@dataclass
class Manager:
    """What a manager answers, through Ray or not; both say which way it was."""

    address_told: Address | None = None
    asked: list[str] = field(default_factory=list)
    raises: list[Exception] = field(default_factory=list)
    """What comes of the next calls instead of an answer."""
    slow: bool = False
    """Whether Ray has not answered where the manager listens until that is waited for."""
    _actor_id: bytes = b"id"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Method(self, name)


@dataclass
class Failed:
    """What Ray makes an error of, once it is asked for."""

    errors: list[Exception]


@dataclass
class _Method:
    manager: Manager
    name: str

    def remote(self, *args: Any) -> Any:
        if self.name == "address":
            if self.manager.raises and self.manager.slow:
                return Failed([self.manager.raises.pop(0)])
            told = self.manager.address_told
            return Failed([told]) if isinstance(told, Exception) else told
        self.manager.asked.append(self.name)
        if self.manager.raises:
            return Failed([self.manager.raises.pop(0)])
        return ("through Ray", *args)


class Process:
    """What this process is to Ray."""

    id = "first"

    @classmethod
    def get_worker_id(cls) -> str:
        return cls.id


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    def get(asked: Any, timeout: float | None = None) -> Any:
        if isinstance(asked, Failed):
            error = asked.errors.pop()
            raise error  # which refers to itself by this frame, as in Ray
        return asked

    made = Manager()
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: ([], refs) if made.slow else (refs, []))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: Process)
    monkeypatch.setattr(ray, "get", get)
    yield made
    hang_up()


class Listening:
    """A port in a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.gate = threading.Event()
        calls = {"stays": self.stays, "show": self.show, "fails": self.fails}
        self.port = Port({**calls, "queues": self.queues})
        address = self.do(self.port.open(HOST))
        assert address is not None
        self.address = address

    def do(self, work: Any) -> Any:
        done: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return done.result(PATIENCE_S)

    async def show(self, *args: Any) -> Any:
        return ("over the line", *args)

    async def queues(self) -> str:
        return "the queues"

    async def fails(self, error: Exception) -> None:
        raise error

    async def stays(self) -> None:
        while not self.gate.is_set():
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """As when the process ends."""
        self.port.close()

    def close(self) -> None:
        self.do(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)


@pytest.fixture
def listening(manager: Manager) -> Iterator[Listening]:
    found = Listening()
    manager.address_told = found.address
    yield found
    if found.thread.is_alive():
        found.close()


def until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.01)


def over_the_line(manager: Manager) -> bool:
    return bool(call(manager, "show", (), PATIENCE_S) == ("over the line",))


def test_the_first_call_waits_for_no_connection(manager: Manager, listening: Listening) -> None:
    assert call(manager, "show", (1, "a"), PATIENCE_S)[1:] == (1, "a")
    until(lambda: over_the_line(manager))
    assert call(manager, "show", (1, "a"), PATIENCE_S) == ("over the line", 1, "a")


def test_without_a_port_all_goes_through_ray(manager: Manager) -> None:
    for _ in range(3):
        assert call(manager, "show", (1,), PATIENCE_S) == ("through Ray", 1)


def test_what_the_manager_refuses_is_refused_here(manager: Manager, listening: Listening) -> None:
    until(lambda: over_the_line(manager))
    manager.asked.clear()
    with pytest.raises(NoSuchCluster, match="team"):
        call(manager, "fails", (NoSuchCluster("team", []),), PATIENCE_S)
    with pytest.raises(FabricError, match=r"the manager failed: KeyError\('x'\)"):
        call(manager, "fails", (KeyError("x"),), PATIENCE_S)
    assert manager.asked == []


def test_a_manager_that_is_gone_is_asked_through_ray_and_dialled_again(
    manager: Manager, listening: Listening
) -> None:
    until(lambda: over_the_line(manager))
    listening.close()
    assert call(manager, "show", (), PATIENCE_S) == ("through Ray",)
    again = Listening()
    try:
        manager.address_told = again.address
        until(lambda: over_the_line(manager))
    finally:
        again.close()


def test_another_connection_to_ray_dials_anew(
    manager: Manager, listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: over_the_line(manager))
    monkeypatch.setattr(Process, "id", "second")
    manager.address_told = None
    assert call(manager, "show", (), PATIENCE_S) == ("through Ray",)


def test_who_does_not_answer_in_time_is_not_asked_twice(
    manager: Manager, listening: Listening
) -> None:
    until(lambda: over_the_line(manager))
    manager.asked.clear()
    with pytest.raises(ManagerUnreachable, match=r"within 0\.2 s"):
        call(manager, "stays", (), 0.2)
    assert manager.asked == []


def test_a_manager_that_cannot_say_where_it_listens(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.address_told = RayActorError()  # type: ignore[assignment]
    assert call(manager, "show", (), PATIENCE_S) == ("through Ray",)


def test_ray_that_encrypts_has_no_port_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert asyncio.run(Port({}).open(HOST)) is None


@pytest.mark.parametrize("token", [b"", b"short", bytes(TOKEN_BYTES)])
def test_nobody_without_the_token_is_answered(listening: Listening, token: bytes) -> None:
    """Not even a call that is all right otherwise."""
    to = (listening.address.host, listening.address.port)
    asked = pickle.dumps(("show", ()))
    with socket.create_connection(to, timeout=PATIENCE_S) as line:
        line.sendall(token + LENGTH.pack(len(asked)) + asked)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""


def test_what_cannot_be_packed_is_asked_through_ray(
    manager: Manager, listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    class Local(Exception):
        """Pickle cannot find it."""

    async def fails() -> None:
        raise Local

    until(lambda: over_the_line(manager))
    listening.port._methods = {"odd": fails, "show": listening.show}
    assert call(manager, "odd", (), PATIENCE_S) == ("through Ray",)
    assert "made again through Ray" in caplog.text
    assert not listening.port._writers
    until(lambda: over_the_line(manager))


def test_a_port_that_cannot_be_reached_is_tried_once(
    manager: Manager, listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def connect(to: Any, timeout: float) -> None:
        tried.append(to)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    for _ in range(3):
        assert call(manager, "show", (), PATIENCE_S) == ("through Ray",)
    assert len(tried) == 1


def test_threads_use_connections_of_their_own(manager: Manager, listening: Listening) -> None:
    until(lambda: over_the_line(manager))
    with ThreadPoolExecutor(4) as threads:
        naps = [threads.submit(call, manager, "stays", (), PATIENCE_S) for _ in range(3)]
        assert [
            threads.submit(call, manager, "show", (n,), PATIENCE_S).result() for n in range(9)
        ] == [("over the line", n) for n in range(9)]
        listening.gate.set()
        assert [nap.result() for nap in naps] == [None] * 3


def test_a_fork_leaves_the_connection_to_its_parent(
    manager: Manager, listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: over_the_line(manager))
    monkeypatch.setattr(rpc.os, "getpid", lambda: -1)
    assert call(manager, "show", (), PATIENCE_S) == ("through Ray",)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ActorDiedError(), ManagerGone),
        (ActorUnavailableError("it starts again", None), ManagerAway),
        (RayActorError(), ManagerUnreachable),
    ],
)
def test_a_dead_manager_is_told_from_one_that_comes_back(
    manager: Manager, raised: Exception, told: type[Exception]
) -> None:
    manager.raises = [raised]
    with pytest.raises(told) as caught:
        call(manager, "show", (), PATIENCE_S)
    assert type(caught.value) is told


@pytest.fixture
def found(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> list[Manager]:
    """The managers that are found by the name, one after the other."""
    managers = [manager]
    monkeypatch.setattr(actor, "find_or_create", lambda settings: managers.pop(0))
    monkeypatch.setattr(virtual_clusters, "RETRY_S", 0.001)
    return managers


class Held:
    """What somebody has who asks, such as the handle of an actor."""


def keeps_alive(manager: Manager, method: str, *args: Any) -> bool:
    """Whether what its caller had outlives a call that fails, until Python looks for cycles."""

    def asks() -> weakref.ref[Held]:
        held = Held()
        with contextlib.suppress(FabricError):
            call(manager, method, args, PATIENCE_S)
        return weakref.ref(held)

    gc.disable()
    try:
        return asks()() is not None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(lambda: ActorDiedError(), id="a manager that is dead"),
        pytest.param(lambda: ActorUnavailableError("starts", None), id="one that comes back"),
        pytest.param(lambda: RayTaskError("show", "", NoSuchCluster("job")), id="a refusal"),
        pytest.param(lambda: RayTaskError("show", "", KeyError("job")), id="a fault"),
    ],
)
def test_an_error_of_rays_keeps_nothing_of_its_callers_alive(
    manager: Manager, error: Callable[[], Exception]
) -> None:
    manager.raises.append(error())
    assert not keeps_alive(manager, "show")


@pytest.mark.parametrize("error", [NoSuchCluster("job"), KeyError("job")])
def test_an_error_of_the_managers_keeps_nothing_of_its_callers_alive(
    manager: Manager, listening: Listening, error: Exception
) -> None:
    until(lambda: over_the_line(manager))
    assert not keeps_alive(manager, "fails", error)


def test_the_successor_of_a_dead_manager_is_asked(manager: Manager, found: list[Manager]) -> None:
    clusters = VirtualClusters()
    manager.raises = [ActorDiedError()]
    successor = Manager(_actor_id=b"another", raises=[ActorUnavailableError("it begins", None)])
    found += [manager, successor]
    manager.raises = [ActorDiedError(), ActorDiedError()]  # its name goes a little after it
    assert clusters.call("show") == ("through Ray",)
    assert (len(manager.asked), len(successor.asked)) == (2, 2)


def test_a_manager_that_stays_dead_is_given_up_in_the_end(
    manager: Manager, found: list[Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(settings: object) -> Manager:
        raise FabricError("this Ray cluster has no head machine that is alive")

    clusters = VirtualClusters()
    monkeypatch.setattr(actor, "find_or_create", nobody)
    manager.raises = [ActorDiedError()] * 10_000
    with pytest.raises(ManagerUnreachable):
        clusters.call("show", timeout_s=0.05)
    assert len(manager.asked) > 1


def test_a_call_of_the_port_alone_waits_for_the_port(
    manager: Manager, listening: Listening
) -> None:
    manager.slow = True
    assert call(manager, "show", (), PATIENCE_S) == ("through Ray",)
    assert call(manager, "queues", (), PATIENCE_S) == "the queues"
    assert call(manager, "show", (), PATIENCE_S) == ("over the line",)
    assert manager.asked == ["show"]


def test_without_a_port_a_call_of_the_port_alone_is_refused(manager: Manager) -> None:
    with pytest.raises(CallUnavailable, match=r"'queues': it has no port.*RAY_USE_TLS"):
        call(manager, "queues", (), PATIENCE_S)
    assert manager.asked == []


def test_an_older_manager_has_no_such_call(manager: Manager, listening: Listening) -> None:
    with pytest.raises(CallUnavailable, match=r"'apply_queues': its version .* is older"):
        call(manager, "apply_queues", ({}, None, "alice", False), PATIENCE_S)
    assert manager.asked == []


def test_a_port_out_of_reach_cannot_take_a_call_of_its_own(
    manager: Manager, listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(to: Any, timeout: float) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    for _ in range(2):
        with pytest.raises(CallUnavailable, match="cannot be reached from this machine"):
            call(manager, "queues", (), PATIENCE_S)


def test_a_restarted_manager_is_asked_again_at_its_new_port(
    manager: Manager, found: list[Manager], listening: Listening
) -> None:
    clusters = VirtualClusters()
    assert clusters.queues() == "the queues"
    listening.close()
    again = Listening()
    try:
        manager.address_told = again.address
        assert clusters.queues() == "the queues"
    finally:
        again.close()


def test_the_successor_of_a_dead_manager_tells_its_port(
    manager: Manager, found: list[Manager], listening: Listening
) -> None:
    clusters = VirtualClusters()
    manager.slow, manager.raises = True, [ActorDiedError(), ActorDiedError()]
    found.append(Manager(_actor_id=b"another", address_told=listening.address))
    assert clusters.queues() == "the queues"


def test_a_manager_that_does_not_say_where_it_listens_is_not_waited_for_longer(
    manager: Manager, found: list[Manager]
) -> None:
    clusters = VirtualClusters()
    manager.slow, manager.raises = True, [ActorUnavailableError("starts", None)] * 10_000
    with pytest.raises(ManagerAway):
        clusters.call("queues", timeout_s=0.05)
