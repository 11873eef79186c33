"""TopologyManager: who exchanges with whom on a federation's graph, and over which channel.

No process of its own answers: the graph is a function of the config, the same everywhere. The
user's process knows who has published what; the states lie at the sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedpilot.mediator import Payload

from ...core.lifecycle import NodeState
from ...core.state import State
from ...core.topology.edges import Edges
from ...core.topology.mixing import Mixing
from ...errors import FederatedError
from .publications import Publication, Publications, PublishingClients

if TYPE_CHECKING:
    from ...core.topology.graphs import Topology


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


class Clients(PublishingClients, Protocol):
    """What a TopologyManager needs of the clients."""

    @property
    def run(self) -> str:
        """With what keys of published states begin."""

    @property
    def round(self) -> int:
        """Rounds that the global model has seen."""

    def index_of(self, client_id: str) -> int:
        """The inverse; raises UnknownClient."""

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
    def _published(self) -> Publications:
        return Publications(self._clients)

    def publish(self, client_id: str, state: State, round_number: int | None = None) -> str:
        """Let those that take of a client in a round have a state of it; returns its key.

        The key is `<run>/<client>/round_<n>`; without a number the round is the next one. The state
        lies in the GlobalObjectStore of the client's site, until the client and all that take of it
        have read it, or the client publishes another one. Starts what is needed. Raises
        UnknownClient, and FederatedError for a state that is no model of the federation.
        """
        client, number = self._clients.index_of(client_id), self._number(round_number)
        key = f"{self._clients.run}/{client_id}/round_{number}"
        edges = self._edges(number)
        takers = edges.receivers[edges.sources == client].tolist()
        self._published.publish(client, number, key, state, [client, *takers])
        return key

    def published(self, client_id: str, by: str, round_number: int | None = None) -> State:
        """What a client has published for a round, for itself or for one that takes of it.

        This counts as having read it. Raises UnknownClient, NotANeighbor, StateGone, and
        FederatedError if the client has published nothing for that round.
        """
        reader, number = self._clients.index_of(by), self._number(round_number)
        if client_id != by and client_id not in self.neighbors(by, number):
            raise NotANeighbor(by, client_id)
        return self._published.read(self._publication(client_id, number), reader)

    def around(
        self, client_id: str, round_number: int | None = None
    ) -> list[tuple[Publication, int]]:
        """What a client mixes, its own state first, and the weight of each; reads no state.

        The client keeps the weights of neighbors that have published nothing for the round. Raises
        UnknownClient, and FederatedError if the client itself has published nothing.
        """
        own, number = self._clients.index_of(client_id), self._number(round_number)
        mine = self._publication(client_id, number)
        mixing = self._mixing_of(number)
        entries = slice(mixing.starts[own], mixing.starts[own + 1])
        sources, weights = mixing.sources[entries].tolist(), mixing.weights[entries].tolist()
        kept, found = 0, []
        for source, weight in zip(sources, weights, strict=True):
            publication = self._published.of(source, number)
            if source == own or publication is None:
                kept += weight
            else:
                found.append((publication, weight))
        return [(mine, kept), *found]

    def ask_with(self, client_id: str, order: Payload, read: Sequence[Publication]) -> Payload:
        """Have a client's site carry out an order that reads publications; raises StateGone."""
        return self._published.ask(self._clients.index_of(client_id), order, read)

    def _publication(self, client_id: str, number: int) -> Publication:
        found = self._published.of(self._clients.index_of(client_id), number)
        if found is None:
            raise FederatedError(f"{client_id} has published no state for round {number}")
        return found

    def _number(self, round_number: int | None) -> int:
        return self._clients.round + 1 if round_number is None else round_number

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
