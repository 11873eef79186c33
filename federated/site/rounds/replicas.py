"""SiteReplicas: what this site gives and holds, so that a lost site's clients can go on elsewhere.

A replica lies beside the states of this site's own clients, in the same file: states of other
clients, as of the replica's round. So they are there if those clients come to this site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from shutil import disk_usage
from typing import Any

from fedpilot.mediator import Payload
from fedpilot.mediator.core.assignment import members
from fedpilot.mediator.core.storage.disk import Space
from fedpilot.mediator.federation.futures import done

from ...core.population.shares import taken
from ...errors import RunRefused
from ..orders import Answer
from ..states.client_states import ClientStates
from ..states.layouts import Layout, Stack
from .graph_mixing import unlike

GIVEN, HELD, FREE, DROPPED = "replica", "replica_taken", "replica_room", "replicas_dropped"
"""Kinds of answers."""


class SiteReplicas:
    """The replicas of a run at one site."""

    def __init__(
        self,
        layout: Layout,
        population: int,
        states_of: Callable[[Mapping[str, Any]], ClientStates],
        path_of: Callable[[Mapping[str, Any]], Path],
        threads: Executor,
    ) -> None:
        """`states_of` gives the clients' states that an order works with, `path_of` their file."""
        self._layout = layout
        self._population = population
        self._states_of = states_of
        self._path_of = path_of
        self._threads = threads

    @property
    def handlers(self) -> Mapping[str, Callable[[Payload], Answer]]:
        """By kind of order."""
        return {
            "replica_room": self.room,
            "give_replica": self.give,
            "take_replica": self.hold,
            "drop_replicas": self.drop,
        }

    def room(self, order: Payload) -> Answer:
        """The bytes that are left where the states lie, beside those that a site keeps free."""
        found = disk_usage(self._path_of(order.header).parent)
        free = max(0, found.free - Space(found.total, found.free).kept_free)
        return done(lambda: Payload(kind=FREE, header={"free": free}))

    def give(self, order: Payload) -> Answer:
        """The states that an order's round left some clients here with."""
        states, number = self._states_of(order.header), order.header["round"]
        clients = members(taken(order.header["share"]))

        def give() -> Payload:
            return Payload(kind=GIVEN, tensors=states.load_stack(clients, number + 1).columns)

        return self._threads.submit(give)

    def hold(self, order: Payload) -> Answer:
        """Save such states of clients of another site."""
        states, number = self._states_of(order.header), order.header["round"]
        clients = members(taken(order.header["share"]))

        def hold() -> Payload:
            stack = Stack.zeros(self._layout, len(clients))
            columns = stack.columns
            wanted = {name: (like.dtype, like.shape) for name, like in columns.items()}
            problem = unlike(order.tensors, wanted, self._population)
            failed = ""
            if not problem:
                for name, column in order.tensors.items():
                    columns[name][...] = column
                try:
                    states.save_stack(number, clients, self._layout, [stack])
                except RunRefused as error:  # such as a full disk
                    failed = str(error)
            return Payload(kind=HELD, header={"problem": problem, "failed": failed})

        return self._threads.submit(hold)

    def drop(self, order: Payload) -> Answer:
        """Drop the states of clients that are not here, of the rounds before `before`."""
        states, before = self._states_of(order.header), order.header["before"]
        here = members(taken(order.header["share"]))

        def drop() -> Payload:
            states.forget_others(here, before)
            return Payload(kind=DROPPED)

        return self._threads.submit(drop)
