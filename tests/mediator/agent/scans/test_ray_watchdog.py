"""The watchdog notices a Ray that is gone, that hangs, and that is another one than before."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric import ClusterUnreachable
from fedpilot.mediator.agent.scans.ray_watchdog import Look, Reported, Watchdog, health, reported_in
from fedpilot.mediator.agent.settings import AgentSettings, pause_s
from fedpilot.mediator.wire.messages import Capacity
from site_agents import QUICK

FINE = b"\x08\x01"
ONE = Reported(machines=frozenset({"m1"}), capacity=Capacity(total={"CPU": 2.0}, machines=1))
OTHER = replace(ONE, machines=frozenset({"m2"}))


class Health(grpc.GenericRpcHandler):
    """A control plane's health."""

    def __init__(self) -> None:
        self.answer: bytes | grpc.StatusCode | None = FINE

    def service(self, details: Any) -> Any:
        if details.method != "/grpc.health.v1.Health/Check":
            return None
        return grpc.unary_unary_rpc_method_handler(self._check)

    async def _check(self, request: bytes, context: Any) -> bytes:
        if self.answer is None:
            await asyncio.sleep(60)
        if isinstance(self.answer, grpc.StatusCode):
            await context.abort(self.answer, "no")
        assert isinstance(self.answer, bytes)
        return self.answer


@asynccontextmanager
async def gcs(health: Health) -> AsyncIterator[str]:
    """A fake control plane."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((health,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


class Probed(Watchdog):
    """A watchdog whose probe is the test."""

    async def _keep_probing(self, address: str) -> None: ...

    def reports(self, reported: Reported | None) -> None:
        self._reported = reported


def watchdog(address: str, **more: Any) -> Probed:
    return Probed(lambda: address, {}, QUICK, time.monotonic, **more)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(FINE, "", id="serving"),
        pytest.param(b"\x08\x02", "not serving", id="not serving"),
        pytest.param(b"", "not serving", id="unknown"),
        pytest.param(grpc.StatusCode.UNAUTHENTICATED, "", id="it wants a token, so it lives"),
        pytest.param(grpc.StatusCode.INTERNAL, "INTERNAL", id="an error"),
        pytest.param(None, "within 0.3 s", id="it hangs"),
    ],
)
def test_health(answer: Any, reason: str) -> None:
    async def whole() -> str:
        control = Health()
        control.answer = answer
        async with gcs(control) as address:
            return await health(address, 0.3)

    found = asyncio.run(whole())
    assert reason in found
    assert bool(reason) is bool(found)


def test_nobody_listening_is_not_well() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "UNAVAILABLE" in asyncio.run(health(address, 2.0))


def test_one_look_that_fails_means_nothing_yet_and_two_do() -> None:
    async def whole() -> list[Look]:
        control = Health()
        async with gcs(control) as address:
            dog = watchdog(address)
            dog.reports(ONE)
            looks = []
            for answer in (FINE, None, FINE, None, None, FINE):
                control.answer = answer
                dog.look = await dog.turn()
                looks.append(dog.look)
                if answer is FINE:
                    dog.reports(ONE)
            dog.look = await dog.turn()
            return [*looks, dog.look]

    troubles = [bool(look.trouble) for look in asyncio.run(whole())]
    assert troubles == [False, False, False, False, True, True, False]


def test_a_successor_knows_nothing_before_it_has_looked_often_enough() -> None:
    async def whole() -> list[Look]:
        control = Health()
        control.answer = None
        async with gcs(control) as address:
            dog = watchdog(address)
            looks = [dog.look]
            for _ in range(2):
                dog.look = await dog.turn()
                looks.append(dog.look)
            return looks

    looks = asyncio.run(whole())
    assert [look.in_trouble for look in looks] == [False, False, True]
    assert all(look.trouble for look in looks)


def test_a_cluster_in_trouble_has_nothing_to_give() -> None:
    async def whole() -> Look:
        control = Health()
        async with gcs(control) as address:
            dog = watchdog(address)
            dog.reports(ONE)
            dog.look = await dog.turn()
            assert dog.look.capacity.total == {"CPU": 2.0}
            control.answer = None
            for _ in range(2):
                dog.look = await dog.turn()
            return dog.look

    look = asyncio.run(whole())
    assert "has not answered within 0.5 s" in look.trouble
    assert look.capacity == Capacity()


@pytest.mark.parametrize(
    ("before", "then", "another"),
    [
        pytest.param(frozenset(), ONE, False, id="the first that is seen"),
        pytest.param(frozenset({"m1"}), ONE, False, id="the same, for a successor"),
        pytest.param(frozenset({"m1", "m3"}), ONE, False, id="a machine less"),
        pytest.param(frozenset({"m1"}), OTHER, True, id="all machines are others"),
    ],
)
def test_a_cluster_that_was_started_anew_is_another_one(
    before: frozenset[str], then: Reported, another: bool
) -> None:
    async def whole() -> Look:
        async with gcs(Health()) as address:
            dog = watchdog(address, machines=before)
            dog.reports(then)
            return await dog.turn()

    look = asyncio.run(whole())
    assert look.cluster == int(another)
    assert look.machines == then.machines


def test_a_cluster_without_a_machine_cannot_be_worked_with() -> None:
    async def whole() -> Look:
        async with gcs(Health()) as address:
            dog = watchdog(address)
            dog.reports(Reported(machines=frozenset(), capacity=Capacity()))
            return await dog.turn()

    assert "no machine" in asyncio.run(whole()).trouble


def test_a_site_without_a_ray_says_so_at_once() -> None:
    def nowhere() -> str:
        raise ClusterUnreachable("auto", "no Ray was started on this machine")

    dog = Watchdog(nowhere, {}, QUICK, time.monotonic)
    assert "no Ray was started" in asyncio.run(dog.turn()).trouble


def test_a_probe_that_is_silent_is_started_anew_and_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe of this test reports once, and hangs."""
    program = tmp_path / "python"
    program.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import json, os, pathlib, time
        pathlib.Path({str(tmp_path)!r}, f"probe-{{os.getpid()}}").touch()
        print(json.dumps({{"machines": ["m1"], "total": {{"CPU": 2}}, "free": {{}}}}), flush=True)
        time.sleep(60)
        """)
    )
    program.chmod(0o700)

    async def whole() -> list[int]:
        monkeypatch.setattr(sys, "executable", str(program))
        async with gcs(Health()) as address:
            settings = replace(QUICK, probe_silent_s=0.5)
            dog = Watchdog(lambda: address, {}, settings, time.monotonic)
            watching = asyncio.create_task(dog.watch(lambda *_: None))
            while len(list(tmp_path.glob("probe-*"))) < 3 or dog.look.trouble:
                await asyncio.sleep(0.02)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return [int(path.name.partition("-")[2]) for path in tmp_path.glob("probe-*")]

    async def within() -> list[int]:
        async with asyncio.timeout(20):
            return await whole()

    pids = asyncio.run(within())
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"error": "no"}', b'{"machines": 3, "total": {}, "free": {}}', b"null"],
)
def test_what_is_no_report_is_none(line: bytes) -> None:
    assert reported_in(line) is None


def test_a_report() -> None:
    line = json.dumps({"machines": ["a", "b"], "total": {"CPU": 4}, "free": {"CPU": 1}}).encode()
    assert reported_in(line) == Reported(
        machines=frozenset({"a", "b"}),
        capacity=Capacity(total={"CPU": 4.0}, free={"CPU": 1.0}, machines=2),
    )


@given(failures=st.integers(1, 10_000), holding=st.booleans(), chance=st.floats(0, 0.999))
def test_pauses_grow_and_stay_within_their_bound(
    failures: int, holding: bool, chance: float
) -> None:
    settings = AgentSettings()
    pause = pause_s(settings, failures, holding=holding, chance=chance)
    assert 0.1 <= pause <= (2.0 if holding else 10.0)
    assert pause <= pause_s(settings, failures + 1, holding=holding, chance=chance)


def test_the_agent_imports_neither_ray_nor_torch() -> None:
    code = (
        "import sys, fedpilot.mediator.agent, fedpilot.mediator.cli.join, "
        "fedpilot.mediator.agent.site_config.site_files; "
        "print([m for m in ('ray', 'torch') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert found.stdout.strip() == "[]", found.stderr


def test_a_machine_that_can_start_no_process_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def well(*_: object) -> str:
        return ""

    async def none(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("fedpilot.mediator.agent.scans.ray_watchdog.health", well)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", none)
    watchdog = Watchdog(lambda: "127.0.0.1:1", {}, QUICK, time.monotonic)

    async def look() -> Look:
        await watchdog.turn()
        return await watchdog.turn()

    assert asyncio.run(look()).address == "127.0.0.1:1"


def test_a_ray_whose_files_cannot_be_read_is_in_trouble() -> None:
    def resolve() -> str:
        raise PermissionError(13, "Permission denied", "/tmp/ray/ray_current_cluster")

    watchdog = Watchdog(resolve, {}, QUICK, time.monotonic)
    assert "Permission denied" in asyncio.run(watchdog.turn()).trouble
