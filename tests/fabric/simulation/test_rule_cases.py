"""Situations worked out from the rules and the seeds: each states what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.fabric.simulation.case_file import read_cases
from fedpilot.fabric.simulation.case_schema import Case
from fedpilot.fabric.simulation.expectations import differences
from fedpilot.fabric.simulation.play import play

CASES = read_cases(Path(__file__).parent / "rule_cases.yaml")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.summary) for case in CASES])
def test_a_case_holds(case: Case) -> None:
    answer = play(case)
    assert all(step.get("settled", True) for step in answer.get("steps", [answer]))
    assert differences(case, answer) == []
