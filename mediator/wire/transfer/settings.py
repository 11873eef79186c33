"""TransferSettings: how patient a transfer is, and in what steps it goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """How patient a transfer is, and in what steps it goes."""

    piece_bytes: int = 1 << 20
    stall_s: float = 20.0
    """A stream is broken when a piece takes so much longer than at the slowest rate."""
    floor_s: float = 180.0
    """How long no byte may get through; outlives a link that is cut for a minute or two."""
    slowest_bytes_per_s: float = 16 * 1024
    """The slowest stream that is served, which bounds the time for a piece and for a stream. A link
    of 1 Mbit/s has room for seven."""
    waiting_bytes: int = 64 << 20
    """Bytes in memory that wait to be written, over all streams; beyond that, a piece of each."""
    at_once: int = 16
    """Streams of one site; far fewer than the calls that a mediator lets it have open."""
    attempts: int = 8
    """Streams that may break one after the other without a byte having got through."""
    corrupt_attempts: int = 3
    """Times that a blob may arrive with another digest."""
    first_pause_s: float = 0.2
    """Before the second attempt; doubles up to `longest_pause_s`."""
    longest_pause_s: float = 5.0

    @property
    def piece_s(self) -> float:
        """Seconds that one piece may take."""
        return self.stall_s + self.piece_bytes / self.slowest_bytes_per_s

    def total_s(self, nbytes: int) -> float:
        """Seconds that the other end may keep one stream of so many bytes open."""
        return self.floor_s + nbytes / self.slowest_bytes_per_s

    def pause_s(self, failures: int, chance: float) -> float:
        """Seconds to wait after so many failures in a row; `chance` in [0, 1) spreads the sites."""
        doubled = self.first_pause_s * 2.0 ** min(failures - 1, 30)
        return min(self.longest_pause_s, doubled) * (0.5 + 0.5 * chance)


USUAL = TransferSettings()
