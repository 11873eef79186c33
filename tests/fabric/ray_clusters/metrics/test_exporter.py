"""The metrics of a site's store, and who may ask for them."""

from __future__ import annotations

import asyncio
import os
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from fake_site import FakeSite, managed
from fedpilot.fabric.core.ray_clusters.declaration import RayClusterName
from fedpilot.fabric.errors import SpecError
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED
from fedpilot.fabric.ray_clusters.declarations.waiting import wait_of
from fedpilot.fabric.ray_clusters.metrics import exporter
from fedpilot.fabric.ray_clusters.metrics.exporter import RayClusterMetrics, check_outlets
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from ray_cluster_documents import ray_cluster
from real_ray import free_port

NAME = RayClusterName("team-a")
PATIENCE_S = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    site = FakeSite(tmp_path)
    yield site
    site.store.close()


def test_a_cluster_is_measured_from_its_declaration_to_its_end(site: FakeSite) -> None:
    metrics = RayClusterMetrics(store=site.store, clock=site.tick)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"fedpilot_raycluster_{name}", labels)

    async def told() -> None:
        metrics.look()
        assert value("managed") == 0
        document = ray_cluster_of(ray_cluster()).document
        stored = site.store.apply(NAME, document, saw=UNDECLARED, by="ann", at=site.tick())
        metrics.look()
        assert value("reaction_seconds_count", cluster=NAME) == 0
        async with managed(site.manager()):
            while not wait_of(site.store, stored, "ready").reached:
                await asyncio.sleep(0.005)
            metrics.look()
            assert value("managed") == 1
            assert value("reaction_seconds_count", cluster=NAME) == 1
            assert value("ready_seconds_count", cluster=NAME) == 1
            assert value("machines_wanted", cluster=NAME, group="small") == 2
            site.store.delete(NAME, saw=stored.revision, by="ann", at=site.tick())
            while site.store.declarations():
                await asyncio.sleep(0.005)
        metrics.look()
        assert b"team-a" not in generate_latest(metrics.registry)

    asyncio.run(told())


@asynccontextmanager
async def kept(
    site: FakeSite, file: Path | None = None, port: int | None = None
) -> AsyncIterator[None]:
    """The site's metrics are kept while the block runs, which ends in time."""
    listen = None if port is None else ("127.0.0.1", port)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(RayClusterMetrics(store=site.store).run(file, listen))
        async with asyncio.timeout(PATIENCE_S):
            yield
        keeping.cancel()


def told_at(port: int, query: str = "") -> bytes:
    url = f"http://127.0.0.1:{port}/metrics{query}"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


def test_a_caller_has_the_metrics_also_while_others_are_silent_or_hang_up(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "PATIENCE_S", 1.0)
    port = free_port()

    async def told() -> None:
        async with kept(site, port=port):
            while True:
                with suppress(OSError):
                    reader, silent = await asyncio.open_connection("127.0.0.1", port)
                    break
                await asyncio.sleep(0.01)
            _, gone = await asyncio.open_connection("127.0.0.1", port)
            gone.close()
            text = await asyncio.to_thread(told_at, port)
            assert b"fedpilot_raycluster_managed 0.0\n" in text
            few = await asyncio.to_thread(told_at, port, "?name[]=fedpilot_raycluster_managed")
            assert few.startswith(b"# HELP fedpilot_raycluster_managed ")
            assert text.startswith(few)
            assert await reader.read() == b""
            silent.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(told())


def test_the_file_is_replaced_as_a_whole_and_its_loss_ends_nothing(
    site: FakeSite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(exporter, "LOOK_S", 0.01)
    file = tmp_path / "prom" / "rays.prom"
    file.parent.mkdir()

    async def told() -> None:
        async with kept(site, file):
            while not file.exists():
                await asyncio.sleep(0.01)
            with file.open() as before:
                while os.path.samestat(file.stat(), os.fstat(before.fileno())):
                    await asyncio.sleep(0.01)
                assert before.read() == file.read_text()
            file.parent.rename(tmp_path / "away")
            while "the metrics cannot be written" not in caplog.text:
                await asyncio.sleep(0.01)
            file.parent.mkdir()
            while not file.exists():
                await asyncio.sleep(0.01)
        assert list(file.parent.iterdir()) == [file]

    asyncio.run(told())


def test_an_outlet_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--metrics-file .*gone/m\.prom: it cannot be written"):
        check_outlets(tmp_path / "gone" / "m.prom", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"--metrics-listen 127.0.0.1:{port}: it cannot be"):
            check_outlets(None, ("127.0.0.1", port))
    with pytest.raises(SpecError, match=r"--metrics-listen a\.\.b:9464: it cannot be used"):
        check_outlets(None, ("a..b", 9464))
