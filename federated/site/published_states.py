"""PublishedStates: the states that single clients of a graph have published, at a reader's site.

A state is put under a key at the site of the client that publishes it, for the clients that take of
that one. A site whose clients read what lies elsewhere gets it once, for all of them: the other
site gives it, with its readers at this site, and waits for these no more. At each site a state goes
with its last reader.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from fedpilot.mediator import Payload
from fedpilot.mediator.federation.futures import done

from ..core.proof.node_check import check_like
from ..core.state import State
from .object_store import GlobalObjectStore
from .orders import Answer

LACKING, GIVEN, KEPT = "lacking", "given", "kept"
"""Kinds of answers: keys that are not here; a state, with those of its readers that were still to
come; a state is kept."""
Wanted = Sequence[tuple[str, str]]
"""Key and digest of each state."""


class PublishedStates:
    """Handles the orders about published states; methods may be called from any thread."""

    def __init__(self, store: GlobalObjectStore, model: State) -> None:
        """`model` is any model of the federation: all states have its names, types and shapes."""
        self._store, self._model = store, model
        self._keys: dict[int, str] = {}
        """By client: the key of what it has published last."""
        self._lock = threading.Lock()

    def keep(self, order: Payload) -> Answer:
        """Keep a state for its readers, instead of what the same client has published before.

        Raises AnswerRefused for a state that is no model of the federation.
        """
        header, state = order.header, order.tensors
        check_like(state, self._model)
        key, digest = header["key"], header["digest"]
        if digest not in self._store:  # the sender of an order in this process may write to it
            state = {name: np.array(array) for name, array in state.items()}
        with self._lock:
            self._store.put(key, state, known=digest, readers=header["readers"])
            before, self._keys[header["of"]] = self._keys.get(header["of"], key), key
            if before != key:
                self._store.delete(before)
        return done(Payload, kind=KEPT)

    def give(self, order: Payload) -> Answer:
        """Answer with a state, and wait for the readers in the order no more."""
        key, digest = order.header["key"], order.header["digest"]
        if lacking := self.lacking([(key, digest)]):
            return done(Payload, kind=LACKING, header={"keys": lacking})
        state = self._store.get(digest)
        came = sorted(self._store.finish(key, order.header["readers"]))
        return done(Payload, kind=GIVEN, header={"readers": came}, tensors=state)

    def lacking(self, wanted: Wanted) -> list[str]:
        """The keys that have no such state here."""
        return [key for key, digest in wanted if self._store.digest_of(key) != digest]

    def read(self, wanted: Wanted) -> list[State]:
        """The states; FederatedError if one is missing."""
        return [self._store.get(digest) for _, digest in wanted]

    def finish(self, wanted: Wanted, reader: int) -> None:
        """Count off one of the states' readers."""
        for key, _ in wanted:
            self._store.finish(key, [reader])
