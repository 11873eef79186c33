"""The metrics of a site's store, and who may ask for them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_site import FakeSite, managed
from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
from fedpilot.fabric.errors import SpecError
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED
from fedpilot.fabric.ray_clusters.declarations.waiting import wait_of
from fedpilot.fabric.ray_clusters.metrics import listener
from fedpilot.fabric.ray_clusters.metrics.exporter import RayClusterMetrics, check_outlets
from fedpilot.fabric.ray_clusters.metrics.listener import LONGEST, listening
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from ray_cluster_documents import ray_cluster

NAME = RayClusterName("team-a")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    site = FakeSite(tmp_path)
    yield site
    site.store.close()


def value(metrics: RayClusterMetrics, name: str) -> float | None:
    """A value of the one cluster; None if there is none."""
    for line in metrics.text.splitlines():
        if line.startswith(f"fedpilot_raycluster_{name} "):
            return float(line.rpartition(" ")[2])
    return None


def test_a_cluster_is_measured_from_its_declaration_to_its_end(site: FakeSite) -> None:
    metrics = RayClusterMetrics(store=site.store, clock=site.tick)
    one = f'{{cluster="{NAME}"}}'

    async def told() -> None:
        metrics.look()
        assert value(metrics, "managed") == 0
        document = ray_cluster_of(ray_cluster()).document
        stored = site.store.apply(NAME, document, saw=UNDECLARED, by="ann", at=site.tick())
        metrics.look()
        assert value(metrics, f"reaction_seconds_count{one}") == 0
        async with managed(site.manager()):
            while not wait_of(site.store, stored, "ready").reached:
                await asyncio.sleep(0.005)
            metrics.look()
            assert value(metrics, "managed") == 1
            assert value(metrics, f"reaction_seconds_count{one}") == 1
            assert value(metrics, f"ready_seconds_count{one}") == 1
            assert value(metrics, f'machines_wanted{{cluster="{NAME}",group="small"}}') == 2
            site.store.delete(NAME, saw=stored.revision, by="ann", at=site.tick())
            while site.store.declarations():
                await asyncio.sleep(0.005)
        metrics.look()
        assert "team-a" not in metrics.text

    asyncio.run(told())


async def answered(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    found = await reader.read()
    writer.close()
    return found


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        pytest.param(b"GET /metrics HTTP/1.1\r\n\r\n", b"200", b"a 1\n", id="the metrics"),
        pytest.param(b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", b"200", b"a 1\n", id="with a query"),
        pytest.param(b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200", b"", id="the head alone"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", b"404", None, id="another path"),
        pytest.param(b"POST /metrics HTTP/1.1\r\n\r\n", b"405", None, id="another method"),
        pytest.param(b"\x16\x03\x01 hello\r\n\r\n", b"400", None, id="no HTTP"),
        pytest.param(b"GET /" + b"x" * 2 * LONGEST, b"400", None, id="a head without an end"),
    ],
)
def test_a_request_has_its_answer(request_: bytes, status: bytes, body: bytes | None) -> None:
    async def told() -> bytes:
        async with listening("127.0.0.1", 0, lambda: "a 1\n") as port:
            return await answered(port, request_)

    head, _, found = asyncio.run(told()).partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert body is None or found == body


def test_callers_who_hang_up_or_say_nothing_stop_no_other() -> None:
    async def told() -> None:
        async with listening("127.0.0.1", 0, lambda: "a 1\n") as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            silent[0][1].close()
            assert b"a 1" in await answered(port, b"GET /metrics HTTP/1.0\r\n\r\n")
            for _, writer in silent:
                writer.close()

    asyncio.run(told())


def test_too_many_callers_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_CALLERS", 1)

    async def told() -> None:
        async with listening("127.0.0.1", 0, lambda: "a 1\n") as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while await answered(port, b""):
                pass
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"a 1" in await reader.read()
            writer.close()

    asyncio.run(told())


def test_an_outlet_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--metrics-file .*gone/m\.prom: it cannot be written"):
        check_outlets(tmp_path / "gone" / "m.prom", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"--metrics-listen 127.0.0.1:{port}: it cannot be"):
            check_outlets(None, ("127.0.0.1", port))
