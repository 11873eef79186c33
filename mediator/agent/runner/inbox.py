"""Desk: the orders that a runner has, by key; each is worked on once, however often it comes.

An answer is kept until whoever drives the runner says that it is taken, and is given again to
everybody who asks, or who connects, until then.
"""

from __future__ import annotations

from enum import StrEnum

from ...proto import federation_pb2 as pb


class Take(StrEnum):
    """What is to be done with an order that has come."""

    WORK = "work"
    WAIT = "wait"
    ANSWER = "answer"


class Desk:
    """Orders at work, and answers that nobody has taken yet, in the order that they came in."""

    def __init__(self) -> None:
        self._at_work: dict[str, pb.OrderId] = {}
        self._answers: dict[str, pb.Answer] = {}

    def take(self, order: pb.Order) -> Take:
        """Note an order; whether it is new, at work or answered."""
        key = order.id.key
        if key in self._answers:
            return Take.ANSWER
        if key in self._at_work:
            return Take.WAIT
        self._at_work[key] = order.id
        return Take.WORK

    def answered(self, answer: pb.Answer) -> None:
        """Keep the answer of an order that was at work."""
        key = answer.id.key
        self._at_work.pop(key, None)
        self._answers[key] = answer

    def answer_of(self, key: str) -> pb.Answer:
        """The answer that is kept; KeyError if there is none."""
        return self._answers[key]

    def taken(self, key: str) -> pb.Answer | None:
        """Forget an answer: the same key would be a new order. What was forgotten, if anything."""
        return self._answers.pop(key, None)

    def answers(self) -> tuple[pb.Answer, ...]:
        """All that is kept."""
        return tuple(self._answers.values())

    def held(self, run: str, site: str, protocol: int) -> pb.Held:
        """What somebody who connects is told first."""
        return pb.Held(
            protocol=protocol,
            run=run,
            site=site,
            at_work=self._at_work.values(),
            answered=[answer.id for answer in self._answers.values()],
        )
