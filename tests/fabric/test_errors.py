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
    ClusterRefuses,
    Conflict,
    Fenced,
    ManagerAway,
    ManagerGone,
    ManagerUnreachable,
    NoSuchJob,
    NoSuchQueue,
    NoSuchRayCluster,
    NotYours,
    ProviderFailed,
    QueueInUse,
    QueueRefused,
    StaleRevision,
    StoreUnusable,
    UnsupportedRay,
)

ERRORS = [
    SpecError("no nodes"),
    GangInfeasible("g", "3 nodes of 1 CPU (PACK)", 2, "the cluster has 2 CPU"),
    GangTimeout("g", 1.5, "others hold the resources"),
    GangExists("g"),
    ClusterStartFailed("no room on the disk"),
    ClusterUnreachable("10.0.0.1:6379", "nothing listens there"),
    ClusterRefuses("10.0.0.1:6379", "the token is missing"),
    NotInstalled("10.0.0.5", "fedpilot"),
    WorkerLost("g/0/0", "its process died"),
    NameTaken("team"),
    NoSuchCluster("team", ("a", "b")),
    UnsupportedRay("2.50.1", "jobs", ["ray.gone"], "2.52.0", "2.60.0"),
    ProviderFailed("processes of c-small-1 do not end: 7"),
    NotYours("vision", {"vision": "alice"}, "bob"),
    NoSuchJob("job-1"),
    NoSuchQueue("vison", ("vision", "speech")),
    CallUnavailable("queues", "it has no port"),
    QueueRefused("team", "there is no project 'visoin'"),
    QueueInUse({"project vision": ("team", "more")}),
    StaleRevision(1, 2, "ann"),
    NoSuchRayCluster("team", ("a", "b")),
    Conflict("team", 3, 7, "ann", deleted=True),
    Fenced("manager", "host:12", 3, 4, "host:13"),
    StoreUnusable("/state/declared.sqlite", "the disk is full"),
    NeverFits("team", "it needs 9 CPU", 0),
    NotInTime("team", 2.5, "its deadline is over"),
    Preempted("team", "vision-7", "reclaim-quota", "vision has less than its quota"),
    TooLarge("3 CPU is more than its largest node"),
    ManagerUnreachable("it is starting"),
    ManagerAway("it is starting"),
    ManagerGone("its Ray cluster has ended"),
    WorkerFailed("g/0/0", "train", "ValueError", "bad rate", "Traceback ..."),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: FabricError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_every_error_is_covered_here() -> None:
    assert {type(error) for error in ERRORS} == below(FabricError)


def below(root: type[FabricError]) -> set[type[FabricError]]:
    """The fabric's errors that derive from one, also through others; a room may have more."""
    found = {each for each in root.__subclasses__() if each.__module__ == root.__module__}
    return found.union(*map(below, found))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(
            Conflict("team", 3, 7, "ann"),
            "is at revision 7, written by ann, and not at 3: read it again",
            id="who saw an older revision reads again",
        ),
        pytest.param(
            Conflict("team", 0, 7, "ann"),
            "is declared already, at revision 7, written by ann",
            id="who declares a taken name learns its revision",
        ),
        pytest.param(
            Conflict("team", 3, 0),
            "is not declared any more, and you saw revision 3: to declare it again, name "
            "revision 0",
            id="who changes what is gone may declare it again",
        ),
        pytest.param(
            Conflict("team", 3, 7, "ann", deleted=True),
            "is being deleted (revision 7, written by ann), and you saw revision 3: wait",
            id="who changes what is being deleted waits for its end",
        ),
    ],
)
def test_a_conflict_has_both_revisions_and_the_way_out(error: Conflict, told: str) -> None:
    assert told in str(error)


def test_an_infeasible_gang_says_what_was_wanted_why_not_and_how_much_there_is() -> None:
    text = str(ERRORS[1])
    assert "3 nodes of 1 CPU" in text
    assert "the cluster has 2 CPU" in text
    assert "2 of these nodes could be had" in text
