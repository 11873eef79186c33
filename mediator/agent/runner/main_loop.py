"""A runner's process: attaches to Ray and executes its driver's orders.

The main thread does all work, in order of arrival, because Ray takes over a process's signals
unless the main thread waits for Ray. A signal, a lapsed lease or a driver's farewell interrupts it;
then it releases everything, and the process ends within `END_S`.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from fedpilot.common.host.interruptions import Interruptions
from fedpilot.fabric import VirtualClusterManager

from ...federation.in_process_site import InProcessSite
from ...federation.site import Site
from ...proto import federation_pb2 as pb
from ...wire.blobs.store import BlobStore
from ...wire.failures import machine_trouble, told
from ...wire.messages import payload_of
from ...wire.payloads import header_json
from ...wire.references import Keeping
from ...workload import ENTRY_POINTS, Payload, SiteContext
from .participation import RunParticipation, WorkloadCheck
from .policy_filter import PolicedSite
from .process import RunnerSettings
from .server import RunnerServer

if TYPE_CHECKING:
    from fedpilot.fabric import RayCluster

END_S = 20.0
"""How long the release may take: calls to a Ray without its head hang forever."""


class Runner:
    """A run's part at one site, in this process."""

    def __init__(self, folder: Path, settings: RunnerSettings) -> None:
        self._settings = settings
        self._begun: RayCluster | None = None
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._reason = "it was told to end"
        self._ending = threading.Lock()
        self._undo = ExitStack()
        self._keeping = Keeping(
            BlobStore(settings.blobs, settings.blob_limit_bytes), discard=settings.transient
        )
        self._part = RunParticipation(settings.site, self._site, self._notify)
        self._server = RunnerServer(folder, self, settings, time.monotonic)

    def run(self) -> None:
        with Interruptions() as interruptions:
            try:
                self._server.open()
                self._begin_ray()
                # An interrupted import may leave a lock that Ray's imports would wait for.
                with interruptions.held():
                    self._import_workload()
                while True:
                    self._todo.get()()
            except KeyboardInterrupt:
                pass  # the normal end
            finally:
                interruptions.shield()
                _give_up()
                with ExitStack() as closing:
                    closing.callback(lambda: self._server.close(self._reason))
                    closing.callback(self._undo.close)
                    closing.callback(self._part.release)

    # -- OrderHandler, called by the server -----------------------------------------------------

    def work(self, order: pb.Order) -> None:
        """Queue an order for the main thread."""
        self._todo.put(partial(self._act, order))

    def taken(self, answer: pb.Answer) -> None:
        if answer.done.blob.digest:
            self._keeping.let_go(answer.done.blob.digest)

    def lapse(self) -> None:
        """Queue the release of a promise that was not committed in time."""
        self._todo.put(self._part.lapse)

    def end(self, reason: str) -> None:
        """Interrupt the main thread's work."""
        if self._ending.acquire(blocking=False):
            self._reason = reason
            _log(f"ends: {reason}")
            _give_up()
            # Not to the process: another thread could take the signal.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            # A signal just before the main thread waits does not end its wait.
            self._todo.put(lambda: None)

    # -- work ---------------------------------------------------------------------------------

    def _act(self, order: pb.Order) -> None:
        asked = WorkloadCheck(order.kind, order.header_json, order.blob.digest)
        try:
            payload = payload_of(order, self._keeping.store)
            answer = self._part.act(order.verb, payload, asked)
        except Exception as error:
            self._failed(order.id, error)
        else:
            answer.add_done_callback(partial(self._answered, order.id))
        self._server.promised(self._part.promise_s)

    def _answered(self, id: pb.OrderId, made: Future[Payload]) -> None:
        """Called from any thread."""
        try:
            done = self._keeping.keep(made.result())
        except BaseException as error:
            self._failed(id, error)
        else:
            self._server.answer(pb.Answer(id=id, done=done))

    def _failed(self, id: pb.OrderId, error: BaseException) -> None:
        _log("".join(traceback.format_exception(error)))
        failure = told(machine_trouble(self._settings.site, error))
        self._server.answer(pb.Answer(id=id, failure=failure))

    def _notify(self, event: Payload) -> None:
        header = header_json(event.header)
        run = self._settings.run
        self._server.happened(pb.Happened(run=run, kind=event.kind, header_json=header))

    # -- Ray ----------------------------------------------------------------------------------

    def _begin_ray(self) -> None:
        """Begin to start a private Ray; a running one is attached to on demand."""
        choice = self._settings.ray
        if choice.address is not None:
            return
        from fedpilot.fabric import RayCluster

        self._begun = RayCluster.starting(
            choice.num_cpus,
            choice.num_gpus,
            choice.object_store_bytes,
            processes=choice.processes,
            preload=choice.preload,
        )
        self._undo.callback(self._begun.close)

    def _site(self) -> Site:
        from fedpilot.fabric import RayCluster

        settings, choice = self._settings, self._settings.ray
        if self._begun is not None:
            self._begun.wait()
            cluster = self._begun
        else:
            cluster = RayCluster.connect(choice.address or "auto", choice.auth_mode)
            self._undo.callback(cluster.close)
        manager = self._undo.enter_context(VirtualClusterManager(cluster))
        if settings.folder is not None:
            settings.folder.mkdir(parents=True, exist_ok=True)
        context = SiteContext(name=settings.site, folder=settings.folder, data=settings.data)
        site = InProcessSite(settings.site, manager, context)
        return PolicedSite(site, context, settings.policy) if settings.asks_policy else site

    def _import_workload(self) -> None:
        """Import the expected workload while Ray starts."""
        installed = entry_points(group=ENTRY_POINTS)
        if self._settings.workload not in installed.names:
            return
        gc.disable()  # PyTorch makes a million objects that stay
        try:
            installed[self._settings.workload].load()
        finally:
            gc.freeze()
            gc.enable()


def _log(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _give_up() -> None:
    """End this process after `END_S` at the latest; its log then shows where it hung."""
    faulthandler.dump_traceback_later(END_S, exit=True)


def serve(folder: Path, lock: int) -> None:
    """Be the runner of a folder; `lock` is the inherited descriptor of its lock."""
    os.set_inheritable(lock, False)
    os.write(lock, f"{os.getpid()}\n".encode())
    Runner(folder, RunnerSettings.read(folder)).run()
