"""FreeSpace: which parts of a file hold nothing, and where new rows go."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]


class FreeSpace:
    """The holes between parts in use; what lies behind the last part is free without end."""

    def __init__(self, offsets: Offsets, lengths: Offsets) -> None:
        """The parts in use do not overlap; their order does not matter."""
        order = np.argsort(offsets, kind="stable")
        begins, ends = offsets[order], (offsets + lengths)[order]
        self._begins = np.concatenate([[0], ends]).astype(np.int64)
        """Of the holes and of the free end, which comes last; neither overlap nor touch."""
        self._ends = np.concatenate([begins, [np.iinfo(np.int64).max]]).astype(np.int64)
        self._drop_empty()

    @property
    def end(self) -> int:
        """Where the last part in use ends."""
        return int(self._begins[-1])

    def take(self, count: int, length: int) -> Offsets:
        """Offsets of `count` parts that are in use from now on: holes first, from the front."""
        fit = np.minimum((self._ends - self._begins) // length, count)
        taken = np.diff(np.minimum(np.cumsum(fit), count), prepend=0)
        first = np.repeat(self._begins, taken)
        number = np.arange(count) - np.repeat(np.cumsum(taken) - taken, taken)
        self._begins = self._begins + taken * length
        self._drop_empty()
        places: Offsets = first + number * length
        return places

    def give(self, offsets: Offsets, lengths: Offsets) -> None:
        """These parts are no longer in use."""
        begins = np.concatenate([self._begins, offsets])
        ends = np.concatenate([self._ends, offsets + lengths])
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], ends[order]
        parted = np.flatnonzero(begins[1:] != ends[:-1])
        self._begins = begins[np.concatenate([[0], parted + 1])]
        self._ends = ends[np.concatenate([parted, [len(ends) - 1]])]
        self._drop_empty()

    def _drop_empty(self) -> None:
        some = self._ends > self._begins
        self._begins, self._ends = self._begins[some], self._ends[some]
