"""RayWorker: an actor, and a future for each call that it has not answered yet."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ...core.records import VNode
from ...errors import FabricError, WorkerLost
from ..failures import explained
from .serialization import packed, unpacked


class RayWorker:
    """An actor and the calls that it has not answered yet."""

    def __init__(
        self, name: str, vnode: VNode, actor: Any, forget: Callable[[RayWorker], None]
    ) -> None:
        self.name, self.vnode = name, vnode
        self._actor = actor
        self._forget = forget
        self._open: set[Future[Any]] = set()
        self._killed = False
        self._lock = threading.Lock()

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()
        with self._lock:
            killed = self._killed
            self._open.add(answer)
        if killed:
            self._settle(answer, error=self._was_killed())
            return answer
        try:
            asked = self._actor.packed_call.remote(*packed(method, args)).future()
        except Exception as error:
            self._settle(answer, error=explained(self.name, method, error))
            return answer
        asked.add_done_callback(functools.partial(self._on_answer, answer, method))
        return answer

    def kill(self) -> None:
        import ray

        with self._lock:
            if self._killed:
                return
            self._killed = True
            unanswered = tuple(self._open)
        if ray.is_initialized():
            ray.kill(self._actor)
        for answer in unanswered:
            self._settle(answer, error=self._was_killed())
        self._forget(self)

    def _on_answer(self, answer: Future[Any], method: str, asked: Future[Any]) -> None:
        error = asked.exception()
        if error is None:
            self._settle(answer, result=unpacked(asked.result()))
        else:
            self._settle(answer, error=explained(self.name, method, error))

    def _settle(
        self, answer: Future[Any], *, result: Any = None, error: FabricError | None = None
    ) -> None:
        """Answer a call once: a kill and Ray may both know its end."""
        with self._lock:
            if answer not in self._open:
                return
            self._open.remove(answer)
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def _was_killed(self) -> WorkerLost:
        return WorkerLost(self.name, "it was killed")
