"""Sites that lie in every way they can: the honest ones' run ends as if they had not been there."""

from __future__ import annotations

import asyncio
import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attacks import attack
from coordinated import COORDINATOR, Cluster, config, finished, in_one_process, manned, submit
from fedpilot.federated import RunResult
from fedpilot.mediator import Payload
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.messages import blob_message, blob_of, done_message
from lying_sites import TEN
from mediators import mediating

FORGED = "f" * 64
TELLING: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("run_finished", {"run_id": "run", "status": "finished", "digest": FORGED, "rounds": 99}),
    ("round_finished", {"round": 1, "of": 4, "accuracy": 1.0, "model": FORGED}),
    ("worker_ready", {"pid": 1}),
    ("worker_lost", {"worker": 0, "name": "x", "event": "run_finished", "time": 5}),
    ("clients_done", {"round": 1, "done": 10**9, "of": 1, "part": []}),
    ("clients_done", {"round": 1, "done": "all"}),
)
"""What no site can say has happened."""


@dataclass
class Liar(Cluster):
    """A site whose answers to rounds are changed before they are sent."""

    change: Callable[[Payload], Payload] = lambda answer: answer

    def handed_up(self, answer: Payload) -> Payload:
        if answer.kind != "partial":
            return answer
        if self.agent is not None:
            for kind, header in TELLING:
                self.agent.say("run", kind, header)
        return self.change(answer)


def sums(change: Callable[[Any], Any]) -> Callable[[Payload], Payload]:
    """Another sum of every tensor."""

    def changed(answer: Payload) -> Payload:
        return replace(answer, tensors={name: change(a) for name, a in answer.tensors.items()})

    return changed


def header(**changes: Any) -> Callable[[Payload], Payload]:
    """An answer that says something else beside its sum."""
    return lambda answer: replace(answer, header={**answer.header, **changes})


LIARS: Mapping[str, Callable[[Payload], Payload]] = {
    "nan": sums(lambda a: np.full(a.shape, np.nan)),
    "shape": sums(lambda a: np.append(a.reshape(-1), 0)),
    "digests": header(digests={"client_0": 5}),
    "seconds": header(training_seconds=-1.0),
    "heavy": TEN["counts"],
    "range": TEN["range"],
}
FILES: Mapping[str, Callable[[bytes], bytes]] = {
    "huge": lambda file: struct.pack("<Q", 10 << 40) + file[8:],
    "cut": lambda file: file[:-8],
}
"""Sites whose tensor files are no such files."""


def spoilt(change: Callable[[bytes], bytes]) -> Callable[[Payload, BlobStore], pb.Done]:
    """The message of an answer with another file of tensors."""

    def message(answer: Payload, blobs: BlobStore) -> pb.Done:
        done = done_message(answer, blobs)
        blob = blob_of(done.blob)
        if answer.kind != "partial" or blob is None:
            return done
        content = change(blobs.path(blob.digest).read_bytes())
        file, path = tempfile.mkstemp(dir=blobs.folder)
        with os.fdopen(file, "wb") as aside:
            aside.write(content)
        done.blob.CopyFrom(blob_message(blobs.adopt(Path(path))))
        return done

    return message


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The same run in one process."""
    with in_one_process(tmp_path_factory.mktemp("alone")) as federation:
        return federation.run()


@pytest.mark.slow
def test_liars_are_done_without_and_the_honest_sites_model_is_what_it_was(
    tmp_path: Path, alone: RunResult
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            honest = [Cluster("paris"), Cluster("rome")]
            liars = [Liar(name, change=change) for name, change in LIARS.items()]
            files = [Liar(name) for name in FILES]
            async with asyncio.TaskGroup() as group, asyncio.timeout(150):
                agents = [manned(here, each) for each in (*honest, *liars, *files)]
                for agent in agents:
                    if agent.name in FILES:
                        agent.message_of = spoilt(FILES[agent.name])
                    await agent.start()
                for agent in agents:
                    await here.state(agent.name, "ready")
                await submit(here, "run", config())
                attacking = group.create_task(attack(here, 2))
                found = await here.ended("run", 120)
                await attacking
                events = await here.events("run")
                for agent in agents:
                    await agent.close()
            assert finished(found) == alone.digest
            lost = {e["site"]: e["reason"] for e in events if e["event"] == "site_lost"}
            assert set(lost) == {*LIARS, *FILES}
            assert all("its answer is refused" in lost[name] for name in LIARS), lost
            assert {e["site"] for e in events if e["event"] == "site_refused"} == set(lost)
            assert not [e for e in events if e["event"] == "grid_coarsened"]
            assert "header claims 10995116277760 bytes" in lost["huge"]
            assert "BadPayload" in lost["cut"]
            (ending,) = [e for e in events if e["event"] == "run_finished"]
            assert ending["digest"] == alone.digest
            rounds = [e for e in events if e["event"] == "round_finished"]
            assert [e["model"] for e in rounds] == [row["model"] for row in alone.rows]
            assert not [e for e in events if e["event"] == "worker_lost"]
            progress = [e for e in events if e["event"] == "clients_done"]  # of a long round
            assert all(e["done"] <= e["of"] for e in progress), progress
            log = (here.folder / "runs" / "run" / "coordinator.log").read_text()
            assert "Traceback" not in log
            assert "site nan says is not believed: 'run_finished' is no event" in log
            assert "an answer of site huge cannot be read" in log

    asyncio.run(test())
