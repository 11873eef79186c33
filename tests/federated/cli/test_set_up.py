"""init writes a config that is right, and doctor answers in JSON."""

from __future__ import annotations

import json

import pytest

from command_line import invoke

pytestmark = pytest.mark.usefixtures("own_folder")


def test_init_writes_a_config_that_is_right_and_keeps_what_is_there() -> None:
    assert invoke("init", "mine.yaml").exit_code == 0
    assert invoke("check", "mine.yaml").exit_code == 0
    assert invoke("init", "mine.yaml").exit_code == 2
    assert invoke("init", "mine.yaml", "--force").exit_code == 0
    told = invoke("init", "other.yaml", "--json")
    assert json.loads(told.stdout) == {"config": "other.yaml"}


def test_doctor_answers_as_json() -> None:
    result = invoke("doctor", "--json")
    assert {finding["status"] for finding in json.loads(result.stdout)["findings"]} <= {
        *("ok", "warn", "fail")
    }
