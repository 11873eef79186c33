"""Spending: bytes of models and updates by day and by round, as far as the policy limits them.

What is about to cross is booked before it does, in a file, so that an agent which is killed in
between has not forgotten it.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

from ..core.policy import DAY_S, ByteCaps, Policy, Refused, Spent, judge_bytes
from ..core.traffic import Direction
from ..identity.files import SECRET, write_text

log = logging.getLogger(__name__)

ROUNDS = 1_000
"""The rounds that are remembered, the last of them."""


class Spending:
    """The books of one site."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._day = 0
        self._today: dict[str, int] = {}
        self._rounds: dict[str, dict[str, int]] = {}
        with suppress(FileNotFoundError):
            self._read()

    def charge(
        self,
        policy: Policy,
        direction: Direction,
        *,
        run: str,
        round_number: int,
        nbytes: int,
        now: float,
    ) -> Refused | None:
        """Book bytes that are about to cross, unless that is more than may. `now`: epoch seconds.

        What the policy does not limit is not booked.
        """
        if policy.bytes_per_day == policy.bytes_per_round == ByteCaps():
            return None
        day = int(now // DAY_S)
        if day != self._day:
            self._day, self._today = day, {}
        key = f"{run}/{round_number}"
        in_round = self._rounds.get(key, {}).get(direction, 0)
        spent = Spent(in_round=in_round, today=self._today.get(direction, 0))
        refused = judge_bytes(policy, direction, spent, nbytes)
        if refused is None:
            self._today[direction] = spent.today + nbytes
            self._rounds.setdefault(key, {})[direction] = in_round + nbytes
            while len(self._rounds) > ROUNDS:
                del self._rounds[next(iter(self._rounds))]
            self._write()
        return refused

    def _read(self) -> None:
        try:
            found = json.loads(self._path.read_text())
            self._day = int(found["day"])
            self._today = {str(name): int(count) for name, count in found["today"].items()}
            self._rounds = {
                str(key): {str(name): int(count) for name, count in counts.items()}
                for key, counts in found["rounds"].items()
            }
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("%s is damaged and begun anew: %s", self._path, error)

    def _write(self) -> None:
        document = {"day": self._day, "today": self._today, "rounds": self._rounds}
        write_text(self._path, json.dumps(document), SECRET)
