"""TopologyManager: who exchanges with whom on a federation's graph, and over which channel.

No process of its own answers: the graph is a function of the config, the same everywhere. States
that clients publish lie in the user's process, where single clients' results come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..core.lifecycle import NodeState
from ..core.state import State
from ..core.topology.edges import Edges
from ..core.topology.mixing import Mixing
from ..errors import FederatedError
from .published_states import PublishedStates

if TYPE_CHECKING:
    from ..core.topology.graphs import Topology


class Channel(StrEnum):
    """How a client's model reaches a neighbor."""

    INSIDE = "inside"
    """In the memory of their site."""
    CROSSING = "crossing"
    """From one site to another, through the mediator if there is one."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a client is."""

    site: str
    """Empty before the start."""
    worker: str = ""
    """That hosts its node, such as `worker 1`; empty unless the node is materialized."""

    @property
    def vnode(self) -> int | None:
        """The place of the worker's vnode in the gang of its site; each vnode has one worker."""
        return int(self.worker.rpartition(" ")[2]) if self.worker else None


class NotANeighbor(FederatedError):
    """A client asked for the state of one that gives it nothing."""

    def __init__(self, client_id: str, other: str) -> None:
        super().__init__(client_id, other)
        self.client_id, self.other = client_id, other

    def __str__(self) -> str:
        return f"{self.other} is no neighbor of {self.client_id}, which gets none of its states"


class Clients(Protocol):
    """What a TopologyManager needs of the clients."""

    def client_id(self, index: int) -> str:
        """The id of a client."""

    def index_of(self, client_id: str) -> int:
        """The inverse; raises UnknownClient."""

    def site_of(self, index: int) -> str:
        """The site of a client; empty before clients are assigned."""

    def show(self, index: int) -> Mapping[str, Any]:
        """The state of a client's node; starts nothing."""


class TopologyManager:
    """The graph of clients that are all at one site."""

    def __init__(
        self, graphs: Topology, clients: Clients, mixing_of: Callable[[int], Mixing]
    ) -> None:
        """`mixing_of` gives the weights of a round."""
        self._graphs = graphs
        self._clients = clients
        self._mixing_of = mixing_of
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
        here = self._site(one) == self._site(other)
        return Channel.INSIDE if here else Channel.CROSSING

    def locate(self, client_id: str) -> Location:
        """Where a client is, and its node's worker once it is materialized; starts nothing.

        Raises UnknownClient.
        """
        site, shown = self._site(client_id), self._clients.show(self._clients.index_of(client_id))
        there = shown["state"] == NodeState.MATERIALIZED
        return Location(site, str(shown["worker"]) if there else "")

    def _site(self, client_id: str) -> str:
        return self._clients.site_of(self._clients.index_of(client_id))

    # -- states -----------------------------------------------------------------------------------

    @cached_property
    def _published(self) -> PublishedStates:
        return PublishedStates()

    def publish(self, client_id: str, state: State) -> str:
        """Let a client's neighbors have a state of it; returns its key, the digest.

        It replaces the client's earlier one. Raises UnknownClient.
        """
        return self._published.publish(self._clients.index_of(client_id), state)

    def published(self, client_id: str, by: str, round_number: int = 1) -> State:
        """What a client has published last, for itself or for a client that takes of it.

        Raises UnknownClient, NotANeighbor, and FederatedError if it has published nothing.
        """
        if client_id != by and client_id not in self.neighbors(by, round_number):
            raise NotANeighbor(by, client_id)
        client = self._clients.index_of(client_id)
        if self._published.digest_of(client) is None:
            raise FederatedError(f"{client_id} has published no state")
        return self._published.of(client)

    def around(self, client_id: str, round_number: int = 1) -> list[tuple[State, int]]:
        """The states that a client mixes, its own among them, and the weight of each.

        The client keeps the weights of neighbors that have published nothing. Raises as
        `published`.
        """
        own = self._clients.index_of(client_id)
        self.published(client_id, client_id)
        mixing = self._mixing_of(round_number)
        entries = slice(mixing.starts[own], mixing.starts[own + 1])
        sources = mixing.sources[entries].tolist()
        weights = dict(zip(sources, mixing.weights[entries].tolist(), strict=True))
        there = [each for each in sources if self._published.digest_of(each) is not None]
        weights[own] += sum(weights[each] for each in sources if each not in there)
        return [(self._published.of(each), weights[each]) for each in there]

    def close(self) -> None:
        """Drop what was published; may be called twice."""
        self._published.close()

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

    def _site(self, client_id: str) -> str:
        """The site of a client; raises RuntimeError before the start."""
        if not (site := super()._site(client_id)):
            raise RuntimeError("clients are assigned once the gang is reserved: call `start` first")
        return site
