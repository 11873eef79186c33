"""The published examples of the format, whose facts come from the seeds and from peers' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.fabric.simulation.case_file import read_cases
from fedpilot.fabric.simulation.case_schema import Case
from fedpilot.fabric.simulation.expectations import differences
from fedpilot.fabric.simulation.play import play

CASES = read_cases(Path(__file__).parent / "published_cases.json")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.summary) for case in CASES])
def test_a_published_case_holds(case: Case) -> None:
    assert case.model_dump()["expect" if "steps" not in case.model_dump() else "steps"]
    assert differences(case, play(case)) == []
