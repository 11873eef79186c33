"""Plays one case of any kind."""

from __future__ import annotations

from typing import Any

from .case_schema import Case, FairshareCase, SettleCase, TimelineCase, VirtualClusterCase


def play(case: Case) -> dict[str, Any]:
    """The answer to a case, with its id. Only what its kind needs is imported."""
    match case:
        case SettleCase():
            from .replay import is_replay
            from .settling import replay_case, settle_case

            answer = replay_case(case) if is_replay(case) else settle_case(case)
        case TimelineCase():
            from .settling import timeline_case

            answer = timeline_case(case)
        case FairshareCase():
            from .divisions import fairshare_case

            answer = fairshare_case(case)
        case VirtualClusterCase():
            from .virtual_clusters import virtual_cluster_case

            answer = virtual_cluster_case(case)
        case _:
            raise TypeError(f"a case of the kind {case.kind!r}")
    return {"id": case.id, **answer}
