"""Runs at a real mediator: orders, answers and blobs; whatever is killed, nothing is done twice."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from safetensors.numpy import load, save

from fake_agents import promise_and_echo
from fedpilot.mediator import Payload
from fedpilot.mediator.identity import Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.runs.coordinator_process import CoordinatorProcess
from fedpilot.mediator.server.runs.runs import BEFORE, RESUMABLE, Runs
from fedpilot.mediator.server.services import users
from fedpilot.mediator.server.store import RunRecord, RunState, Store
from fedpilot.mediator.wire.blobs.store import Blob
from fedpilot.mediator.wire.messages import PROTOCOL, OrderId, RunId, blob_message
from fedpilot.mediator.wire.payloads import write
from fedpilot.mediator.wire.rpc import LARGEST_MESSAGE, SITE, Stub
from fedpilot.mediator.wire.transfer import BlobStub, Piece
from mediators import Here, channel_to, eventually, mediating, process, reaching

Code = grpc.StatusCode
RUN = RunId("run")
ROUND = OrderId(RUN, "round/1")


def run(test: Any, within_s: float = 60) -> None:
    asyncio.run(asyncio.wait_for(test, within_s))


async def doubled(order: pb.Order, payload: Payload) -> Payload:
    """Work whose answer is another blob than the order's."""
    if order.verb != "work":
        return await promise_and_echo(order, payload)
    tensors = {name: np.asarray(tensor) * 2 for name, tensor in payload.tensors.items()}
    return Payload(kind="done", tensors=tensors)


def orders(*sites: str, numbers: int = 1000) -> list[dict[str, Any]]:
    return [{"site": site, "key": "round/1", "numbers": numbers} for site in sites]


def seen(here: Here, what: str) -> list[Any]:
    return [each for each in here.seen("run") if each["what"] == what]


def blobs(here: Here) -> list[str]:
    names = [each.name for each in (here.folder / "blobs").iterdir()]
    return [name for name in names if not name.startswith(".")]


async def failure_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


def test_orders_reach_their_sites_and_answers_come_back_with_their_blobs(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", work=doubled) as paris,
            here.agent("rome", work=doubled) as rome,
        ):
            submitted = await here.submit("run", orders("paris", "rome"), wait_for=2)
            assert submitted["status"] in ("submitted", "running")
            found = await here.ended("run")
            assert (found["status"], found["digest"]) == ("finished", "d" * 64)
            answers = seen(here, "answer")
            assert [(each["site"], each["sum"]) for each in answers] == [
                ("paris", 999_000.0),
                ("rome", 999_000.0),
            ]
            for agent in (paris, rome):
                await eventually(lambda agent=agent: ROUND in agent.taken)
                assert agent.worked.count(ROUND) == 1
            (traffic,) = seen(here, "traffic")
            rows = {(row[1], row[2]): row[4] for row in traffic["rows"]}
            for site in ("paris", "rome"):
                assert 4_000 < rows[site, "to_site"] < 4_600
            assert 4_000 < max(rows["paris", "from_site"], rows["rome", "from_site"]) < 4_600
            await eventually(lambda: not blobs(here), f"{blobs(here)} are removed", 60)
            events = [each["event"] for each in await here.events("run")]
            assert events == ["run_started", "run_finished"]

    run(test())


def test_a_site_that_is_not_there_fails_its_orders_as_lost(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", orders("oslo"))
            assert (await here.ended("run"))["status"] == "finished"
            (failure,) = seen(here, "failure")
            assert failure["kind"] == "SiteLost"
            assert "there is no such site" in failure["text"]

    run(test())


def test_a_lost_sites_orders_fail_and_its_late_answer_is_dropped(tmp_path: Path) -> None:
    async def test() -> None:
        # A mediator that stands still for a third of this forgives the silence, over and over.
        health = quick(silent_after_s=3.0)
        async with mediating(tmp_path / "m", health=health) as here:
            agent = here.agent("paris", work=doubled, hold_answers=True)
            async with agent:
                await here.submit("run", orders("paris"), wait_for=1, then="wait")
                await eventually(lambda: ROUND in agent.worked)
                agent.silent = True
                await eventually(lambda: seen(here, "failure"))
                assert seen(here, "failure")[0]["kind"] == "SiteLost"
                agent.silent = False
                agent.release_answers()
                await eventually(lambda: ROUND in agent.taken, "the late answer is taken")
                assert not seen(here, "answer")

    run(test())


def test_orders_for_a_suspect_site_wait(tmp_path: Path) -> None:
    async def test() -> None:
        health = {"silent_after_s": 0.5, "grace_s": 30.0}
        async with (
            mediating(tmp_path / "m", health=quick(**health)) as here,
            here.agent("paris") as agent,
        ):
            await here.state("paris", "ready")
            agent.silent = True
            await here.state("paris", "suspect")
            await here.submit("run", orders("paris"))
            await eventually(lambda: seen(here, "attached"))
            await asyncio.sleep(0.3)  # long enough for an order that would not wait
            assert agent.worked == []
            agent.silent = False
            assert (await here.ended("run"))["status"] == "finished"
            assert agent.worked.count(ROUND) == 1

    run(test())


def quick(**changes: float) -> Any:
    from dataclasses import replace

    from mediators import QUICK

    return replace(QUICK, **changes)


def test_after_a_broken_link_held_orders_are_not_sent_again(tmp_path: Path) -> None:
    async def test() -> None:
        health = quick(grace_s=30.0)
        async with (
            mediating(tmp_path / "m", health=health) as here,
            here.agent("paris", work=doubled, hold_answers=True) as agent,
        ):
            await here.submit("run", orders("paris"), wait_for=1)
            await eventually(lambda: ROUND in agent.worked)
            await agent.stop()
            agent.release_answers()
            await here.state("paris", "suspect")
            await agent.start()
            assert (await here.ended("run"))["status"] == "finished"
            assert agent.worked.count(ROUND) == 1
            assert len(seen(here, "answer")) == 1

    run(test())


def test_a_killed_coordinator_is_started_again_and_gets_the_answer_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", work=doubled, hold_answers=True) as agent,
        ):
            await here.submit("run", orders("paris"), wait_for=1)
            await eventually(lambda: ROUND in agent.worked)
            first = seen(here, "attached")[0]["pid"]
            os.kill(first, signal.SIGKILL)
            agent.release_answers()  # while nobody is attached
            found = await here.ended("run")
            assert (found["status"], found["restarts"]) == ("finished", 1)
            assert agent.worked.count(ROUND) == 1
            (answer,) = seen(here, "answer")
            assert answer["pid"] != first
            await eventually(lambda: ROUND in agent.taken)
            killed = [e for e in await here.events() if e["event"] == "coordinator_killed"]
            assert [each["exit_code"] for each in killed] == [-signal.SIGKILL]

    run(test())


def test_a_coordinator_that_is_killed_too_often_fails_its_run(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            for number in range(6):
                await eventually(lambda number=number: len(seen(here, "attached")) > number)
                os.kill(seen(here, "attached")[-1]["pid"], signal.SIGKILL)
            found = await here.ended("run")
            assert (found["status"], found["restarts"]) == ("failed", 5)
            assert "killed 6 times" in found["reason"]

    run(test())


def test_a_coordinator_that_fails_by_itself_is_not_started_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="fail")
            found = await here.ended("run")
            assert (found["status"], found["restarts"]) == ("failed", 0)
            assert "exit code 1" in found["reason"]
            assert len(seen(here, "attached")) == 1

    run(test())


def test_nothing_watches_a_run_that_has_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("first", then="fail")
            await here.ended("first")
            before = len(asyncio.all_tasks())
            await here.submit("run", then="fail")
            await here.ended("run")
            await eventually(lambda: len(asyncio.all_tasks()) <= before)

    run(test())


def test_a_run_is_resumed_as_soon_as_its_end_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees `stopped` may ask at once: its supervisor has not let go of it yet."""
    written, may_go_on = asyncio.Event(), asyncio.Event()
    original = Runs._written

    async def slowly(runs: Runs, *arguments: Any) -> bool:
        done = await original(runs, *arguments)
        written.set()
        await may_go_on.wait()
        return done

    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            await eventually(lambda: seen(here, "attached"))
            monkeypatch.setattr(Runs, "_written", slowly)
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await written.wait()
            resuming = asyncio.ensure_future(here.admin.resume_run(pb.RunRequest(run="run")))
            await asyncio.sleep(0.2)
            may_go_on.set()
            found = json.loads((await resuming).run_json)
            assert found["status"] in ("submitted", "running")
            await eventually(lambda: len(seen(here, "attached")) == 2)
            monkeypatch.undo()
            await here.admin.stop_run(pb.RunRequest(run="run"))
            assert (await here.ended("run"))["status"] == "stopped"

    run(test())


def test_a_run_is_stopped_resumed_and_submitted_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            again = await here.submit("run", then="wait")
            assert again["run_id"] == "run"
            code, _ = await failure_of(here.submit("run", then="fail"))
            assert code is Code.ALREADY_EXISTS
            await eventually(lambda: seen(here, "attached"))
            asked = pb.RunRequest(run="run")
            await here.admin.stop_run(asked)
            assert (await here.ended("run"))["status"] == "stopped"
            await here.admin.resume_run(asked)
            await eventually(lambda: len(seen(here, "attached")) == 2)
            await here.admin.stop_run(asked)
            assert (await here.ended("run"))["status"] == "stopped"
            code, text = await failure_of(here.admin.stop_run(pb.RunRequest(run="nothing")))
            assert (code, "no run nothing" in text) == (Code.NOT_FOUND, True)
            acts = [
                json.loads(each)["act"]
                for each in (await here.admin.list_audit(pb.ListAuditRequest())).entry_json
            ]
            assert acts == [
                "submit",
                "submit",
                "submit",
                "stop_run",
                "resume_run",
                "stop_run",
                "stop_run",
            ]

    run(test())


def test_a_killed_mediator_loses_nothing_and_has_nothing_done_twice(tmp_path: Path) -> None:
    folder = tmp_path / "m"

    async def test() -> None:
        with process(folder) as (first, (port, join_port)):
            here_then = f"localhost:{port}"
            async with reaching(folder, here_then, f"localhost:{join_port}") as here:
                agent = here.agent("paris", work=doubled, hold_answers=True)
                await agent.start()
                await here.submit("run", orders("paris"), wait_for=1)
                await eventually(lambda: ROUND in agent.worked)
                coordinator = seen(here, "attached")[0]["pid"]
                first.send_signal(signal.SIGKILL)
                first.wait()
                await eventually(lambda: not alive(coordinator), "the coordinator ends with it")
        agent.release_answers()
        with process(folder, port, join_port):
            async with reaching(folder, here_then, f"localhost:{join_port}") as here:
                found = await here.ended("run")
                assert found["status"] == "finished"
                assert agent.worked.count(ROUND) == 1
                assert len(seen(here, "answer")) == 1
                assert len(seen(here, "attached")) == 2
                await eventually(lambda: ROUND in agent.taken)
                await agent.close()

    run(test())


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_mediator_that_ends_in_order_goes_on_with_its_runs_at_the_next_start(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            await eventually(lambda: seen(here, "attached"))
            coordinator = seen(here, "attached")[0]["pid"]
        assert not alive(coordinator)
        async with mediating(tmp_path / "m") as here:
            await eventually(lambda: len(seen(here, "attached")) == 2)
            assert (await here.run("run"))["status"] == "running"

    run(test())


def test_a_run_that_was_not_handed_in_whole_is_begun_when_it_is_submitted_again(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            await eventually(lambda: seen(here, "attached"))
            await here.admin.stop_run(pb.RunRequest(run="run"))
            record = await here.ended("run")
        url = f"sqlite:///{tmp_path / 'm' / 'mediator.sqlite'}"
        with Store(url) as store:  # as if the mediator was killed before it wrote the folder
            store.set_run_state(RUN, RunState.SUBMITTED, among=[RunState.STOPPED])
        shutil.rmtree(record["folder"])
        async with mediating(tmp_path / "m") as here:
            found = await here.run("run")
            assert (found["status"], "submitting it again" in found["reason"]) == (
                "submitted",
                True,
            )
            await here.submit("run", then="wait")
            await eventually(lambda: seen(here, "attached"))
            found = await here.run("run")
            assert (found["status"], found["reason"]) == ("running", "")

    run(test())


@pytest.mark.parametrize("state", RunState)
def test_a_run_that_is_to_stop_comes_into_no_state_but_an_end(state: RunState) -> None:
    ends = state in {*RESUMABLE, RunState.FINISHED}
    assert (RunState.STOPPING in BEFORE[state]) is ends


def test_a_stop_outlives_a_coordinator_that_starts_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        start, change = CoordinatorProcess.start, Store.set_run_state

        async def slowly(command: Any, log: Path) -> CoordinatorProcess:
            process = await start(command, log)
            await here.admin.stop_run(pb.RunRequest(run="run"))
            return process

        def noted(store: Store, id: str, state: RunState, **facts: Any) -> bool:
            if changed := change(store, id, state, **facts):
                states.append(state)
            return changed

        states: list[RunState] = []
        monkeypatch.setattr(CoordinatorProcess, "start", slowly)
        monkeypatch.setattr(Store, "set_run_state", noted)
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            assert (await here.ended("run"))["status"] == "stopped"
        assert states == [RunState.STOPPING, RunState.STOPPED]

    run(test())


def test_many_runs_are_listed_in_answers_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "MOST_RUNS", 2)

    async def page(here: Here, **asked: Any) -> tuple[list[str], int]:
        reply = await here.admin.list_runs(pb.ListRunsRequest(**asked))
        return [json.loads(each)["run_id"] for each in reply.run_json], reply.more

    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            with Store(f"sqlite:///{here.folder / 'mediator.sqlite'}") as store:
                for number in range(5):
                    store.add_run(
                        RunRecord(
                            id=f"r{number}",
                            name="n",
                            owner="alice",
                            config_yaml="x" * 1_000,
                            state=RunState.FINISHED,
                            submitted_at=float(number),
                        )
                    )
            assert await page(here) == (["r4", "r3"], 3)
            assert await page(here, most=1) == (["r4"], 4)
            assert await page(here, most=99, after="r3") == (["r2", "r1"], 1)
            assert await page(here, after="r1") == (["r0"], 0)
            monkeypatch.setattr(users, "TOLD_TOGETHER_BYTES", 600)
            assert await page(here) == (["r4"], 4)
            act = pb.RunRequest(run="nobody")
            for _ in range(5):
                await failure_of(here.admin.stop_run(act))
            reply = await here.admin.list_audit(pb.ListAuditRequest(last=100))
            assert 1 <= len(reply.entry_json) < 5

    run(test())


@pytest.mark.parametrize(
    ("sizes", "fit"),
    [([], 0), ([9], 1), ([2, 2, 2], 2), ([5, 1], 1), ([9, 1], 1), ([1, 2, 2, 1], 3)],
)
def test_what_goes_together_begins_with_the_first(sizes: list[int], fit: int) -> None:
    assert users.how_many_fit(["x" * size for size in sizes], 5) == fit


def test_leases_of_runs_that_go_on_are_renewed(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: agent.renewed == ["run"])
            await eventually(lambda: seen(here, "answer"))
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await eventually(lambda: agent.renewed == [])
            await eventually(lambda: OrderId(RUN, "release") in agent.worked)

    run(test())


def test_what_happens_at_a_site_is_told_to_the_run_that_is_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: seen(here, "answer"))
            agent.say("run", "worker_ready", {"worker": 1})
            agent.say("another", "worker_ready", {"worker": 2})
            await eventually(lambda: seen(here, "happened"))
            assert [each["header"] for each in seen(here, "happened")] == [{"worker": 1}]

    run(test())


def test_a_site_drains_once_no_run_holds_anything_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.state("paris", "ready")
            prepare = [{"site": "paris", "key": "prepare", "verb": "prepare"}]
            await here.submit("run", prepare, then="wait")
            await eventually(lambda: seen(here, "answer"))
            asked = pb.ChangeSiteRequest(site="paris", change="drain", timeout_s=0.3)
            left = json.loads((await here.admin.change_site(asked)).site_json)
            assert (left["state"], left["runs"]) == ("draining", ["run"])
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.state("paris", "cordoned")
            assert agent.held == []

    run(test())


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_a_site_that_was_away_when_its_run_ended_gives_back_what_it_holds(
    tmp_path: Path, how: str
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: seen(here, "answer"))
            agent.silent = True
            if how == "gone":
                await agent.stop()
            await here.state("paris", "lost")
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.ended("run")
            assert OrderId(RUN, "release") not in agent.worked
            agent.silent = False
            if how == "gone":
                await agent.start()
            await eventually(lambda: OrderId(RUN, "release") in agent.worked)
            await eventually(lambda: agent.held == [])
            assert (await here.sites())["paris"]["runs"] == []

    run(test())


def test_a_release_is_asked_again_until_the_site_has_confirmed_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: seen(here, "answer"))
            await agent.stop()  # the mediator believes that it can still be reached
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.ended("run")
            await agent.start()
            await eventually(lambda: OrderId(RUN, "release") in agent.worked)
            await eventually(lambda: agent.held == [])
            await agent.stop()
            await agent.start()
            await eventually(agent.welcomed.is_set)
            await here.state("paris", "ready")
            assert agent.worked.count(OrderId(RUN, "release")) == 1

    run(test())


def test_a_site_that_was_lost_and_is_not_to_work_again_gives_back_what_it_holds(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: seen(here, "answer"))
            agent.silent = True
            await here.state("paris", "lost")
            await here.admin.change_site(pb.ChangeSiteRequest(site="paris", change="drain"))
            agent.silent = False
            await here.state("paris", "cordoned")
            assert OrderId(RUN, "release") in agent.worked
            assert (await here.run("run"))["status"] == "running"

    run(test())


# -- blobs ----------------------------------------------------------------------------------------


def test_a_site_has_only_its_own_orders_blobs(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", hold_answers=True) as paris,
            here.agent("rome") as rome,
        ):
            await here.submit("run", orders("paris"), wait_for=2)
            await eventually(lambda: ROUND in paris.worked)
            assert len(blobs(here)) == 1, blobs(here)
            (digest,) = blobs(here)
            assert await fetched(rome, digest) is Code.PERMISSION_DENIED
            assert await fetched(paris, digest) is Code.OK
            assert await fetched(paris, "0" * 64) is Code.PERMISSION_DENIED
            assert await fetched(paris, "../../../etc/passwd") is Code.INVALID_ARGUMENT
            order = pb.OrderId(run="run", key="round/1")
            blob = pb.Blob(digest="1" * 64, size=10)
            async with rome.connect() as channel:
                offer = Stub(channel, SITE).offer(pb.OfferRequest(blob=blob, order=order))
                code, text = await failure_of(offer)
                assert code is Code.PERMISSION_DENIED
                assert "nobody waits" in text

    run(test())


async def fetched(agent: Any, digest: str) -> grpc.StatusCode:
    async with agent.connect() as channel:
        call = Stub(channel, SITE).fetch(pb.FetchRequest(digest=digest))
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        code: grpc.StatusCode = await call.code()
        return code


def test_an_answer_whose_blob_was_not_pushed_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m", health=quick(grace_s=30.0)) as here,
            here.agent("paris", hold_answers=True) as agent,
        ):
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: ROUND in agent.worked)
            await agent.stop()
            _, blob = write(Payload(kind="x", tensors={"x": np.zeros(3)}), agent.blobs)
            assert blob is not None
            await _answer_without_pushing(here, blob)
            await eventually(lambda: any("was not pushed" in m for m in caplog.messages))
            assert not seen(here, "answer")
            agent.release_answers()
            await agent.start()
            await eventually(lambda: seen(here, "answer"))

    run(test())


def test_what_a_lost_site_had_brought_in_part_is_removed(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", hold_answers=True) as agent,
        ):
            await here.submit("run", orders("paris", numbers=0), wait_for=1, then="wait")
            await eventually(lambda: ROUND in agent.worked)
            digest = "1" * 64
            part = here.folder / "blobs" / f"{digest}.paris.part"
            order = pb.OrderId(run="run", key="round/1")
            async with agent.connect() as channel:
                stub = BlobStub(channel)
                await stub.offer(pb.OfferRequest(blob=pb.Blob(digest=digest, size=10), order=order))
                call = stub.push()
                await call.write(Piece(b"begun", digest))
                await eventually(part.exists)
                agent.silent = True
                await here.state("paris", "lost")
                await eventually(lambda: not part.exists())
                await call.write(Piece(b"ended"))
                await call.done_writing()
                code, _ = await failure_of(call)
                assert code is Code.ABORTED

    run(test())


async def _answer_without_pushing(here: Here, blob: Blob) -> None:
    id = pb.OrderId(run="run", key="round/1")
    done = pb.Done(kind="done", header_json="{}", blob=blob_message(blob))
    async with channel_to(here.address, here.keys("paris")) as channel:
        call = Stub(channel, SITE).session()
        hello = pb.Hello(protocol=PROTOCOL, site="paris", agent="b", held=[id])
        await call.write(pb.FromSite(number=1, hello=hello))
        answer = pb.Answer(id=id, done=done)
        await call.write(pb.FromSite(number=2, answer=answer))
        await call.write(pb.FromSite(number=3, heartbeat=pb.Heartbeat()))
        while (await call.read()).WhichOneof("content") != "renewal":
            pass


# -- what users ask of runs -----------------------------------------------------------------------


def test_users_ask_runs_that_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="serve")
            await eventually(lambda: seen(here, "attached"))
            asked, data = {"client": "client_7"}, save({"x": np.arange(4.0)})
            reply, tensors = await here.ask("run", "node.train", asked, data)
            assert json.loads(reply.done.header_json) == asked
            np.testing.assert_array_equal(load(tensors)["x"], 2 * np.arange(4.0))
            wrong, _ = await here.ask("run", "wrong", {})
            assert "that is wrong" in wrong.failure.message
            await here.admin.stop_run(pb.RunRequest(run="run"))
            await here.ended("run")
            assert (await failure_of(here.ask("run", "x", {})))[0] is Code.FAILED_PRECONDITION

    run(test())


@pytest.mark.parametrize(
    ("name", "role", "code"),
    [
        pytest.param("alice", Role.OPERATOR, Code.FAILED_PRECONDITION, id="the owner may"),
        pytest.param("root", Role.ADMIN, Code.FAILED_PRECONDITION, id="an admin may"),
        pytest.param("bob", Role.OPERATOR, Code.PERMISSION_DENIED, id="another operator may not"),
    ],
)
def test_the_clients_of_a_run_are_asked_by_its_owner_and_by_admins(
    tmp_path: Path, name: str, role: Role, code: grpc.StatusCode
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.user("alice", Role.OPERATOR) as alice:
            config = json.dumps({"orders": []})
            await alice.submit(
                pb.SubmitRequest(protocol=PROTOCOL, run="run", config_yaml=config, name="n")
            )
            await here.ended("run")  # so that who may ask hears that nobody answers any more
            async with here.user(name, role) as user:
                asked = [pb.AskRunRequest(run="run", kind="node.list", header_json="{}")]
                found, text = await failure_of(anext(aiter(user.ask_run(iter(asked)))))
        assert found is code
        if code is Code.PERMISSION_DENIED:
            assert text == (
                "the clients of run run are asked by alice, whose run it is, or by an admin; "
                "found bob (operator)"
            )

    run(test())


def test_tensors_larger_than_a_message_go_to_a_run_and_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="serve")
            model = np.arange(LARGEST_MESSAGE // 4)
            _, tensors = await here.ask("run", "node.train", {}, save({"x": model}))
            assert len(tensors) > 2 * LARGEST_MESSAGE
            np.testing.assert_array_equal(load(tensors)["x"], 2 * model)

    run(test())


RIGHT = save({"x": np.arange(100.0)})


@pytest.mark.parametrize(
    ("announced", "sent", "code"),
    [
        pytest.param(RIGHT, RIGHT[:-1], Code.INVALID_ARGUMENT, id="bytes are missing"),
        pytest.param(RIGHT, RIGHT + b"x", Code.INVALID_ARGUMENT, id="there are too many"),
        pytest.param(RIGHT, b"x" * len(RIGHT), Code.INVALID_ARGUMENT, id="they are others"),
        pytest.param(b"x" * 100, b"x" * 100, Code.INVALID_ARGUMENT, id="they are no tensors"),
    ],
)
def test_tensors_that_are_not_what_was_announced_reach_no_run(
    tmp_path: Path, announced: bytes, sent: bytes, code: grpc.StatusCode
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="serve")
            await eventually(lambda: seen(here, "attached"))
            asking = here.ask("run", "node.train", {}, sent, announced=announced)
            assert (await failure_of(asking))[0] is code
            assert not list((here.folder / "blobs").glob("*.part"))

    run(test())


def test_a_question_waits_for_a_run_that_comes_up_and_nothing_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="serve")
            asking = asyncio.create_task(here.ask("run", "node.show", {"client": "a"}))
            assert not seen(here, "attached")
            reply, _ = await asking
            assert json.loads(reply.done.header_json) == {"client": "a"}
            assert [each for each in caplog.records if "refused" in each.message] == []

    run(test())


def test_files_and_logs_of_a_run_are_read_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", orders("oslo"), shared=True)
            await here.ended("run")
            (here.folder / "runs" / "run" / "link").symlink_to("/etc/passwd")
            (here.folder / "runs" / "run" / ".hidden").write_text("x")
            async with here.user("vera", Role.VIEWER) as viewer:
                files = (await viewer.list_files(pb.RunRequest(run="run"))).files
                names = [each.path for each in files]
                assert "seen.jsonl" in names
                assert not {"link", ".hidden"} & set(names)
                for name in ("link", ".hidden", "../../certs/ca.key", "/etc/passwd", ""):
                    request = pb.ReadFileRequest(run="run", path=name)
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        async for _ in viewer.read_file(request):
                            pass
                    assert caught.value.code() is Code.NOT_FOUND, name
                request = pb.ReadFileRequest(run="run", path="config.yaml")
                data = b"".join([each.data async for each in viewer.read_file(request)])
                assert json.loads(data)["orders"] == orders("oslo")
                parts = [each.text async for each in viewer.run_log(pb.LogRequest(run="run"))]
                assert isinstance("".join(parts), str)

    run(test())


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            await here.submit("run", then="wait")
            stream = here.admin.follow_run(pb.FollowRequest(run="run", follow=True))
            first = await stream.read()
            assert json.loads(first.event_json)["event"] == "run_started"
            await here.admin.stop_run(pb.RunRequest(run="run"))
            last = await stream.read()
            assert json.loads(last.event_json)["event"] == "run_finished"
            assert await stream.read() is grpc.aio.EOF
            later = here.admin.follow_run(
                pb.FollowRequest(run="run", follow=True, after=first.number)
            )
            assert len([each async for each in later]) == 1

    run(test())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"run": "../../tmp/x"}, id="a path for an id"),
        pytest.param({"run": ""}, id="no id"),
        pytest.param({"config_yaml": ""}, id="no config"),
        pytest.param({"config_yaml": "x" * (2 << 20)}, id="a config of megabytes"),
        pytest.param({"name": "a\nb"}, id="a name of many lines"),
        pytest.param({"protocol": 99}, id="another protocol"),
    ],
)
def test_submissions_that_make_no_sense_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            asked = {"protocol": PROTOCOL, "run": "run", "config_yaml": "{}", "name": "n"}
            request = pb.SubmitRequest(**{**asked, **changes})
            code, _ = await failure_of(here.admin.submit(request))
            assert code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)
            assert list((here.folder / "runs").glob("*")) == []

    run(test())


def test_sites_are_told_whose_run_it_is_by_the_mediator(tmp_path: Path) -> None:
    told: list[Any] = []

    async def listens(order: pb.Order, payload: Payload) -> Payload:
        if order.verb == "check":
            told.append(payload.header)
        return Payload(kind="done")

    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris", work=listens):
            check = [{"site": "paris", "key": "check", "verb": "check", "user": "somebody else"}]
            await here.submit("run", check, wait_for=1)
            await here.ended("run")
            assert [each["user"] for each in told] == [{"name": "admin", "role": "admin"}]

    run(test())


def test_many_sites_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        names = [f"site-{number:02}" for number in range(30)]
        async with mediating(tmp_path / "m", health=quick(silent_after_s=5.0)) as here:
            agents = [here.agent(name, work=doubled) for name in names]
            await asyncio.gather(*(agent.start() for agent in agents))
            await here.submit("run", orders(*names), wait_for=len(names))
            assert (await here.ended("run"))["status"] == "finished"
            assert len(seen(here, "answer")) == len(names)
            assert all(agent.worked.count(ROUND) == 1 for agent in agents)
            await asyncio.gather(*(agent.close() for agent in agents))

    run(test())
