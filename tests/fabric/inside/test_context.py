"""In which virtual cluster threads, asyncio tasks and calls are."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fedpilot.fabric.inside import context, manager_client
from fedpilot.fabric.inside.context import Block, bundle_of, carries, current_id

GROUP = "ab" * 18


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A driver that is in no job of ours, and whose threads and calls take their blocks along."""
    monkeypatch.delenv(context.JOB_VARIABLE, raising=False)
    monkeypatch.setattr(context, "own_group", lambda: None)
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def started(thread: threading.Thread) -> None:
        context.start_inside(start, thread)

    def submitted(pool: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return context.submit_inside(submit, pool, call, *args, **kwargs)

    monkeypatch.setattr(threading.Thread, "start", started)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submitted)
    yield
    assert current_id() is None


@contextlib.contextmanager
def inside(cluster: str) -> Iterator[None]:
    """A `with` block of a virtual cluster."""
    spec = object()
    context.enter(Block(cluster, spec))
    try:
        yield
    finally:
        context.leave(spec)


def in_thread(what: Callable[[], Any]) -> Any:
    """What a new thread finds."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(what()))
    thread.start()
    thread.join()
    return found[0]


def test_blocks_nest() -> None:
    with inside("outer"):
        with inside("inner"):
            assert current_id() == "inner"
        assert current_id() == "outer"


def test_a_block_does_not_hold_for_threads_that_were_there_before() -> None:
    entered, looked = threading.Event(), threading.Event()
    found: list[str | None] = []

    def look() -> None:
        entered.wait(60)
        found.append(current_id())
        with inside("its own"):
            found.append(current_id())
        looked.set()

    thread = threading.Thread(target=look)
    thread.start()
    with inside("mine"):
        entered.set()
        looked.wait(60)
        assert current_id() == "mine"
    thread.join()
    assert found == [None, "its own"]


def test_a_block_holds_for_the_threads_that_are_started_in_it() -> None:
    class Mine(threading.Thread):
        def run(self) -> None:
            found.append(current_id())

    found: list[str | None] = []
    with inside("mine"):
        assert in_thread(current_id) == "mine"
        thread = Mine()
        thread.start()
        thread.join()
        assert in_thread(lambda: in_thread(current_id)) == "mine"
    assert found == ["mine"]
    assert "run" not in vars(thread), "the thread is as it was"


def started_twice(thread: threading.Thread) -> None:
    """The hook on top of the hook, as where two copies of it are installed."""
    context.start_inside(threading.Thread.start, thread)


def test_a_thread_starts_where_the_hook_is_installed_twice() -> None:
    found: list[str | None] = []
    with inside("mine"):
        thread = threading.Thread(target=lambda: found.append(current_id()))
        started_twice(thread)
        thread.join()
    assert found == ["mine"]
    assert "run" not in vars(thread), "the thread is as it was"


def test_a_thread_keeps_the_run_that_somebody_gave_it() -> None:
    found: list[str | None] = []

    def given() -> None:
        found.append(current_id())

    thread = threading.Thread()
    thread.run = given  # type: ignore[method-assign]
    with inside("mine"):
        thread.start()
        thread.join()
    assert found == ["mine"]
    assert vars(thread)["run"] is given


def test_a_library_that_replaces_run_when_a_thread_starts_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, found = threading.Thread.start, list[str | None]()

    def traced(thread: threading.Thread) -> None:
        run = thread.run

        def run_traced() -> None:
            found.append("traced")
            del thread.run  # type: ignore[attr-defined]
            run()

        thread.run = run_traced  # type: ignore[method-assign]
        ours(thread)

    monkeypatch.setattr(threading.Thread, "start", traced)
    with inside("mine"):
        thread = threading.Thread(target=lambda: found.append(current_id()))
        thread.start()
        thread.join()
    assert found == ["traced", "mine"]
    assert "run" not in vars(thread)


def test_a_thread_that_cannot_start_is_left_as_it_was() -> None:
    thread = threading.Thread(target=str)
    with inside("mine"):
        thread.start()
        with pytest.raises(RuntimeError, match="only be started once"):
            thread.start()
    thread.join()
    assert "run" not in vars(thread)


def test_who_outlives_a_block_is_where_it_would_be_without_it() -> None:
    over = threading.Event()
    found: list[str | None] = []

    def stay() -> None:
        found.append(current_id())
        over.wait(60)
        found.append(current_id())

    with inside("outer"):
        with inside("inner"):
            thread = threading.Thread(target=stay)
            thread.start()
        over.set()
        thread.join()
    assert found == ["inner", "outer"]


def test_a_call_in_a_pool_is_where_it_was_submitted() -> None:
    with ThreadPoolExecutor(1) as pool:
        with inside("first"):
            assert pool.submit(current_id).result() == "first", "the thread is started now"
            with inside("second"):
                assert pool.submit(current_id).result() == "second"
            assert pool.submit(current_id).result() == "first"
        assert pool.submit(current_id).result() is None


def test_asyncio_tasks_are_in_blocks_of_their_own() -> None:
    async def one(name: str, mine: asyncio.Event, other: asyncio.Event) -> list[str | None]:
        with inside(name):
            mine.set()
            await other.wait()
            await asyncio.sleep(0)
            return [current_id(), await asyncio.to_thread(current_id)]

    async def both() -> list[list[str | None]]:
        a, b = asyncio.Event(), asyncio.Event()
        return list(await asyncio.gather(one("a", a, b), one("b", b, a)))

    assert asyncio.run(both()) == [["a", "a"], ["b", "b"]]


def test_one_spec_in_two_threads_is_two_blocks() -> None:
    spec, there = object(), threading.Barrier(2)
    left: list[tuple[str, str]] = []

    def use(name: str) -> None:
        context.enter(Block(name, spec))
        there.wait(60)
        assert current_id() == name
        block = context.leave(spec)
        assert block is not None
        left.append((name, block.cluster))

    threads = [threading.Thread(target=use, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(left) == [("a", "a"), ("b", "b")]


def test_a_block_may_be_left_by_another_thread() -> None:
    spec = object()
    context.enter(Block("mine", spec))
    left = in_thread(lambda: context.leave(spec))
    assert left.cluster == "mine"
    assert current_id() is None
    assert context.leave(spec) is None


def test_blocks_end_with_the_connection_to_ray() -> None:
    spec = object()
    context.enter(Block("mine", spec))
    manager_client.forget()
    assert current_id() is None
    assert context.leave(spec) is None


def test_a_job_is_behind_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(context.JOB_VARIABLE, "job")
    with inside("mine"):
        assert current_id() == "mine"
    assert current_id() == "job"
    monkeypatch.delenv(context.JOB_VARIABLE)


@pytest.mark.parametrize("before", [None, "submitted"])
def test_a_job_is_left_with_the_connection_to_ray(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before:
        monkeypatch.setenv(context.JOB_VARIABLE, before)
    context.join("joined")
    assert current_id() == "joined"
    manager_client.forget()
    assert current_id() == before
    monkeypatch.delenv(context.JOB_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("names", "bundle"),
    [
        pytest.param([f"CPU_group_{GROUP}", f"CPU_group_1_{GROUP}"], 1, id="what it computes with"),
        pytest.param([f"bundle_group_12_{GROUP}"], 12, id="what every actor holds"),
        pytest.param([f"my_group_3_group_0_{GROUP}"], 0, id="a resource with such a name"),
        pytest.param([f"CPU_group_{GROUP}", "CPU"], None, id="of the group as a whole"),
        pytest.param([f"CPU_group_1_{'cd' * 18}"], None, id="another group"),
    ],
)
def test_the_bundle_of_a_worker(names: list[str], bundle: int | None) -> None:
    assert bundle_of(names, GROUP) == bundle


def test_two_nodes_in_one_group_are_told_apart_by_their_bundles() -> None:
    node = {"groups": [{"id": GROUP, "bundle": 1}]}
    assert carries(node, GROUP, 1)
    assert not carries(node, GROUP, 0)
    assert carries(node, GROUP, None)
    assert not carries(node, "cd" * 18, None)
