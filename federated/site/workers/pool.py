"""WorkerPool: warm FederatedNodes on the vnodes of a gang, fed by one thread that owns all state.

The dispatcher decides; the thread acts. A worker that dies, or does not answer for `timeout_s`, is
restarted on its vnode, and its work goes to a free worker. If others claim the gang's places, the
pool begins nothing new, leaves once no worker is at work, and goes on when the gang has places
again; `gang_watch.py` says when. On an elastic gang single workers come, and leave after notice.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from fedpilot.fabric import Gang, NotInstalled, Standing, WorkerFailed, WorkerLost

from ...core.proof.environment_diff import Facts, unlike
from ...core.rounds.dispatch import AbandonWork, Action, Dispatcher, Send, StartWorker
from ...errors import FederatedError, WorkerNotMade, WorkersExhausted
from .gang_watch import GangWatch, WorkerDeath
from .seats import Seat, Seats

TICK_S = 1.0
"""Interval of deadline checks."""
SLOW_S = 7.0
"""Interval of reports while workers start."""
CLOSE_S = 30.0
"""Longest wait of `close` for the pool's thread."""


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A model from which several pieces of work start; sent to each worker once."""

    key: str
    content: Any
    """The state, or the fabric's handle of it."""


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerCall:
    """One call for a worker."""

    method: str
    args: tuple[Any, ...]
    what: str
    """Shown to the user if it fails, such as `training 12 clients of round 3`."""
    model: SharedModel | None = None
    vnode_class: str | None = None
    """Only workers of this class may do it; None: any may."""
    answer: Future[Any] = field(default_factory=Future)
    args_at: Callable[[int], tuple[Any, ...]] = lambda _: ()
    """Further arguments, which depend on the number of the chosen worker."""
    on_sent: Callable[[int], None] | None = None
    """Called in the pool's thread with that number."""


Message = Callable[[], "list[Action] | None"]


class WorkerPool:
    """Owns the workers of a gang from `start` to `close`."""

    def __init__(
        self,
        gang: Gang,
        node: type[Any],
        args: Sequence[Any] | Mapping[str, Sequence[Any]],
        *,
        restarts: int,
        timeout_s: float,
        alike: bool = False,
        like: Mapping[str, Facts] = MappingProxyType({}),
        compares_classes: bool = True,
        on_event: Callable[[str, dict[str, Any]], None],
        on_idle: Callable[[], None] = lambda: None,
        on_notice: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`args`: what a worker is made of, by its vnode class where there are several.

        `alike`: whether all workers must agree in the facts that decide bits. They are compared
        with `like` or, without it, with the first workers; with those of their own class, and with
        `like` of that class, unless it `compares_classes`. `on_notice` is called when the workers
        are about to lose their places, and may submit what has to be saved.
        """
        self._alike, self._like = alike, dict(like)
        self._compares_classes = compares_classes
        self._gang = gang
        self._node = node
        self._args = args
        self._timeout_s = timeout_s
        self._on_event = on_event
        self._on_idle = on_idle
        self._on_notice = on_notice
        self._clock = clock
        self._seats = Seats(gang)
        self._dispatcher = Dispatcher(len(gang.vnodes), restarts, self._seats.classes)
        self._pieces: dict[int, WorkerCall] = {}
        self._numbers = itertools.count()
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker-pool", daemon=True)
        self._door = threading.Lock()
        self._ended: BaseException | None = None
        """Why no more work is accepted; set once, under the door's lock."""
        self._all_up: Future[None] = Future()
        self._told: dict[str, Facts] = {}
        """Of the worker that came up last, among those that are compared."""
        self._leaving = self._away = False
        self._watcher = GangWatch(gang, self._standing_changed) if gang.shared else None
        self._began = self._said_slow = clock()

    @property
    def size(self) -> int:
        """The number of workers that need not leave."""
        return self._seats.size()

    def size_of(self, vnode_class: str | None) -> int:
        """The same of a class; None for all."""
        return self._seats.size(vnode_class)

    def start(self) -> None:
        """Begin to start the workers; work may be submitted at once."""
        self._began = self._said_slow = self._clock()
        self._inbox.put(self._dispatcher.start)
        self._thread.start()
        if self._watcher is not None:
            self._watcher.start()

    def wait_up(self, timeout_s: float) -> None:
        """Wait until every worker has answered once; raises TimeoutError, or the start's error."""
        self._all_up.result(timeout_s)

    @property
    def up(self) -> int:
        """How many workers have answered."""
        return self._seats.up

    def may_leave(self, worker: int) -> bool:
        """Whether others may claim a worker's place at any time, alone."""
        return self._seats.may_leave(worker)

    @property
    def shares_memory(self) -> bool:
        """Whether all workers run where they can share this process's memory."""
        return self._seats.all_share_memory

    def shares_memory_with(self, worker: int) -> bool:
        """Whether a worker runs there."""
        return self._seats[worker].shares_memory

    def usable(self, vnode_class: str | None = None) -> tuple[int, ...]:
        """Workers (of a class) that are up or will be again, and need not leave.

        If all died too often, the first of them.
        """
        mine = (n for n, each in self._seats.classes.items() if vnode_class in (None, each))
        return self._dispatcher.usable(vnode_class) or tuple(mine)[:1]

    def submit(
        self,
        pieces: Sequence[WorkerCall],
        *,
        worker: int | None = None,
        first: bool = False,
        moves: bool = False,
    ) -> None:
        """Queue work in order; `worker` binds it to one, `first` puts it before waiting work.

        Work that `moves` goes to another worker if that one leaves.
        """
        with self._door:
            ended = self._ended
            if ended is None:
                numbers = [next(self._numbers) for _ in pieces]
                self._pieces.update(zip(numbers, pieces, strict=True))
                only_of = {
                    number: piece.vnode_class
                    for number, piece in zip(numbers, pieces, strict=True)
                    if piece.vnode_class is not None
                }
                submit = partial(self._dispatcher.submit, numbers, worker, only_of=only_of)
                self._inbox.put(partial(submit, first=first, moves=moves))
        if ended is not None:
            for piece in pieces:
                piece.answer.set_exception(ended)

    def withdraw(self, pieces: Sequence[WorkerCall]) -> None:
        """Cancel unsent work; sent work is still answered."""
        unwanted = {id(piece) for piece in pieces}
        self._inbox.put(lambda: self._withdraw(unwanted))

    def meanwhile(self, act: Callable[[], None]) -> None:
        """Call `act` on the pool's thread once the work submitted so far has been sent."""
        self._inbox.put(act)

    def close(self) -> None:
        """End the workers and fail unfinished work; may be called twice."""
        if self._watcher is not None:
            self._watcher.close()
        self._inbox.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=CLOSE_S)
        for _, seat in self._seats:
            self._seats.end(seat)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        ended: BaseException = FederatedError("the worker pool was closed")
        try:
            watched = self._clock()
            while True:
                try:
                    message = self._inbox.get(timeout=TICK_S)
                except queue.Empty:
                    message = self._on_idle
                if message is None:
                    break
                self._perform(message() or [])
                self._leave_what_is_done()
                if self._clock() - watched >= TICK_S:
                    self._watch()
                    watched = self._clock()
        except BaseException as error:  # all waiting work fails with it, and no more is accepted
            ended = error
        self._end(ended)

    def _end(self, error: BaseException) -> None:
        with self._door:
            self._ended = error
            pieces, self._pieces = list(self._pieces.values()), {}
        for piece in pieces:
            if not piece.answer.done():
                piece.answer.set_exception(error)
        if not self._all_up.done():
            self._all_up.set_exception(error)

    def _withdraw(self, unwanted: set[int]) -> None:
        numbers = [n for n, piece in self._pieces.items() if id(piece) in unwanted]
        for number in self._dispatcher.withdraw(numbers):
            self._pieces.pop(number).answer.cancel()

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartWorker(worker):
                    self._start_worker(worker)
                case Send(worker, work):
                    self._send(worker, work)
                case AbandonWork(work, losses, reason):
                    piece = self._pieces.pop(work)
                    piece.answer.set_exception(WorkersExhausted(piece.what, losses, reason))

    def _start_worker(self, number: int) -> None:
        seat = self._seats.begin(number, self._clock())
        generation = seat.generation
        try:
            args = self._args
            args = args[seat.vnode_class] if isinstance(args, Mapping) else args
            seat.worker = self._gang.start_worker(seat.vnode, self._node, *args)
        except WorkerLost as error:
            reason = error.reason
            self._inbox.put(lambda: self._lost(number, generation, reason))
            return
        hello = seat.worker.call("hello")
        hello.add_done_callback(
            lambda done: self._inbox.put(lambda: self._greeted(number, generation, done))
        )

    def _send(self, number: int, work: int) -> None:
        seat, piece = self._seats[number], self._pieces[work]
        if len(self._dispatcher.doing(number)) == 1:
            seat.busy_since = self._clock()
        args = (*piece.args, *piece.args_at(number))
        if piece.model is not None:
            known = seat.models.touch(piece.model.key)
            args = (*args, piece.model.key, None if known else piece.model.content)
            if not known:
                seat.models.keep(piece.model.key, None)
        if piece.on_sent is not None:
            piece.on_sent(number)
        if seat.worker is None:
            raise RuntimeError("work was sent to a worker that was never started")
        generation = seat.generation
        seat.worker.call(piece.method, *args).add_done_callback(
            lambda done: self._inbox.put(lambda: self._finished(number, generation, work, done))
        )

    def _greeted(self, number: int, generation: int, done: Future[Any]) -> list[Action]:
        seat = self._seats.of(number, generation)
        if seat is None:
            return []
        error = done.exception()
        if isinstance(error, NotInstalled) and not self._all_up.done():
            raise error
        if isinstance(error, WorkerFailed) and not self._all_up.done():
            raise WorkerNotMade(number, f"{error.kind}: {error.message}") from error
        if error is not None:
            reason = error.reason if isinstance(error, WorkerLost) else str(error)
            return self._lost(number, generation, reason)
        told: dict[str, Any] = {**done.result()}
        with_whom = told.pop("sharers", "")
        among = "" if self._compares_classes else seat.vnode_class
        if problem := self._unlike(told, among):
            if not self._all_up.done():
                raise WorkerNotMade(number, problem)
            return self._lost(number, generation, problem)
        seat.up, seat.sharers = True, with_whom
        of = {"vnode_class": seat.vnode_class} if seat.vnode_class else {}
        self._on_event("worker_ready", {"worker": number, **of, **told})
        self._told[among] = told
        self._note_if_all_up()
        return self._dispatcher.ready(number)

    def _note_if_all_up(self) -> None:
        if self._seats.all_up and not self._all_up.done():
            self._like = {**self._told, **self._like}
            self._all_up.set_result(None)

    def _unlike(self, told: Facts, among: str) -> str:
        """Why a worker gets no work although it is up; empty if it does."""
        if not self._alike or among not in self._like:
            return ""
        found = unlike(self._like[among], told)
        return f"with `run.reproducible: strict` it gets no work: its {found}" if found else ""

    def _finished(self, number: int, generation: int, work: int, done: Future[Any]) -> list[Action]:
        seat = self._seats.of(number, generation)
        if seat is None:
            return []
        error = done.exception()
        if isinstance(error, WorkerLost):
            return self._lost(number, generation, error.reason)
        piece = self._pieces.pop(work)
        seat.busy_since = self._clock()
        actions = self._dispatcher.done(number, work)
        if error is None:
            piece.answer.set_result(done.result())
        else:
            piece.answer.set_exception(_cause(error))
        return actions

    # -- places that others claim -------------------------------------------------------------

    def _standing_changed(self, standing: Standing, deaths: Sequence[WorkerDeath]) -> None:
        """Called in the watcher's thread, at each change and after each death."""
        self._inbox.put(lambda: self._stands(standing, deaths))

    def _stands(self, standing: Standing, deaths: Sequence[WorkerDeath]) -> list[Action]:
        """Follow the gang; workers that died and still have their places are lost."""
        if not standing.held:
            if not self._away:
                self._take_away(standing.reason)
            return []
        if self._away:
            return self._come_back(standing)
        moved = self._follow(standing) if self._gang.elastic else []
        lost = [action for death in deaths for action in self._lost(*death, sure=True)]
        actions = [*moved, *lost]
        if standing.leaves_in_s is None:
            if not self._leaving:
                return actions
            self._leaving = False
            return [*actions, *self._dispatcher.resume()]
        if not self._leaving:
            self._leaving = True
            self._dispatcher.pause()
            told = {"seconds": standing.leaves_in_s, "reason": standing.reason}
            self._on_event("gang_notice", told)
            self._on_notice()  # what it submits comes before the next message
            self._inbox.put(lambda: None)
        return actions

    def _leave_what_is_done(self) -> None:
        """Give places up early where no worker is at work."""
        if self._watcher is None or not self._inbox.empty():
            return
        if self._leaving and self._dispatcher.at_rest:
            self._watcher.leave()
        for number, seat in self._seats:
            if seat.notice is not None and self._dispatcher.rests(number):
                self._watcher.leave(seat.vnode.id)

    def _follow(self, standing: Standing) -> list[Action]:
        """Take over which workers came, which have left, and which are under notice."""
        came, left = self._gang.follow(standing)
        before = [(number, seat) for number, seat in self._seats if seat.vnode.id in left]
        for vnode in came:
            self._on_event("worker_joined", {"worker": self._seats.add(vnode)})
        for number, seat in before:
            self._left(number, seat)
        for number, seat in self._seats:
            notice = standing.notices.get(seat.vnode.id)
            if notice is not None and seat.notice is None:
                when = {} if notice.leaves_in_s is None else {"seconds": notice.leaves_in_s}
                told = {"worker": number, **when, "reason": notice.reason}
                self._on_event("worker_notice", told)
            seat.notice = notice
        self._note_if_all_up()
        seats = self._seats
        return self._dispatcher.follow(seats.numbers, seats.leaving, seats.classes)

    def _left(self, number: int, seat: Seat) -> None:
        """A worker has no place any more, and is not to blame for it."""
        held = [self._pieces[work].what for work in self._dispatcher.doing(number)]
        self._seats.drop(number)
        reason = "its place is gone" if seat.notice is None else seat.notice.reason
        self._on_event("worker_left", {"worker": number, "reason": reason, "held": held})

    def _come_back(self, standing: Standing) -> list[Action]:
        """Start workers on the places that the gang has again."""
        self._away = False
        self._gang.follow(standing)
        self._seats.renew()
        followed = self._dispatcher.follow(self._seats.numbers, classes=self._seats.classes)
        self._on_event("gang_regained", {"workers": self._seats.size()})
        lost = [action for action in followed if isinstance(action, AbandonWork)]
        return [*lost, *self._dispatcher.start_again()]

    def _take_away(self, reason: str) -> None:
        """The workers have no places any more, and are not to blame for it."""
        self._away, self._leaving = True, False
        self._on_event("gang_preempted", {"reason": reason})
        self._dispatcher.taken_away()
        for _, seat in self._seats:
            self._seats.end(seat)

    def _lost(
        self, number: int, generation: int, reason: str, *, sure: bool = False
    ) -> list[Action]:
        seat = self._seats.of(number, generation)
        if seat is None:
            return []
        if self._watcher is not None and not sure:
            self._watcher.look(WorkerDeath(number, generation, reason))
            return []
        held = [self._pieces[work].what for work in self._dispatcher.doing(number)]
        self._on_event("worker_lost", {"worker": number, "reason": reason, "held": held})
        was_up = seat.up
        self._seats.end(seat)
        actions = self._dispatcher.lost(number, reason)
        gone = not any(isinstance(action, StartWorker) for action in actions)
        if gone and not was_up and not self._all_up.done():
            self._all_up.set_exception(WorkersExhausted(f"worker {number}", 1, reason))
        return actions

    def _watch(self) -> None:
        now = self._clock()
        if not self._all_up.done() and now - self._said_slow >= SLOW_S:
            self._said_slow = now
            waited = {"up": self.up, "of": self.size, "seconds": round(now - self._began)}
            self._on_event("workers_starting", waited)
        for number, seat in self._seats:
            waits = seat.worker is not None and (not seat.up or self._dispatcher.doing(number))
            if waits and now - seat.busy_since > self._timeout_s:
                reason = f"it did not answer for {self._timeout_s:g} s"
                self._perform(self._lost(number, seat.generation, reason))


def _cause(error: BaseException) -> BaseException:
    """The error of the worker's code, if it is one of ours; otherwise the fabric's error."""
    if isinstance(error, WorkerFailed) and isinstance(error.__cause__, FederatedError):
        return error.__cause__
    return error
