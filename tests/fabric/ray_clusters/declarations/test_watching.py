"""Watchers wake after each commit, told or not, and never hold up a writer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import MachineName, RayClusterName
from fedpilot.fabric.errors import StoreUnusable
from fedpilot.fabric.ray_clusters.declarations import watching
from fedpilot.fabric.ray_clusters.declarations.records import (
    UNDECLARED,
    Lease,
    RoleName,
    StoredDeclaration,
)
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
from fedpilot.fabric.ray_clusters.declarations.watching import StoreWatch, tell, watch_folder

TEAM = RayClusterName("team")
NEVER_S = 3600.0
"""So long that a watcher which wakes was told."""
PATIENCE_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RayClusterStore]:
    with RayClusterStore(tmp_path / "declared.sqlite") as store:
        yield store


@pytest.fixture
def only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_S", NEVER_S)


def declare(store: RayClusterStore) -> StoredDeclaration:
    return store.apply(TEAM, {}, saw=UNDECLARED, by="ann", at=1.0)


def lease(store: RayClusterStore) -> Lease:
    found = store.acquire(RoleName("manager"), "first")
    assert found is not None
    return found


def sockets(store: RayClusterStore) -> list[Path]:
    return list(watch_folder(store.path).iterdir())


async def woken(watch: StoreWatch, act: Callable[[], object]) -> bool:
    """Whether the watch wakes from an act that comes after it has begun to wait."""
    waiting = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    act()
    async with asyncio.timeout(PATIENCE_S):
        return await waiting


@pytest.mark.usefixtures("only_told")
def test_a_watcher_is_told_of_each_change(store: RayClusterStore) -> None:
    async def watched() -> None:
        mine = lease(store)
        with store.watch() as watch:
            assert not await watch.wait(0)
            assert await woken(watch, lambda: declare(store))
            there = store.find(TEAM)
            assert there is not None
            assert await woken(watch, lambda: store.put_status(mine, there.uid, {"a": 1}))
            assert await woken(watch, lambda: store.add_event(mine, there.uid, at=1.0, kind="lost"))
            assert await woken(
                watch, lambda: store.delete(TEAM, saw=there.revision, by="ann", at=2.0)
            )
            assert await woken(watch, lambda: store.finish(mine, TEAM, there.uid))
            assert not await watch.wait(0)

    asyncio.run(watched())


@pytest.mark.usefixtures("only_told")
def test_who_watches_declarations_sleeps_through_the_rest(store: RayClusterStore) -> None:
    async def watched() -> None:
        mine, there = lease(store), declare(store)
        with store.watch(declarations_only=True) as watch:
            store.put_status(mine, there.uid, {"a": 1})
            store.add_event(mine, there.uid, at=1.0, kind="lost")
            store.remember(mine, there.uid, {"next": 1}, {MachineName("m1"): {}})
            assert not await watch.wait(0)
            assert await woken(
                watch, lambda: store.delete(TEAM, saw=there.revision, by="ann", at=2.0)
            )

    asyncio.run(watched())


@pytest.mark.usefixtures("only_told")
def test_a_write_that_changes_nothing_wakes_nobody(store: RayClusterStore) -> None:
    async def watched() -> None:
        mine, there = lease(store), declare(store)
        store.put_status(mine, there.uid, {"a": 1})
        with store.watch() as watch:
            store.apply(TEAM, {}, saw=there.revision, by="bob", at=2.0)
            store.put_status(mine, there.uid, {"a": 1})
            tell(watch_folder(store.path))
            assert not await watch.wait(0.01)

    asyncio.run(watched())


def test_a_watcher_that_nobody_tells_looks_itself(
    store: RayClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the writer is killed between its commit and the telling."""
    monkeypatch.setattr(watching, "LOOK_S", 0.01)
    monkeypatch.setattr("fedpilot.fabric.ray_clusters.declarations.store.tell", lambda folder: None)

    async def watched() -> None:
        with store.watch() as watch:
            assert await woken(watch, lambda: declare(store))

    asyncio.run(watched())


def test_a_change_before_the_wait_is_not_missed(store: RayClusterStore) -> None:
    async def watched() -> None:
        with store.watch() as watch:
            declare(store)
            assert await watch.wait(0)
            assert not await watch.wait(0)

    asyncio.run(watched())


def test_changes_begin_with_what_is_there(store: RayClusterStore) -> None:
    async def watched() -> None:
        declare(store)
        async with aclosing(store.changes(declarations_only=True)) as changes:
            async with asyncio.timeout(PATIENCE_S):
                first = await anext(changes)
                second = asyncio.ensure_future(anext(changes))
                await asyncio.sleep(0)
                marked = store.delete(TEAM, saw=first, by="ann", at=2.0)
                assert await second == marked.revision

        assert sockets(store) == []

    asyncio.run(watched())


@pytest.mark.usefixtures("only_told")
def test_a_dead_watchers_socket_is_removed_and_others_are_told(store: RayClusterStore) -> None:
    async def watched() -> None:
        with store.watch() as watch:
            dead = watch_folder(store.path) / "dead"
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ended:
                ended.bind(str(dead))
            assert await woken(watch, lambda: declare(store))
            assert dead not in sockets(store)
            assert len(sockets(store)) == 1
        assert sockets(store) == []

    asyncio.run(watched())


def test_a_full_watcher_holds_nobody_up(store: RayClusterStore) -> None:
    async def watched() -> None:
        with store.watch() as watch:
            for _ in range(2_000):  # more than a socket's queue takes
                tell(watch_folder(store.path))
            declare(store)
            assert await watch.wait(0)
            assert not await watch.wait(0.01)
        assert sockets(store) == []

    asyncio.run(watched())


@pytest.mark.parametrize("gone", ["socket", "folder"])
def test_a_watcher_makes_its_socket_anew(
    store: RayClusterStore, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    async def watched() -> None:
        with store.watch() as watch:
            (there,) = sockets(store)
            there.unlink()
            if gone == "folder":
                there.parent.rmdir()
            assert not await watch.wait(0.01)
            assert sockets(store) == [there]
            monkeypatch.setattr(watching, "LOOK_S", NEVER_S)
            assert await woken(watch, lambda: declare(store))

    asyncio.run(watched())


def test_a_watcher_without_a_socket_looks_itself(
    store: RayClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_S", 0.01)
    watch_folder(store.path).write_text("no folder")

    async def watched() -> None:
        with store.watch() as watch:
            assert await woken(watch, lambda: declare(store))

    asyncio.run(watched())


@pytest.mark.usefixtures("only_told")
def test_a_long_folder_has_watchers_too(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most."""
    path = tmp_path / ("long" * 20) / ("longer" * 20) / "declared.sqlite"

    async def watched() -> None:
        with RayClusterStore(path) as store, store.watch() as watch:
            assert await woken(watch, lambda: declare(store))
            assert len(sockets(store)) == 1

    asyncio.run(watched())


def test_who_watches_a_store_that_is_removed_is_told_so(
    store: RayClusterStore, tmp_path: Path
) -> None:
    async def watched() -> None:
        with store.watch() as watch:
            store.path.rename(tmp_path / "aside")
            with pytest.raises(StoreUnusable, match="was removed"):
                await watch.wait()

    asyncio.run(watched())
