"""Finds differences between a run's workers that can change bits, in what the workers report.

Neither the number nor the place of workers changes a result, since sums are exact and cohorts are
drawn. But the last bits of a client's training depend on the build of PyTorch, the CPU type and the
number of threads. A fact that a worker does not report counts as different.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpilot.common.text.amounts import listed

DECIDES_BITS = (
    *("torch", "numpy", "numba", "cpu_capability", "cpu_kind", "instructions", "threads"),
    "device",
)
"""Facts on which a worker's arithmetic depends."""
ALL = "all"
"""`instructions` of a worker that disables no instruction set or does not report it."""
SHOWN = 3
"""Workers named per value, and values named per fact."""

Facts = Mapping[str, Any]
"""Facts that a worker reports, such as `{"torch": "2.7.1", "threads": 1}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A fact of a worker that no earlier worker shares."""

    worker: str
    what: str
    """One of `DECIDES_BITS`."""
    found: str
    others: tuple[str, ...]
    """The values of earlier workers, sorted."""


class EnvironmentDiff:
    """The workers of a run so far; reports each difference once."""

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {what: set() for what in DECIDES_BITS}

    def joined(self, worker: str, facts: Facts) -> tuple[Difference, ...]:
        """Add a worker; return its differences from earlier workers."""
        new = []
        for what, value in _deciding(facts).items():
            known = self._found[what]
            if known and value not in known:
                others = tuple(sorted(known))
                new.append(Difference(worker=worker, what=what, found=value, others=others))
            known.add(value)
        return tuple(new)


def unlike(reference: Facts, facts: Facts) -> str:
    """How a worker differs from the reference, in words; empty if it does not."""
    wanted = _deciding(reference)
    return ", ".join(
        f"{what} is {value}, not {wanted[what]}"
        for what, value in _deciding(facts).items()
        if value != wanted[what]
    )


def differing(workers: Mapping[str, Facts]) -> str:
    """The facts that differ among workers, with the workers of each value; empty if none."""
    said = {name: _deciding(workers[name]) for name in sorted(workers)}
    parts = []
    for what in DECIDES_BITS:
        by_value: dict[str, list[str]] = {}
        for name, facts in said.items():
            by_value.setdefault(facts[what], []).append(name)
        if len(by_value) > 1:
            having = [
                f"{value} ({listed(names, SHOWN)})" for value, names in sorted(by_value.items())
            ]
            parts.append(f"{what}: {listed(having, SHOWN)}")
    return "; ".join(parts)


def _deciding(facts: Facts) -> dict[str, str]:
    known = {"instructions": ALL, **facts}
    return {what: str(known.get(what, "not said")) for what in DECIDES_BITS}
