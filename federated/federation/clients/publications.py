"""Publications: who of a graph's clients has published which state; the states lie at the sites.

What a client's site has not got is fetched from the site of the client that published it, once for
all readers at that site.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from fedpilot.mediator import Payload

from ...core.state import State
from ...errors import FederatedError
from ...site.published_states import LACKING


class PublishingClients(Protocol):
    """What Publications need of the clients."""

    def client_id(self, index: int) -> str:
        """The id of a client."""

    def site_of(self, index: int) -> str:
        """The site of a client; empty before clients are assigned."""

    def model_or(self, model: State | None) -> tuple[str, State]:
        """The digest and the tensors of a state; FederatedError if it is no model's."""

    def ask_node(self, index: int, order: Payload) -> Future[Payload]:
        """Send a client's order to its site; starts what that needs."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What a client has published for a round."""

    client: int
    round_number: int
    key: str
    digest: str
    readers: tuple[int, ...]
    """The client, and those that take of it."""


class StateGone(FederatedError):
    """A published state is at its site no more."""

    def __init__(self, client_id: str, round_number: int) -> None:
        super().__init__(client_id, round_number)
        self.client_id, self.round_number = client_id, round_number

    def __str__(self) -> str:
        return (
            f"what {self.client_id} published for round {self.round_number} is gone: all that take "
            "of it have read it, or its site has lost it; publish it again"
        )


class Publications:
    """The latest publication of each client; methods may be called from any thread."""

    def __init__(self, clients: PublishingClients) -> None:
        self._clients = clients
        self._latest: dict[int, Publication] = {}
        self._fetching = threading.Lock()

    def publish(
        self, client: int, round_number: int, key: str, state: State, readers: Sequence[int]
    ) -> None:
        """Put a state at the client's site, for these readers, instead of an earlier one.

        Raises FederatedError for a state that is no model of the federation.
        """
        digest, state = self._clients.model_or(state)
        made = Publication(client, round_number, key, digest, tuple(readers))
        self._keep(made, client, made.readers, state)
        self._latest[client] = made

    def of(self, client: int, round_number: int) -> Publication | None:
        """What a client has published last, if it is for this round."""
        found = self._latest.get(client)
        return found if found is not None and found.round_number == round_number else None

    def read(self, publication: Publication, reader: int) -> State:
        """A state, at the site of one of its readers; raises as `ask`."""
        order = _give(publication, reader, (reader,))
        return self.ask(reader, order, (publication,)).tensors

    def ask(self, reader: int, order: Payload, read: Sequence[Publication]) -> Payload:
        """Have a client's site carry out an order that reads publications.

        What that site lacks is fetched before. Raises StateGone, and what sites raise.
        """
        answer = self._ask(reader, order)
        if answer.kind == LACKING:
            with self._fetching:
                answer = self._ask(reader, order)  # another thread may have fetched the same
                for each in _named(answer, read):
                    self._fetch(each, reader)
                if answer.kind == LACKING:
                    answer = self._ask(reader, order)
        if answer.kind == LACKING:
            each = next(iter(_named(answer, read)), read[0])
            raise StateGone(self._clients.client_id(each.client), each.round_number)
        return answer

    def _fetch(self, wanted: Publication, reader: int) -> None:
        """Copy a state to a reader's site, for all of its readers there."""
        clients = self._clients
        site = clients.site_of(reader)
        here = tuple(each for each in wanted.readers if clients.site_of(each) == site)
        found = self._ask(wanted.client, _give(wanted, wanted.client, here))
        # Those that are no more to come at the other site have read it.
        readers = [each for each in here if each in found.header.get("readers", ())]
        if found.kind == LACKING or not readers:
            raise StateGone(clients.client_id(wanted.client), wanted.round_number)
        self._keep(wanted, reader, readers, found.tensors)

    def _keep(self, made: Publication, at: int, readers: Sequence[int], state: State) -> None:
        header = {"of": made.client, "key": made.key, "digest": made.digest}
        header |= {"client": at, "readers": list(readers)}
        self._ask(at, Payload(kind="node.keep", header=header, tensors=state))

    def _ask(self, client: int, order: Payload) -> Payload:
        return self._clients.ask_node(client, order).result()


def _give(wanted: Publication, at: int, readers: Sequence[int]) -> Payload:
    header: dict[str, Any] = {"client": at, "key": wanted.key, "digest": wanted.digest}
    return Payload(kind="node.give", header={**header, "readers": list(readers)})


def _named(answer: Payload, read: Sequence[Publication]) -> list[Publication]:
    """The publications that an answer says are lacking; none if it is another answer."""
    if answer.kind != LACKING:
        return []
    keys = answer.header.get("keys", [])
    return [each for each in read if each.key in keys]
