"""Errors keep their facts, also when they travel pickled."""

from __future__ import annotations

import pickle

import pytest

from fedpilot.fabric import (
    ClusterStartFailed,
    ClusterUnreachable,
    FabricError,
    GangExists,
    GangInfeasible,
    GangTimeout,
    NameTaken,
    NeverFits,
    NoSuchCluster,
    NotInstalled,
    NotInTime,
    Preempted,
    SpecError,
    TooLarge,
    WorkerFailed,
    WorkerLost,
)
from fedpilot.fabric.errors import (
    CallUnavailable,
    ManagerUnreachable,
    NoSuchJob,
    NoSuchQueue,
    NotYours,
    QueueInUse,
    QueueRefused,
    StaleRevision,
    UnsupportedRay,
)

ERRORS = [
    SpecError("no nodes"),
    GangInfeasible("g", "3 nodes of 1 CPU (PACK)", 2, "the cluster has 2 CPU"),
    GangTimeout("g", 1.5, "others hold the resources"),
    GangExists("g"),
    ClusterStartFailed("no room on the disk"),
    ClusterUnreachable("10.0.0.1:6379", "nothing listens there"),
    NotInstalled("10.0.0.5", "fedpilot"),
    WorkerLost("g/0/0", "its process died"),
    NameTaken("team"),
    NoSuchCluster("team", ("a", "b")),
    UnsupportedRay("2.50.1", "jobs", ["ray.gone"], "2.52.0", "2.60.0"),
    NotYours("vision", {"vision": "alice"}, "bob"),
    NoSuchJob("job-1"),
    NoSuchQueue("vison", ("vision", "speech")),
    CallUnavailable("queues", "it has no port"),
    QueueRefused("team", "there is no project 'visoin'"),
    QueueInUse({"project vision": ("team", "more")}),
    StaleRevision(1, 2, "ann"),
    NeverFits("team", "it needs 9 CPU", 0),
    NotInTime("team", 2.5, "its deadline is over"),
    Preempted("team", "vision-7", "reclaim-quota", "vision has less than its quota"),
    TooLarge("3 CPU is more than its largest node"),
    ManagerUnreachable("it is starting"),
    WorkerFailed("g/0/0", "train", "ValueError", "bad rate", "Traceback ..."),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: FabricError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_every_error_is_covered_here() -> None:
    assert {type(error) for error in ERRORS} == set(FabricError.__subclasses__())


def test_an_infeasible_gang_says_what_was_wanted_why_not_and_how_much_there_is() -> None:
    text = str(ERRORS[1])
    assert "3 nodes of 1 CPU" in text
    assert "the cluster has 2 CPU" in text
    assert "2 of these nodes could be had" in text
