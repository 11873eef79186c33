"""A runner without Ray: `python fake_runner.py FOLDER LOCK`, with the real one's server.

Its orders say what it does: `echo` what came, `train` it by adding one, `wait` for a file called
`go` in its folder, `die`, be `killed`.
What it works on it writes down in `worked`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from fedpilot.mediator.agent.runner.process import (
    LOCK,
    LOG,
    SETTINGS,
    RunnerProcess,
    RunnerSettings,
)
from fedpilot.mediator.agent.runner.server import RunnerServer
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.local_socket import NO_FORK_HANDLERS, RUNNER_SOCKET
from fedpilot.mediator.wire.messages import done_message, payload_of
from fedpilot.mediator.workload import Payload


def start(folder: Path, settings: RunnerSettings) -> RunnerProcess:
    """As `RunnerProcess.start` does, with this file as the program."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.truncate(lock, 0)
    (folder / RUNNER_SOCKET).unlink(missing_ok=True)
    (folder / SETTINGS).write_text(json.dumps(settings.to_json()))
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(lock)],
            env={**os.environ, **NO_FORK_HANDLERS, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock],
            start_new_session=True,
        )
    os.close(lock)
    return RunnerProcess(folder, process)


class Puppet:
    """Works in threads, so that several orders are at work at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = RunnerSettings.read(folder)
        self.store = BlobStore(self.settings.blobs, 1 << 30)
        self.over = threading.Event()
        self.server = RunnerServer(folder, self, self.settings, time.monotonic)

    def work(self, order: pb.Order) -> None:
        with (self.folder / "worked").open("a") as file:
            file.write(f"{order.id.key}\n")
        threading.Thread(target=self._act, args=(order,), daemon=True).start()

    def _act(self, order: pb.Order) -> None:
        payload = payload_of(order, self.store)
        match order.kind:
            case "die":
                print("the roof has fallen in", file=sys.stderr, flush=True)
                os._exit(1)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                while not (self.folder / "go").exists():
                    time.sleep(0.02)
            case "train":
                trained = {name: tensor + 1 for name, tensor in payload.tensors.items()}
                payload = Payload(kind="train", header=payload.header, tensors=trained)
            case "gang":
                payload = Payload(kind="promised", header={"vnodes": payload.header["at_most"]})
            case "tell":
                self.server.happened(
                    pb.Happened(run=self.settings.run, kind="told", header_json="{}")
                )
        done = done_message(payload, self.store)
        self.server.answer(pb.Answer(id=order.id, done=done))

    def taken(self, answer: pb.Answer) -> None:
        with (self.folder / "taken").open("a") as file:
            file.write(f"{answer.id.key}\n")

    def lapse(self) -> None: ...

    def end(self, reason: str) -> None:
        print(f"ends: {reason}", file=sys.stderr, flush=True)
        self.over.set()


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[2]), False)
    os.write(int(sys.argv[2]), f"{os.getpid()}\n".encode())
    puppet = Puppet(Path(sys.argv[1]))
    puppet.server.open()
    puppet.over.wait()
    puppet.server.close("it was told to end")
