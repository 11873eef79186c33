"""Which blobs at a site no run needs any more: pure bookkeeping, of an agent's own memory.

The last models of a run stay, since the next order mostly names one of them: a round is evaluated
with the model that the next round begins with. An answer is needed until it was taken. When a run
has ended at the site, nothing of it is needed; whoever resumes it sends its model anew.
"""

from __future__ import annotations

from ...wire.messages import RunId

KEPT = 2
"""Models of a run that stay between its orders."""


class RunBlobs:
    """The models that runs have used here, by digest, the latest last."""

    def __init__(self) -> None:
        self._used: dict[RunId, list[str]] = {}

    def used(self, run: RunId, digest: str) -> tuple[str, ...]:
        """Record that an order used a model. Returns the digests that may be removed."""
        digests = [each for each in self._used.get(run, ()) if each != digest]
        self._used[run] = [*digests, digest][-KEPT:]
        return self._unused([*digests, digest][:-KEPT])

    def ended(self, run: RunId) -> tuple[str, ...]:
        """Forget a run. Returns the digests that may be removed."""
        return self._unused(self._used.pop(run, []))

    def _unused(self, digests: list[str]) -> tuple[str, ...]:
        needed = {digest for each in self._used.values() for digest in each}
        return tuple(digest for digest in digests if digest not in needed)
