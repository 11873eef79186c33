"""CountedRounds: journals which clients counted in a round, where a clock decided, before use.

A repeated round reads the record and the late updates that counted, which cannot be trained again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.population.shares import Mask, unpacked
from ...core.rounds.participation import Counted, Rules
from ...core.sums.staleness import Late
from ...errors import RunRefused
from ..run_folder.folder import replace_text
from .gather import Answers
from .late_orders import read_late, write_late
from .site_orders import OrderForm


class CountedRounds:
    """The records of one run; `what` is `counted` (training), `judged` (evaluation) or `nodes`
    (evaluation of clients' own models)."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def write(
        self,
        what: str,
        query: OrderForm,
        whole: int,
        answers: Answers,
        counted: Any,
        late: Sequence[Late] = (),
    ) -> Counted:
        """Record which of the `whole` clients in a round's order counted."""
        sites: dict[str, int] = {}
        for each in answers.all:
            sites[each.part.site] = sites.get(each.part.site, 0) + each.clients
        number = query.round_number
        kept = write_late(self._late_of(number), late) if late else ()
        made = Counted(
            round_number=number,
            model=query.model.digest,
            whole=whole,
            clients=sum(sites.values()),
            counted=counted,
            sites=sites,
            reason=answers.reason,
            late=kept,
        )
        replace_text(self._path_of(what, number), json.dumps(made.to_json()) + "\n")
        return made

    def read(self, what: str, round_number: int, model: str) -> Counted | None:
        """The clients that counted when this round ran before, if a clock decided that.

        Raises RunRefused if the record is corrupt or of another model.
        """
        path = self._path_of(what, round_number)
        found = self._read(path)
        if found is not None and found.model != model:
            raise RunRefused(
                f"{path} says which clients counted after model {found.model[:12]}, and this is "
                f"{model[:12]}: the run before this one came to another model"
            )
        return found

    def mask(self, what: str, round_number: int, whole: int) -> Mask | None:
        """The clients in a record that is a bitmap of the cohort; None without a record."""
        found = self._read(self._path_of(what, round_number))
        return None if found is None else unpacked(found.counted, whole)

    def late(self, counted: Counted | None) -> list[Late]:
        """The late updates that counted too; raises RunRefused if they are missing."""
        if counted is None:
            return []
        return read_late(self._late_of(counted.round_number), counted.late)

    def _read(self, path: Path) -> Counted | None:
        """A record, if there is one; raises RunRefused if it is corrupt."""
        if not path.exists():
            return None
        try:
            values = json.loads(path.read_text())
        except ValueError:
            values = None
        return Counted.from_json(values, str(path))

    def _path_of(self, what: str, round_number: int) -> Path:
        return self._journal / f"round-{round_number:06d}.{what}.json"

    def _late_of(self, round_number: int) -> Path:
        return self._journal / f"round-{round_number:06d}.late.safetensors"


def as_counted(counted: Counted, rules: Rules) -> Rules:
    """Rules for a repeated query: exactly the clients that counted must answer."""
    whole = counted.clients
    return Rules(whole=whole, enough=whole, least=whole, wait_s=rules.wait_s)
