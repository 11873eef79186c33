"""Decides which worker does which piece of work next, and what a worker's death means: no I/O.

The caller reports events (`submit`, `ready`, `done`, `lost`, `follow`), and the dispatcher
returns actions (`Send`, `StartWorker`, `AbandonWork`). Rules:

* Work goes out in the order of submission. A worker gets a second piece only while enough pieces
  wait for all workers, so that no worker is idle at the end of a round while another holds two.
* A lost worker's pieces go back to the head of the queue. The loss counts for the piece that the
  worker was on. A piece that lost more than `limit` workers is abandoned, since it probably kills
  them.
* While it is paused, work goes only to the worker that it is bound to: sums are handed up, and
  nothing new begins. If all workers are taken away, for others to have their places, their pieces
  go back to the queue, and nothing counts as a loss.
* A single worker under notice gets no more work, except what is bound to it and to no other. Once
  it has left, its pieces go back to the queue, and that is no loss either. Work that is bound to it
  goes to any worker if it may move, and is abandoned otherwise.
* Work may be for workers of one vnode class only. Such work waits for these, and stops no other
  work; it is abandoned once all of them are lost.
* A worker that dies more than `limit` times without finishing anything is not started again. Work
  that is bound to it is abandoned; all work is, once no worker is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

WorkId = int
LEFT = "its worker has left"


@dataclass(frozen=True, slots=True)
class Send:
    """Hand this piece of work to this worker."""

    worker: int
    work: WorkId


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start or restart this worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class AbandonWork:
    """Never try this piece of work again."""

    work: WorkId
    losses: int
    reason: str


Action = Send | StartWorker | AbandonWork


@dataclass(slots=True)
class _Slot:
    vnode_class: str = ""
    """Empty where all workers are of one class."""
    ready: bool = False
    leaving: bool = False
    """Whether it is under notice."""
    losses: int = 0
    """Deaths since it last finished something."""
    gone: str | None = None
    doing: deque[WorkId] = field(default_factory=deque)


class Dispatcher:
    """The state of a pool of workers: at first those of the numbers 0..n-1."""

    DEPTH = 2
    """Pieces that a worker may hold: the current one and the next."""

    def __init__(
        self, workers: int, limit: int, classes: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """`classes`: the vnode class of each worker, where there are several."""
        self._slots = {number: _Slot(classes.get(number, "")) for number in range(workers)}
        self._waiting: deque[WorkId] = deque()
        self._losses: dict[WorkId, int] = {}
        self._pinned: dict[WorkId, int] = {}
        self._movable: set[WorkId] = set()
        """Work that is bound to a worker only as long as that one stays."""
        self._only_of: dict[WorkId, str] = {}
        """Work that only workers of one class may do."""
        self._limit = limit
        self._paused = False

    @property
    def at_rest(self) -> bool:
        """Whether no worker is at work."""
        return not any(slot.doing for slot in self._slots.values())

    def pause(self) -> None:
        """Begin no new work but what is bound to a worker."""
        self._paused = True

    def resume(self) -> list[Action]:
        """Hand out all work again."""
        self._paused = False
        return list(self._hand_out())

    def taken_away(self) -> None:
        """Record that all workers were ended, for others to have their places."""
        for slot in reversed(self._slots.values()):
            slot.ready = slot.leaving = False
            self._waiting.extendleft(reversed(slot.doing))
            slot.doing = deque()

    def follow(
        self,
        workers: Iterable[int],
        leaving: Collection[int] = (),
        classes: Mapping[int, str] = MappingProxyType({}),
    ) -> list[Action]:
        """Take over which workers there are, which of them are under notice, and their classes."""
        there = set(workers)
        for number in sorted(self._slots.keys() - there, reverse=True):
            self._waiting.extendleft(reversed(self._slots.pop(number).doing))
        came = sorted(there - self._slots.keys())
        self._slots |= {number: _Slot() for number in came}
        for number, slot in self._slots.items():
            slot.leaving, slot.vnode_class = number in leaving, classes.get(number, "")
        bound = [work for work in self._waiting if not self._stays_bound(work)]
        lost = [work for work in bound if work not in self._movable]
        for work in bound:
            del self._pinned[work]
        return [
            *(AbandonWork(work, 0, LEFT) for work in self.withdraw(lost)),
            *map(StartWorker, came),
            *self._give_up_hopeless(),
            *self._hand_out(),
        ]

    def _stays_bound(self, work: WorkId) -> bool:
        """Whether waiting work can go on waiting: for its worker, or for any."""
        if (worker := self._pinned.get(work)) is None:
            return True
        slot = self._slots.get(worker)
        if slot is None or self._only_of.get(work, slot.vnode_class) != slot.vnode_class:
            return False
        return not (slot.leaving and work in self._movable)

    def rests(self, worker: int) -> bool:
        """Whether a worker is not at work, and nothing waits for it alone."""
        return not self._slots[worker].doing and worker not in self._pinned.values()

    def start_again(self) -> list[Action]:
        """Start every worker that did not die too often."""
        self._paused = False
        return [StartWorker(n) for n, slot in self._slots.items() if slot.gone is None]

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no worker is at work."""
        return not self._waiting and not any(slot.doing for slot in self._slots.values())

    def doing(self, worker: int) -> tuple[WorkId, ...]:
        """A worker's pieces, the current one first."""
        return tuple(self._slots[worker].doing)

    def start(self) -> list[Action]:
        """Start every worker."""
        return [StartWorker(number) for number in self._slots]

    def submit(
        self,
        works: Iterable[WorkId],
        worker: int | None = None,
        *,
        only_of: Mapping[WorkId, str] = MappingProxyType({}),
        first: bool = False,
        moves: bool = False,
    ) -> list[Action]:
        """Queue work in order; `worker` binds it to one, `first` goes in front.

        Work that `moves` goes to another worker if that one leaves (hosted nodes). `only_of` has
        the vnode class of work that only such workers may do.
        """
        taken = list(works)
        if worker is not None and worker not in self._slots and not moves:
            return [AbandonWork(work, 0, LEFT) for work in taken]
        self._only_of.update(only_of)
        if first:
            self._waiting.extendleft(reversed(taken))
        else:
            self._waiting.extend(taken)
        there = None if worker is None else self._slots.get(worker)
        if worker is not None and there is not None and not (moves and there.leaving):
            self._pinned.update(dict.fromkeys(taken, worker))
            self._movable.update(taken if moves else ())
        return [*self._give_up_hopeless(), *self._hand_out()]

    def withdraw(self, works: Iterable[WorkId]) -> list[WorkId]:
        """Drop those of the pieces that still wait, and return them."""
        unwanted = set(works)
        withdrawn = [work for work in self._waiting if work in unwanted]
        for work in withdrawn:
            self._waiting.remove(work)
            self._drop(work)
        return withdrawn

    def usable(self, vnode_class: str | None = None) -> tuple[int, ...]:
        """Workers (of a class) that are up or will be started again.

        Those under notice only without others.
        """
        there = [
            (n, slot)
            for n, slot in list(self._slots.items())
            if slot.gone is None and vnode_class in (None, slot.vnode_class)
        ]
        staying = tuple(n for n, slot in there if not slot.leaving)
        return staying or tuple(n for n, _ in there)

    def ready(self, worker: int) -> list[Action]:
        self._slots[worker].ready = True
        return list(self._hand_out())

    def done(self, worker: int, work: WorkId) -> list[Action]:
        """Record that a worker finished a piece, with success or an error."""
        slot = self._slots[worker]
        slot.doing.remove(work)
        slot.losses = 0
        self._drop(work)
        return list(self._hand_out())

    def lost(self, worker: int, reason: str) -> list[Action]:
        """Record that a worker died or did not start."""
        slot = self._slots[worker]
        slot.ready = False
        slot.losses += 1
        actions: list[Action] = []
        held, slot.doing = list(slot.doing), deque()
        if held:
            first = held[0]
            self._losses[first] = self._losses.get(first, 0) + 1
            if self._losses[first] > self._limit:
                actions.append(AbandonWork(first, self._losses[first], reason))
                self._drop(first)
                held = held[1:]
        self._waiting.extendleft(reversed(held))
        if slot.losses > self._limit:
            slot.gone = reason
            return [*actions, *self._give_up_hopeless(), *self._hand_out()]
        return [*actions, StartWorker(worker), *self._hand_out()]

    def _give_up_hopeless(self) -> list[AbandonWork]:
        """Abandon the work of lost workers, and of classes whose workers are all lost."""
        gone = {n: slot for n, slot in self._slots.items() if slot.gone is not None}
        if not gone:
            return []
        lost_by = {each: self._lost_by(each) for each in {None, *self._only_of.values()}}
        given_up = []
        for work in list(self._waiting):
            number = self._pinned.get(work, lost_by[self._only_of.get(work)])
            if number in gone:
                self._waiting.remove(work)
                self._drop(work)
                given_up.append(AbandonWork(work, gone[number].losses, gone[number].gone or ""))
        return given_up

    def _lost_by(self, vnode_class: str | None) -> int:
        """The first worker of a class whose workers are all lost, None for all classes; else -1."""
        slots = {n: s for n, s in self._slots.items() if vnode_class in (None, s.vnode_class)}
        return min(slots, default=-1) if all(s.gone is not None for s in slots.values()) else -1

    def _hand_out(self) -> Iterator[Action]:
        held_back: list[WorkId] = []
        busy: set[str | None] = set()
        """Classes whose workers take no more; None: no worker does."""
        classes = {slot.vnode_class for slot in self._slots.values()}
        while self._waiting and None not in busy and not busy >= classes:
            work = self._waiting.popleft()
            only_of, pinned = self._only_of.get(work), self._pinned.get(work)
            worker = None
            if pinned is not None or only_of not in busy:
                worker = self._choose(pinned, only_of)
            if worker is None:
                held_back.append(work)
                if pinned is None and not self._paused:
                    busy.add(only_of)
                continue
            self._slots[worker].doing.append(work)
            yield Send(worker, work)
        self._waiting.extendleft(reversed(held_back))

    def _choose(self, pinned: int | None, only_of: str | None) -> int | None:
        mine = {n: s for n, s in self._slots.items() if only_of in (None, s.vnode_class)}
        staying = [n for n, slot in mine.items() if not slot.leaving]
        numbers = staying if pinned is None else [pinned]
        able = [n for n in numbers if self._slots[n].ready]
        if not able or (self._paused and pinned is None):
            return None
        best = min(able, key=lambda n: (len(self._slots[n].doing), n))
        plenty = pinned is not None or self._waiting_for(only_of) + 1 >= len(staying)
        room = self.DEPTH if plenty else 1
        return best if len(self._slots[best].doing) < room else None

    def _waiting_for(self, only_of: str | None) -> int:
        """How much of the waiting work these workers may do."""
        if only_of is None or not self._only_of:
            return len(self._waiting)
        return sum(self._only_of.get(work, only_of) == only_of for work in self._waiting)

    def _drop(self, work: WorkId) -> None:
        self._losses.pop(work, None)
        self._pinned.pop(work, None)
        self._movable.discard(work)
        self._only_of.pop(work, None)
