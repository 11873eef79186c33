"""Cases of our own: each rule of the scheduler, and each sentence of the seeds about queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.fabric.simulation.case_file import read_cases
from fedpilot.fabric.simulation.case_schema import Case
from fedpilot.fabric.simulation.expectations import differences
from fedpilot.fabric.simulation.play import play

CASES = read_cases(Path(__file__).parent / "own_cases.yaml")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.summary) for case in CASES])
def test_a_case_holds(case: Case) -> None:
    assert differences(case, play(case)) == []
