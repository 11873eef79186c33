"""ClientMemory: which file of clients' states a run works with, from order to order."""

from __future__ import annotations

from pathlib import Path

from ...core.population.sampling import Indices
from ...core.state import State
from .client_states import ClientStates


class ClientMemory:
    """Clients' states over the rounds of a run, in the one file that its orders name."""

    def __init__(self) -> None:
        self._open: tuple[Path, ClientStates] | None = None

    def of_round(
        self,
        path: Path,
        round_number: int,
        oldest_checkpoint: int,
        late: tuple[Indices, Indices] | None = None,
    ) -> ClientStates:
        """The states that a round begins with; RunRefused if the file lacks them.

        `late` names clients that sat out, (k,), and the round that left the state of each, (k,).
        """
        if self._open is None or self._open[0] != path:
            self.close()
            states = ClientStates(path)
            # Rows of this very round may belong to clients that the journal counts as done.
            states.forget_after(round_number)
            self._open = path, states
        states = self._open[1]
        if late is not None:
            states.forget_uncounted(*late)
        if oldest_checkpoint > 0:
            states.commit(oldest_checkpoint)
        return states

    def load(self, index: int, round_number: int) -> dict[int, State]:
        """What a client kept before a round, by its index; empty before any round was trained."""
        return {} if self._open is None else self._open[1].load([index], round_number)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._open is not None:
            self._open[1].close()
