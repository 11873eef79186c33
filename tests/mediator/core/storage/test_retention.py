"""A mediator keeps what its admin says, and what can be resumed for longer."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator.core.storage.retention import DAY_S, EndedRun, Retention, outlived

NOW = 100 * DAY_S


def run(id: str, days_ago: float, nbytes: int = 10, *, finished: bool = True) -> EndedRun:
    return EndedRun(id=id, ended_at=NOW - days_ago * DAY_S, nbytes=nbytes, finished=finished)


RUNS = (run("new", 1), run("stopped", 2, 1000, finished=False), run("mid", 3), run("old", 40))


@pytest.mark.parametrize(
    ("rules", "gone"),
    [
        pytest.param(Retention(), {}, id="nothing is said: all are kept"),
        pytest.param(
            Retention(days=30), {"old": "it ended more than 30 days ago"}, id="by its age"
        ),
        pytest.param(
            Retention(days=1.5),
            dict.fromkeys(("old", "mid", "stopped"), "it ended more than 1.5 days ago"),
            id="age counts for what can be resumed, too",
        ),
        pytest.param(
            Retention(runs=1),
            dict.fromkeys(("old", "mid"), "1 newer runs are kept"),
            id="by their number, of which what can be resumed is no part",
        ),
        pytest.param(
            Retention(nbytes=25),
            {"old": "with the newer runs it has more than 25 bytes"},
            id="by their size",
        ),
        pytest.param(
            Retention(runs=0), dict.fromkeys(("old", "mid", "new"), "0 newer runs are kept"),
            id="none",
        ),
    ],
)  # fmt: skip
def test_what_is_kept_no_longer(rules: Retention, gone: dict[str, str]) -> None:
    found = outlived(RUNS, NOW, rules)
    assert dict(found) == gone
    assert [id for id, _ in found] == [id for id in ("old", "mid", "stopped", "new") if id in gone]


SOME = st.lists(
    st.builds(
        run,
        st.uuids().map(str),
        st.floats(0, 100),
        st.integers(0, 100),
        finished=st.booleans(),
    ),
    max_size=12,
)


@given(SOME, st.integers(0, 5), st.integers(0, 300))
def test_what_is_left_is_within_the_rules_and_can_be_resumed_as_before(
    runs: list[EndedRun], number: int, nbytes: int
) -> None:
    gone = dict(outlived(runs, NOW, Retention(runs=number, nbytes=nbytes)))
    left = [each for each in runs if each.id not in gone]
    assert [each for each in runs if not each.finished] == [e for e in left if not e.finished]
    finished = [each for each in left if each.finished]
    assert len(finished) <= number
    assert sum(each.nbytes for each in finished) <= nbytes
    assert outlived(left, NOW, Retention(runs=number, nbytes=nbytes)) == ()
