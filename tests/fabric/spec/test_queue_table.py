"""Declared queues as the scheduler's core has them: amounts, weights, classes, settings."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from fedpilot.fabric.core.scheduling.records import UNLIMITED, PoolQueue, Strategy
from fedpilot.fabric.core.scheduling.snapshot import FINE, Scale
from fedpilot.fabric.spec.queue_file import QueueFile, queue_file_of
from fedpilot.fabric.spec.queue_table import QueueTable

SCALE = Scale.of({"CPU": 16.0, "GPU": 8.0})
DECLARED: dict[str, Any] = {
    "pools": [{"name": "gpus", "selector": {"gpu": "exists()"}}],
    "departments": [{"name": "research", "quota": {"gpus": {"GPU": 6}}}],
    "projects": [
        {
            "name": "vision",
            "department": "research",
            "quota": {"gpus": {"GPU": 4}},
            "over_quota_weight": {"gpus": {"GPU": 0.5}},
            "limit": {"gpus": {"GPU": 5, "TPU": 1}},
        },
        {"name": "speech", "quota": {"gpus": {"GPU": None}}, "reclaimable": False},
    ],
    "classes": [
        {"name": "nightly", "priority": 10, "preemptible": False},
        {"name": "urgent", "priority": 200},
    ],
    "settings": {"pool_placement": {"gpus": {"gpu": "spread"}}, "surplus_claims": "none"},
}


def table(document: dict[str, Any]) -> QueueTable:
    file = queue_file_of(document)
    return QueueTable(file, SCALE, file.pool_names)


def queue(of: QueueTable, project: str, pool: str) -> PoolQueue:
    return of.queues[of.index(project, pool)]


def test_a_project_has_a_queue_in_each_pool() -> None:
    made = table(DECLARED)
    vision = queue(made, "vision", "gpus")
    assert vision.parent is not None
    assert made.queues[vision.parent].name == "research"
    assert vision.quota == (UNLIMITED, 4 * FINE)
    assert vision.weight == (Fraction(0), Fraction(1, 2))
    assert vision.limit == (UNLIMITED, 5 * FINE)
    assert vision.rationed == (False, True)
    elsewhere = queue(made, "vision", "default")
    assert elsewhere.pool == "default"
    assert elsewhere.rationed == (False, False)


def test_a_quota_of_null_is_unlimited_and_weighs_nothing() -> None:
    speech = queue(table(DECLARED), "speech", "gpus")
    assert speech.quota == (UNLIMITED, UNLIMITED)
    assert speech.weight == (Fraction(0), Fraction(0))
    assert not speech.reclaimable


def test_the_project_default_has_no_quota_and_weight_1() -> None:
    default = queue(table(DECLARED), "default", "gpus")
    assert default.quota == (UNLIMITED, 0)
    assert default.weight == (Fraction(0), Fraction(1))


def test_settings_are_those_of_the_file() -> None:
    settings = table(DECLARED).settings
    assert not settings.surplus_claims
    assert settings.placement["gpus"].gpu is Strategy.SPREAD
    assert settings.placement["default"].gpu is Strategy.BINPACK


def test_a_project_that_is_not_declared_has_no_queue() -> None:
    with pytest.raises(KeyError):
        table(DECLARED).index("research", "gpus")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        pytest.param(("", 0, None), (50, True), id="no class is train"),
        pytest.param(("build", 0, None), (100, False), id="a preset"),
        pytest.param(("nightly", 0, None), (10, False), id="a class that says it"),
        pytest.param(("urgent", 0, None), (200, False), id="a class that does not say it"),
        pytest.param(("", 150, None), (150, True), id="a priority never decides it"),
        pytest.param(("build", 5, None), (5, False), id="nor a low one"),
        pytest.param(("build", 0, True), (100, True), id="the request says it"),
        pytest.param(("", 0, False), (50, False), id="the request denies it"),
    ],
)
def test_a_class_decides_priority_and_preemptibility(
    asked: tuple[str, int, bool | None], found: tuple[int, bool]
) -> None:
    assert table(DECLARED).priority_and_preemptible(*asked) == found


def test_without_a_file_priorities_only_order_and_no_work_is_stopped() -> None:
    file = QueueFile.unlimited()
    made = QueueTable(file, SCALE, file.pool_names)
    only = queue(made, "default", "default")
    assert only.quota == only.limit == (UNLIMITED, UNLIMITED)
    assert not any(only.rationed)
    assert made.priority_and_preemptible("", 0, None) == (0, False)
    assert made.priority_and_preemptible("", 7, True) == (7, False)
    assert made.priority_and_preemptible("build", 0, None) == (100, False)
    assert made.settings.stale_gang_grace_s < 0
    assert not made.settings.surplus_claims
