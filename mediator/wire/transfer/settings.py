"""TransferSettings: how patient a transfer is, and in what steps it goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """How patient a transfer is, and in what steps it goes."""

    piece_bytes: int = 1 << 20
    stall_s: float = 20.0
    """A stream is broken if a piece takes this much longer than at the slowest rate."""
    floor_s: float = 180.0
    """How long no byte may cross; longer than a link cut of a minute or two."""
    slowest_bytes_per_s: float = 16 * 1024
    """The slowest stream served; bounds a piece's and a stream's time. 1 Mbit/s carries seven."""
    waiting_bytes: int = 64 << 20
    """Bytes in memory that wait to be written, over all streams; beyond it, one piece each."""
    at_once: int = 16
    """Streams of one site, far fewer than its open calls that a mediator allows."""
    attempts: int = 8
    """Streams that may break in a row without progress."""
    corrupt_attempts: int = 3
    """Times that a blob may arrive with a wrong digest."""
    first_pause_s: float = 0.2
    """Before the second attempt; doubles up to `longest_pause_s`."""
    longest_pause_s: float = 5.0

    @property
    def piece_s(self) -> float:
        """Seconds that one piece may take."""
        return self.stall_s + self.piece_bytes / self.slowest_bytes_per_s

    def total_s(self, nbytes: int) -> float:
        """Seconds that the other end may keep a stream of `nbytes` open."""
        return self.floor_s + nbytes / self.slowest_bytes_per_s

    def pause_s(self, failures: int, chance: float) -> float:
        """Seconds to wait after `failures` in a row; `chance` in [0, 1) spreads the sites."""
        doubled = self.first_pause_s * 2.0 ** min(failures - 1, 30)
        return min(self.longest_pause_s, doubled) * (0.5 + 0.5 * chance)


USUAL = TransferSettings()
