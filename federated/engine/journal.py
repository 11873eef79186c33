"""A site's part of the current round on disk: the exact Partial so far, and its clients.

A successor trains only the other clients. The one file is replaced atomically, when the unsaved
work is worth the write; without fsync, so it survives the death of any process but not a power cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.rounds.journaling import worth_saving
from ..core.state import Array, nbytes
from ..core.sums.partial import Partial
from ..errors import RunRefused
from .tensor_files import read_tensors, write_tensors

FORMAT = 1
ASSUMED_BYTES_PER_S = 500e6
ASSUMED_WRITE_S = 1e-3


@dataclass(frozen=True, slots=True)
class RoundKey:
    """The attempt and round of a Partial."""

    round_number: int
    model: str
    """Digest of the round's global model."""
    coarser: int
    """Bits by which the grid was coarsened."""
    part: str = ""
    """The round's clients in it (`part_name`)."""

    def to_json(self) -> dict[str, Any]:
        named = {"round": self.round_number, "model": self.model, "coarser": self.coarser}
        return {**named, "part": self.part}


class Journal:
    """The journal of one site; without a folder it keeps nothing."""

    def __init__(
        self, folder: str | None, site: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._folder = folder
        self._site = site
        self._path = Path(folder) / f"{site}.safetensors" if folder is not None else None
        self._clock = clock
        self._write_s: float | None = None
        self._known = False
        self._holds: dict[str, Any] | None = None
        """The key in the file, once known; only this object writes the file."""

    def at(self, folder: str | None) -> Journal:
        """This journal if it is in that folder, otherwise the folder's."""
        return self if folder == self._folder else Journal(folder, self._site, self._clock)

    def recover(self, key: RoundKey) -> tuple[Partial, npt.NDArray[np.int64]] | None:
        """A predecessor's Partial of this very round and the clients in it, if saved."""
        if self._path is None or (self._known and self._holds != key.to_json()):
            return None
        if not self._path.exists():
            self._known = True
            return None
        try:
            header, tensors = read_tensors(self._path)
        except RunRefused:  # corrupted by a power cut: its work is done again
            return None
        self._known, self._holds = True, header.get("key")
        if header.get("format") != FORMAT or self._holds != key.to_json():
            return None
        done = tensors.pop("done")
        partial = Partial.from_wire(header["partial"], tensors)
        partial.earlier.update({int(step): n for step, n in header.get("earlier", {}).items()})
        return partial, done

    def worth(self, unsaved_s: float, partial: Partial) -> bool:
        """Whether so many seconds of unsaved work justify collecting and writing the sum."""
        return self._path is not None and worth_saving(unsaved_s, self._cost(partial))

    def save(self, key: RoundKey, partial: Partial, done: npt.NDArray[np.int64]) -> None:
        """Write the sum so far, and its clients."""
        if self._path is None:
            return
        header, tensors = partial.to_wire()
        started = self._clock()
        write_tensors(
            self._path,
            {**tensors, "done": done},
            {"format": FORMAT, "key": key.to_json(), "partial": header, "earlier": partial.earlier},
        )
        self._write_s = self._clock() - started
        self._known, self._holds = True, key.to_json()

    def _cost(self, partial: Partial) -> float:
        """Seconds to fetch the workers' sums and to write their total, which cost alike."""
        if self._write_s is not None:
            return 2 * self._write_s
        arrays: list[Array] = [*partial.sums.values(), *partial.largest.values()]
        held = nbytes(arrays) + (partial.updates.nbytes if partial.updates is not None else 0)
        return 2 * (ASSUMED_WRITE_S + held / ASSUMED_BYTES_PER_S)
