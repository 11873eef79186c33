"""Words for people: short, and the same wherever they are said."""

from __future__ import annotations

import pytest

from cluster_documents import NOW, printed, shared
from fedpilot.common.text.amounts import duration, ordinal
from fedpilot.fabric.cli.terminal.explain import sentences
from fedpilot.fabric.cli.terminal.tables import cluster_details
from fedpilot.fabric.cli.terminal.tree import picture


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (7200, "2 h"),
        (90_000, "1 d 1 h"),
        (-5, "0 s"),
    ],
)
def test_durations_are_short(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_ordinals() -> None:
    said = [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 112)]
    assert said == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]


def test_what_runs_outside_of_its_cluster_is_told_everywhere() -> None:
    document = shared()
    document["clusters"][0]["escapes"] = ["task f of job 01000000 holds 1 CPU in no group"]
    for told in (
        printed(picture(document, NOW)),
        printed(cluster_details(document, "vision", NOW)),
        " ".join(sentences(document, "vision", [], NOW)),
    ):
        assert "task f of job 01000000 holds 1 CPU in no group" in told
