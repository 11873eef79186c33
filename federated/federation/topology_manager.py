"""TopologyManager: who exchanges with whom on a federation's graph, and over which channel.

No process of its own answers: the graph is a function of the config, the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..core.topology.edges import Edges

if TYPE_CHECKING:
    from ..core.topology.graphs import Topology


class Channel(StrEnum):
    """How a client's model reaches a neighbor."""

    INSIDE = "inside"
    """In the memory of their site."""
    CROSSING = "crossing"
    """From one site to another, through the mediator if there is one."""


class Clients(Protocol):
    """What a TopologyManager needs of the clients."""

    def client_id(self, index: int) -> str:
        """The id of a client."""

    def index_of(self, client_id: str) -> int:
        """The inverse; raises UnknownClient."""


class TopologyManager:
    """The graph of clients that are all at one site."""

    def __init__(self, graphs: Topology, clients: Clients) -> None:
        self._graphs = graphs
        self._clients = clients
        self._last: tuple[int, Edges] | None = None

    @property
    def changes(self) -> bool:
        """Whether each round has another graph."""
        return self._graphs.changes

    def neighbors(self, client_id: str, round_number: int = 1) -> tuple[str, ...]:
        """The clients whose models this one mixes into its own, by their places.

        Raises UnknownClient.
        """
        edges, client = self._edges(round_number), self._clients.index_of(client_id)
        first, last = np.searchsorted(edges.receivers, (client, client + 1))
        return tuple(map(self._clients.client_id, edges.sources[first:last].tolist()))

    def edges(self, round_number: int = 1) -> Iterator[tuple[str, str]]:
        """(who gives, who takes) of each edge; both directions if they exchange."""
        edges, name = self._edges(round_number), self._clients.client_id
        for source, receiver in zip(edges.sources.tolist(), edges.receivers.tolist(), strict=True):
            yield name(source), name(receiver)

    def channel(self, one: str, other: str) -> Channel:
        """How the model of one client would reach another one; raises UnknownClient."""
        here = self.locate(one) == self.locate(other)
        return Channel.INSIDE if here else Channel.CROSSING

    def locate(self, client_id: str) -> str:
        """The site of a client; empty, since there is one. Raises UnknownClient."""
        self._clients.index_of(client_id)
        return ""

    def _edges(self, round_number: int) -> Edges:
        if round_number < 1:
            raise ValueError(f"rounds count from 1, found {round_number}")
        number = round_number if self.changes else 1
        last = self._last
        if last is None or last[0] != number:
            self._last = last = number, self._graphs.of_round(number)
        return last[1]


class HybridTopologyManager(TopologyManager):
    """The graph of clients at several sites."""

    def __init__(self, graphs: Topology, clients: Clients, site_of: Callable[[int], str]) -> None:
        """`site_of` gives the site of a client by its place; empty before clients are assigned."""
        super().__init__(graphs, clients)
        self._site_of = site_of

    def locate(self, client_id: str) -> str:
        """The site of a client; raises UnknownClient, and RuntimeError before the start."""
        site = self._site_of(self._clients.index_of(client_id))
        if not site:
            raise RuntimeError("clients are assigned once the gang is reserved: call `start` first")
        return site
