"""Requests under idempotency keys: each is executed once, and its reply is kept until it is taken.

The connection between a Requester and a Responder may break and lose messages at any moment. The
requester keeps a request until its reply is taken; the responder keeps the reply until the
requester acknowledges it. When the two connect, the responder lists the keys that it holds. The
requester sends the others again and adopts unknown ones, since it may have restarted. A deadline is
a `release` by the end that enforces it.

`REQUESTING` and `RESPONDING` list all transitions. Nothing here sends, waits or reads a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

REMEMBERED = 4_096
"""Released keys that a requester remembers, because the responder may still list them."""

Key = TypeVar("Key", bound=Hashable)
Message = TypeVar("Message")
Reply = TypeVar("Reply")


class Phase(StrEnum):
    """The state of a key at one end."""

    ABSENT = "absent"

    # A requester's
    QUEUED = "queued"
    """Asked for, but not sent yet."""
    SENT = "sent"
    """Asked for and sent; sent again if the responder does not list it at the next connection."""
    ANSWERED = "answered"
    """Asked for, and the reply has arrived."""
    ADOPTED = "adopted"
    """The responder has it; at present no party asks for it."""
    KEPT = "kept"
    """The reply has arrived; at present no party asks for it."""

    # A responder's
    AT_WORK = "at work"
    WITHDRAWN = "withdrawn"
    """At work; the reply is not needed."""
    REPLIED = "replied"
    """The reply is kept until it is acknowledged."""


class Trigger(StrEnum):
    """An event about a key."""

    ASKED = "asked"
    UNASKED = "unasked"
    """The asking party has disconnected, and may come back."""
    SENT = "sent"
    HELD = "held"
    """The ends connect, and the responder has the key."""
    MISSING = "missing"
    """The ends connect, and the responder does not have the key."""
    REPLIED = "replied"
    RELEASED = "released"
    """The reply was taken, or is not needed."""
    LOST = "lost"
    """The responder has ended; at a responder: the execution was stopped."""


class Effect(StrEnum):
    """The action that an end takes."""

    NOTHING = "nothing"
    SEND = "send"
    DELIVER = "deliver"
    """Hand the reply to the asking party."""
    FAIL = "fail"
    """Tell the asking party that no reply will come."""
    ACKNOWLEDGE = "acknowledge"
    """Tell the responder that it may forget the key."""
    EXECUTE = "execute"
    REPLY = "reply"
    STOP = "stop"
    """Stop the execution, if that is possible."""
    FORGET = "forget"
    """Free everything kept for the key."""


Table = Mapping[tuple[Phase, Trigger], tuple[Phase, Effect]]

REQUESTING: Table = {
    (Phase.ABSENT, Trigger.ASKED): (Phase.QUEUED, Effect.SEND),
    (Phase.ABSENT, Trigger.HELD): (Phase.ADOPTED, Effect.NOTHING),
    (Phase.ABSENT, Trigger.REPLIED): (Phase.ABSENT, Effect.ACKNOWLEDGE),
    (Phase.ABSENT, Trigger.RELEASED): (Phase.ABSENT, Effect.NOTHING),
    (Phase.QUEUED, Trigger.ASKED): (Phase.QUEUED, Effect.SEND),
    (Phase.QUEUED, Trigger.UNASKED): (Phase.ABSENT, Effect.FORGET),
    (Phase.QUEUED, Trigger.SENT): (Phase.SENT, Effect.NOTHING),
    (Phase.QUEUED, Trigger.HELD): (Phase.SENT, Effect.NOTHING),
    (Phase.QUEUED, Trigger.MISSING): (Phase.QUEUED, Effect.SEND),
    (Phase.QUEUED, Trigger.REPLIED): (Phase.ANSWERED, Effect.DELIVER),
    (Phase.QUEUED, Trigger.RELEASED): (Phase.ABSENT, Effect.FORGET),
    (Phase.QUEUED, Trigger.LOST): (Phase.ABSENT, Effect.FAIL),
    (Phase.SENT, Trigger.ASKED): (Phase.SENT, Effect.NOTHING),
    (Phase.SENT, Trigger.UNASKED): (Phase.ADOPTED, Effect.NOTHING),
    (Phase.SENT, Trigger.HELD): (Phase.SENT, Effect.NOTHING),
    (Phase.SENT, Trigger.MISSING): (Phase.QUEUED, Effect.SEND),
    (Phase.SENT, Trigger.REPLIED): (Phase.ANSWERED, Effect.DELIVER),
    (Phase.SENT, Trigger.RELEASED): (Phase.ABSENT, Effect.ACKNOWLEDGE),
    (Phase.SENT, Trigger.LOST): (Phase.ABSENT, Effect.FAIL),
    (Phase.ANSWERED, Trigger.ASKED): (Phase.ANSWERED, Effect.DELIVER),
    (Phase.ANSWERED, Trigger.UNASKED): (Phase.KEPT, Effect.NOTHING),
    (Phase.ANSWERED, Trigger.HELD): (Phase.ANSWERED, Effect.NOTHING),
    (Phase.ANSWERED, Trigger.MISSING): (Phase.ANSWERED, Effect.NOTHING),
    (Phase.ANSWERED, Trigger.REPLIED): (Phase.ANSWERED, Effect.NOTHING),
    (Phase.ANSWERED, Trigger.RELEASED): (Phase.ABSENT, Effect.ACKNOWLEDGE),
    (Phase.ANSWERED, Trigger.LOST): (Phase.ANSWERED, Effect.NOTHING),
    # Send it again: its reply may have been refused while the request was adopted.
    (Phase.ADOPTED, Trigger.ASKED): (Phase.QUEUED, Effect.SEND),
    (Phase.ADOPTED, Trigger.UNASKED): (Phase.ADOPTED, Effect.NOTHING),
    (Phase.ADOPTED, Trigger.HELD): (Phase.ADOPTED, Effect.NOTHING),
    (Phase.ADOPTED, Trigger.MISSING): (Phase.ABSENT, Effect.FORGET),
    (Phase.ADOPTED, Trigger.REPLIED): (Phase.KEPT, Effect.NOTHING),
    (Phase.ADOPTED, Trigger.RELEASED): (Phase.ABSENT, Effect.ACKNOWLEDGE),
    (Phase.ADOPTED, Trigger.LOST): (Phase.ABSENT, Effect.FORGET),
    (Phase.KEPT, Trigger.ASKED): (Phase.ANSWERED, Effect.DELIVER),
    (Phase.KEPT, Trigger.UNASKED): (Phase.KEPT, Effect.NOTHING),
    (Phase.KEPT, Trigger.HELD): (Phase.KEPT, Effect.NOTHING),
    (Phase.KEPT, Trigger.MISSING): (Phase.ABSENT, Effect.FORGET),
    (Phase.KEPT, Trigger.REPLIED): (Phase.KEPT, Effect.NOTHING),
    (Phase.KEPT, Trigger.RELEASED): (Phase.ABSENT, Effect.ACKNOWLEDGE),
    (Phase.KEPT, Trigger.LOST): (Phase.KEPT, Effect.NOTHING),
}

RESPONDING: Table = {
    (Phase.ABSENT, Trigger.ASKED): (Phase.AT_WORK, Effect.EXECUTE),
    (Phase.ABSENT, Trigger.HELD): (Phase.AT_WORK, Effect.NOTHING),  # at work before a restart
    (Phase.ABSENT, Trigger.REPLIED): (Phase.ABSENT, Effect.FORGET),
    (Phase.ABSENT, Trigger.RELEASED): (Phase.ABSENT, Effect.NOTHING),
    (Phase.ABSENT, Trigger.LOST): (Phase.ABSENT, Effect.NOTHING),
    (Phase.AT_WORK, Trigger.ASKED): (Phase.AT_WORK, Effect.NOTHING),
    (Phase.AT_WORK, Trigger.HELD): (Phase.AT_WORK, Effect.NOTHING),
    (Phase.AT_WORK, Trigger.REPLIED): (Phase.REPLIED, Effect.REPLY),
    (Phase.AT_WORK, Trigger.RELEASED): (Phase.WITHDRAWN, Effect.STOP),
    (Phase.AT_WORK, Trigger.LOST): (Phase.ABSENT, Effect.FORGET),
    (Phase.WITHDRAWN, Trigger.ASKED): (Phase.AT_WORK, Effect.NOTHING),
    (Phase.WITHDRAWN, Trigger.HELD): (Phase.WITHDRAWN, Effect.NOTHING),
    (Phase.WITHDRAWN, Trigger.REPLIED): (Phase.ABSENT, Effect.FORGET),
    (Phase.WITHDRAWN, Trigger.RELEASED): (Phase.WITHDRAWN, Effect.NOTHING),
    (Phase.WITHDRAWN, Trigger.LOST): (Phase.ABSENT, Effect.FORGET),
    (Phase.REPLIED, Trigger.ASKED): (Phase.REPLIED, Effect.REPLY),
    (Phase.REPLIED, Trigger.HELD): (Phase.REPLIED, Effect.NOTHING),
    (Phase.REPLIED, Trigger.REPLIED): (Phase.REPLIED, Effect.REPLY),  # another reply in its place
    (Phase.REPLIED, Trigger.LOST): (Phase.REPLIED, Effect.NOTHING),
    (Phase.REPLIED, Trigger.RELEASED): (Phase.ABSENT, Effect.FORGET),
}


@dataclass(slots=True)
class OpenRequest(Generic[Key, Message, Reply]):
    """A request as its requester sees it."""

    key: Key
    message: Message | None = None
    """None if the request was adopted and not asked for since."""
    phase: Phase = Phase.ABSENT
    reply: Reply | None = None

    @property
    def adopted(self) -> bool:
        """Whether the request is known only from the responder."""
        return self.message is None


class Reconnected(NamedTuple, Generic[Key, Message, Reply]):
    """The consequences of a new connection."""

    released: list[Key]
    """Keys to acknowledge: the responder need not hold them."""
    forgotten: list[OpenRequest[Key, Message, Reply]]
    """Adopted requests that the responder no longer holds."""


class Requester(Generic[Key, Message, Reply]):
    """The end that asks; it keeps its requests in order of arrival."""

    def __init__(self) -> None:
        self.open: OrderedDict[Key, OpenRequest[Key, Message, Reply]] = OrderedDict()
        self._released: OrderedDict[Key, None] = OrderedDict()

    def ask(
        self, key: Key, message: Message | None
    ) -> tuple[Effect, OpenRequest[Key, Message, Reply]]:
        """Ask, or ask again (without a message: for an earlier reply): SEND, DELIVER or NOTHING."""
        self._released.pop(key, None)
        request = self.open.get(key) or OpenRequest(key)
        request.message = request.message or message
        return self._step(request, Trigger.ASKED), request

    def unsent(self) -> list[OpenRequest[Key, Message, Reply]]:
        """The requests to send, oldest first."""
        return [each for each in self.open.values() if each.phase is Phase.QUEUED and each.message]

    def sent(self, key: Key) -> None:
        """Record that a request was sent on the open connection."""
        self._step(self.open[key], Trigger.SENT)

    def connected(
        self, held: Iterable[Key], wanted: Callable[[Key], bool], room: int
    ) -> Reconnected[Key, Message, Reply]:
        """Take the responder's listed keys; adopt `wanted` unknown ones, up to `room` in all."""
        holds = set(held)
        found = Reconnected[Key, Message, Reply]([], [])
        for request in list(self.open.values()):
            event = Trigger.HELD if request.key in holds else Trigger.MISSING
            if self._step(request, event) is Effect.FORGET:
                found.forgotten.append(request)
        room -= sum(each.adopted for each in self.open.values())
        for key in sorted(holds - self.open.keys()):  # type: ignore[type-var]
            if key in self._released or not wanted(key):
                found.released.append(key)
            elif room > 0:
                self._step(OpenRequest(key), Trigger.HELD)
                room -= 1
        return found

    def replied(self, key: Key, reply: Reply) -> tuple[Effect, OpenRequest[Key, Message, Reply]]:
        """Take a reply, which may be a repeat: DELIVER, ACKNOWLEDGE or NOTHING."""
        request = self.open.get(key) or OpenRequest(key)
        if request.reply is None:
            request.reply = reply
        return self._step(request, Trigger.REPLIED), request

    def release(self, key: Key) -> tuple[Effect, OpenRequest[Key, Message, Reply]]:
        """Release a key whose reply is not needed: ACKNOWLEDGE, FORGET or NOTHING."""
        request = self.open.get(key) or OpenRequest(key)
        self._remember(key)
        return self._step(request, Trigger.RELEASED), request

    def unask(self, keys: Iterable[Key]) -> list[OpenRequest[Key, Message, Reply]]:
        """Record that the asking party has disconnected; return the requests that are forgotten."""
        requests = [self.open[key] for key in keys if key in self.open]
        return [each for each in requests if self._step(each, Trigger.UNASKED) is Effect.FORGET]

    def lost(self) -> list[OpenRequest[Key, Message, Reply]]:
        """Record that the responder has ended; return the requests that it had not answered."""
        ended = []
        for request in list(self.open.values()):
            if self._step(request, Trigger.LOST) is not Effect.NOTHING:
                self._remember(request.key)
                ended.append(request)
        return ended

    def _step(self, request: OpenRequest[Key, Message, Reply], event: Trigger) -> Effect:
        request.phase, effect = REQUESTING[request.phase, event]
        if request.phase is Phase.ABSENT:
            self.open.pop(request.key, None)
        else:
            self.open[request.key] = request
        return effect

    def _remember(self, key: Key) -> None:
        self._released[key] = None
        self._released.move_to_end(key)
        if len(self._released) > REMEMBERED:
            self._released.popitem(last=False)


class Responder(Generic[Key, Reply]):
    """The end that executes."""

    def __init__(self) -> None:
        self._phases: dict[Key, Phase] = {}
        self._replies: dict[Key, Reply] = {}

    def __len__(self) -> int:
        """Keys that are at work or replied."""
        return len(self._phases)

    def __contains__(self, key: object) -> bool:
        return key in self._phases

    def asked(self, key: Key) -> Effect:
        """Take a request, which may be a repeat: EXECUTE, REPLY or NOTHING."""
        return self._step(key, Trigger.ASKED)

    def adopt(self, key: Key) -> None:
        """Take over a request whose execution began before this responder was started."""
        self._step(key, Trigger.HELD)

    def replied(self, key: Key, reply: Reply) -> Effect:
        """Record the end of the execution: REPLY, or FORGET if the reply is not needed."""
        effect = self._step(key, Trigger.REPLIED)
        if effect is Effect.REPLY:
            self._replies[key] = reply
        return effect

    def released(self, key: Key) -> Effect:
        """Record that the requester has the reply or does not need it: FORGET, STOP or NOTHING."""
        return self._step(key, Trigger.RELEASED)

    def stopped(self, key: Key) -> None:
        """Record that the execution was stopped, so no reply will come."""
        self._step(key, Trigger.LOST)

    def at_work(self) -> list[Key]:
        """The keys being executed whose replies are needed."""
        return [key for key, phase in self._phases.items() if phase is Phase.AT_WORK]

    def replies(self) -> Mapping[Key, Reply]:
        """The replies that the requester has not acknowledged."""
        return self._replies

    def _step(self, key: Key, event: Trigger) -> Effect:
        phase, effect = RESPONDING[self._phases.get(key, Phase.ABSENT), event]
        if phase is Phase.ABSENT:
            self._phases.pop(key, None)
            self._replies.pop(key, None)
        else:
            self._phases[key] = phase
        return effect
