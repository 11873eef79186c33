"""`fedpilot queue list`, `show` and `history`: bars, marks and workloads on the screen."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cluster_documents import NOW, Document, event, printed
from fedpilot.fabric.cli.terminal.queue_curves import curves
from fedpilot.fabric.cli.terminal.queues import applied, event_table, queue_details, queue_table
from fedpilot.fabric.errors import NoSuchQueue
from queue_documents import pending, queue, samples, two_teams, workload


def only(**changes: Any) -> Document:
    """One project in a pool of 10 GPUs."""
    document = two_teams()
    document["pools"] = [{"name": "gpus", "machines": 1, "capacity": {"GPU": 10, "CPU": 20}}]
    document["queues"] = [queue("vision", quota={"GPU": 4}, fairshare={"GPU": 6}, **changes)]
    return document


def row(document: Document, name: str) -> str:
    """The line of a queue's first resource."""
    lines = printed(queue_table(document, NOW), 80).splitlines()
    return next(line for line in lines if line.split()[1:2] == [name])


@pytest.mark.parametrize(
    ("changes", "bar"),
    [
        pytest.param({}, "········│···╎·······", id="nothing held"),
        pytest.param({"allocated": {"GPU": 2}}, "████····│···╎·······", id="within quota"),
        pytest.param({"allocated": {"GPU": 5}}, "████████│█··╎·······", id="above quota"),
        pytest.param({"allocated": {"GPU": 10}}, "████████│███╎███████", id="all of the pool"),
        pytest.param(
            {"allocated": {"GPU": 2}, "pending": {"GPU": 4}},
            "████░░░░│░░░╎·······",
            id="what waits begins where what is held ends",
        ),
        pytest.param(
            {"allocated": {"GPU": 9}, "pending": {"GPU": 9}},
            "████████│███╎█████░░",
            id="more waits than the pool has",
        ),
        pytest.param(
            {"allocated": {"GPU": 0.01}}, "█·······│···╎·······", id="a little is visible"
        ),
        pytest.param(
            {"fairshare": {"GPU": 4}}, "········┃···········", id="quota and share end together"
        ),
        pytest.param(
            {"fairshare": {"GPU": 10}}, "········│···········╎", id="a share of the whole pool"
        ),
        pytest.param(
            {"quota": {"GPU": 0}, "fairshare": {"GPU": None}, "allocated": {"GPU": 5}},
            "██████████··········",
            id="no quota, and an unlimited share",
        ),
    ],
)
def test_a_bar_shows_what_is_held_deserved_and_waited_for(
    changes: dict[str, Any], bar: str
) -> None:
    document = only()
    document["queues"][0].update(changes)
    assert f" {bar} " in row(document, "vision")


def test_projects_follow_their_department_and_an_unused_default_is_left_out() -> None:
    told = printed(queue_table(two_teams(), NOW))
    lines = [line for line in told.splitlines() if line.startswith(("  ●", "  ▲"))]
    assert [line[2:].split(" GPU")[0].rstrip() for line in lines] == [
        "● research",
        "▲   vision",
        "●   speech",
    ]
    assert "pool default" not in told
    assert "revision 3, applied by carol, 1 h ago" in told


def test_a_default_with_work_is_shown() -> None:
    document = two_teams()
    document["queues"][3].update(allocated={"GPU": 1}, running=1)
    assert "default" in printed(queue_table(document, NOW))


def test_without_a_file_of_queues_the_list_says_so() -> None:
    document = {
        **two_teams(),
        "revision": 0,
        "declaration": {},
        "queues": [queue("default", quota={}, fairshare={}, allocated={"GPU": 3}, running=2)],
    }
    told = printed(queue_table(document, NOW))
    assert "No file of queues is applied" in told
    assert row(document, "default").split()[-2:] == ["2", "0"]


def test_amounts_are_named_as_unlimited_or_not_divided() -> None:
    document = only(allocated={"GPU": 1, "CPU": 2})
    document["queues"][0]["quota"]["CPU"] = None
    document["queues"][0]["fairshare"]["CPU"] = None
    document["queues"][0]["allocated"]["TPU"] = 1
    lines = printed(queue_table(document, NOW)).splitlines()
    cpu = next(line for line in lines if " CPU  " in line and "pool" not in line)
    assert cpu.split()[-4:] == ["2", "all", "all", "–"]
    tpu = next(line for line in lines if " TPU " in line)
    assert tpu.split()[-4:] == ["1", "–", "–", "–"]


def test_a_project_is_shown_with_its_rules_and_workloads() -> None:
    told = printed(queue_details(two_teams(), "speech", NOW))
    assert "a project, in department research" in told
    assert "alice and role:researcher" in told
    assert "train and build" in told
    assert "build, not preemptible" in told
    assert "asr" in told
    assert "train-1" not in told


def test_a_department_is_shown_with_the_workloads_of_its_projects() -> None:
    told = printed(queue_details(two_teams(), "research", NOW), 140)
    assert "speech and vision" in told
    assert "train-1" in told
    assert "leaves for asr within 8 s" in told
    assert "users" not in told


def test_a_queue_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(NoSuchQueue, match="there are: research, vision, speech, default"):
        queue_details(two_teams(), "vison", NOW)


def test_workloads_are_in_line() -> None:
    document = two_teams()
    document["workloads"] = [
        pending("second", "vision", "no-room", "", position=2),
        pending("first", "vision", "no-room", "", position=1),
        workload("runs", "vision"),
    ]
    told = printed(queue_details(document, "vision", NOW))
    assert told.index("runs") < told.index("first") < told.index("second")


def test_what_a_file_would_change_names_workloads_and_claimants() -> None:
    would = {
        "starts": {"asr": "in-quota: 4 of 4 GPU"},
        "stops": [{"id": "train-3", "claimant": "asr", "reason": "reclaim-quota: above"}],
        "waits": {},
    }
    states = {"asr": "waiting", "train-3": "active"}
    told = printed(applied({"revision": 4, "would": would}, states, dry_run=True))
    assert "revision 4 stays" in told
    assert "stop for asr" in told
    assert "waiting" in told
    moves = [{"id": "train-1", "claimant": "asr", "reason": "consolidate: moved"}]
    told = printed(
        applied({"revision": 4, "would": {**would, "moves": moves}}, states, dry_run=True)
    )
    assert "move for asr" in told
    nothing = {"starts": {}, "stops": [], "waits": {}}
    told = printed(applied({"revision": 4, "would": nothing}, states, dry_run=True))
    assert "no workload" in told
    told = printed(applied({"revision": 4}, states, dry_run=False))
    assert "revision 4 is applied" in told


def test_events_have_the_projects_of_workloads_that_are_there() -> None:
    events = [event("train-3", "notice"), event("gone", "ended"), event("", "queues applied")]
    told = printed(event_table(events, two_teams(), NOW)).splitlines()
    assert "vision" in next(line for line in told if "train-3" in line)
    assert " – " in next(line for line in told if "gone" in line)
    assert "queues applied" in told[-1]
    assert "no events" in printed(event_table([], two_teams(), NOW))


def test_a_curve_follows_the_samples_until_now() -> None:
    vision, speech = curves(two_teams(), samples(), NOW)
    assert (vision.title, vision.resource, vision.quota) == ("vision in gpus", "GPU", [4] * 10)
    assert vision.times_s == [*(60.0 * minute for minute in range(10)), 600.0]
    assert vision.allocated[:6] == [0, 2, 4, 6, 8, 8]
    assert vision.fairshare is not None
    assert vision.fairshare[5:7] == [8, 4]
    assert speech.allocated[-1] == 2


def test_a_curve_has_the_quota_of_each_moment() -> None:
    found = samples()
    for minute, sample in enumerate(found):
        for each in sample["queues"]:
            each["quota"] = {"GPU": None if minute < 3 else minute}
    quota = curves(two_teams(), found, NOW)[0].quota
    assert quota is not None
    assert [None if math.isnan(each) else each for each in quota[:5]] == [None, None, None, 3, 4]


def test_a_queue_that_came_later_held_nothing_before() -> None:
    found = samples()
    found[1]["queues"] = []
    assert curves(two_teams(), found, NOW)[0].allocated[:3] == [0, 0, 4]


def test_without_samples_there_is_no_curve() -> None:
    assert curves(two_teams(), [], NOW) == []


def test_a_project_without_quotas_is_drawn_by_what_it_held() -> None:
    document = two_teams()
    document["queues"] = [queue("vision", quota={}, fairshare={})]
    (curve,) = curves(document, samples(), NOW)
    assert curve.resource == "CPU"
    assert curve.quota is None
    assert curve.fairshare is None
