"""The events that sites may report: their kinds, and the fields of each.

A site reports only what it alone can know: its own workers and its progress. All other events come
from the coordinator. Unknown fields are dropped, since a newer site may send them; a field that is
missing or has another type makes the whole event invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpilot.common.text.plain_text import plain_lines

from ...errors import FederatedError

MOST = 1 << 53
"""Upper limit of every count."""
MOST_WORKERS = 10_000
LONGEST_TEXT = 2_000
"""Characters of a text that are passed on."""
MOST_TEXTS = 100


class NotBelieved(FederatedError):
    """A site sent an event that it may not report."""


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MOST else None


def _amount(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value < MOST else None


def _niceness(value: Any) -> int | None:
    return value if type(value) is int and -20 <= value <= 19 else None


def _worker(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MOST_WORKERS else None


def _text(value: Any) -> str | None:
    return plain_lines(value[:LONGEST_TEXT]) if isinstance(value, str) else None


def _texts(value: Any) -> list[Any] | None:
    texts: list[Any] = (
        [_text(each) for each in value[:MOST_TEXTS]] if isinstance(value, list) else [None]
    )
    return None if None in texts else texts


@dataclass(frozen=True, slots=True)
class _Kind:
    """By field: a check that returns the value to pass on, or None for an invalid one."""

    needed: Mapping[str, Callable[[Any], Any]]
    more: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


_ENVIRONMENT = (
    *("torch", "numpy", "numba", "ray", "cpu_capability", "cpu_kind", "instructions", "device"),
    "compiles",
)
KINDS: Mapping[str, _Kind] = {
    "worker_ready": _Kind(
        {"site": _text, "worker": _worker},
        {
            **{"pid": _count, "host": _text, "threads": _count, "vnode_class": _text},
            **dict.fromkeys(_ENVIRONMENT, _text),
        },
    ),
    "workers_starting": _Kind(
        {"site": _text, "up": _count, "of": _count, "seconds": _amount},
        {"within": _amount, "load": _amount, "cpus": _count, "niceness": _niceness},
    ),
    "gang_notice": _Kind({"site": _text, "seconds": _amount, "reason": _text}),
    "gang_preempted": _Kind({"site": _text, "reason": _text}),
    "gang_regained": _Kind({"site": _text, "workers": _worker}),
    "worker_joined": _Kind({"site": _text, "worker": _worker}),
    "worker_notice": _Kind(
        {"site": _text, "worker": _worker, "reason": _text}, {"seconds": _amount}
    ),
    "worker_left": _Kind({"site": _text, "worker": _worker, "reason": _text, "held": _texts}),
    "worker_lost": _Kind({"site": _text, "worker": _worker, "reason": _text, "held": _texts}),
    "clients_done": _Kind(
        {"site": _text, "round": _count, "done": _count, "of": _count, "part": _text}
    ),
    "clients_printed": _Kind({"site": _text, "round": _count, "clients": _texts, "texts": _texts}),
}


def believed(kind: str, header: Mapping[str, Any]) -> dict[str, Any]:
    """The checked fields of a site's event; raises NotBelieved."""
    if (known := KINDS.get(kind)) is None:
        raise NotBelieved(f"{kind!r:.60} is no event that a site may report")
    if missing := sorted(known.needed.keys() - header.keys()):
        raise NotBelieved(f"{kind} lacks {missing[0]!r}")
    checks, fields = {**known.needed, **known.more}, {}
    for name in [each for each in header if each in checks]:
        if (value := checks[name](header[name])) is None:
            raise NotBelieved(f"{name!r} of {kind} cannot be {header[name]!r:.60}")
        fields[name] = value
    if kind == "clients_printed" and len(fields["clients"]) != len(fields["texts"]):
        raise NotBelieved("clients_printed needs as many texts as clients")
    if kind == "clients_done" and fields["done"] > fields["of"]:
        raise NotBelieved(f"{fields['done']} of {fields['of']} clients cannot be done")
    return fields


class Allowance:
    """Rate limit: a burst, then so many events per second."""

    def __init__(self, per_s: float, at_once: float, now: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left, self._at = at_once, now

    def takes(self, now: float) -> bool:
        """Count one more event; return whether it is allowed."""
        self._left = min(self._at_once, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
