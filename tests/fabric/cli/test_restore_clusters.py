"""What is said of virtual clusters that are gone with a head, and `fedpilot cluster restore`."""

from __future__ import annotations

import json
from typing import Any

from cluster_documents import NOW, Document, shared
from fake_clusters import FakeClusters, invoke


def gone(id: str, owner: str | None = None, **changes: Any) -> Document:
    return {
        "id": id,
        "parent": "physical",
        "spec": {"flex_resource_min": {"CPU": 2.0}},
        "owner": owner,
        "user": "alice",
        "priority": 0,
        "deadline": None,
        "detached": owner is None,
        **changes,
    }


def bereft(*lost: Document) -> FakeClusters:
    """A manager on a new head, where nothing is but what was lost with the one before."""
    head = {"began": NOW - 180, "gone": list(lost)}
    return FakeClusters({"machines": [], "clusters": [], "demand": [], "head": head})


def test_a_new_head_says_what_is_gone_and_how_to_get_it_back() -> None:
    clusters = bereft(gone("speech"), gone("eval", parent="speech"), gone("job-1", "0200"))
    done = invoke(clusters, "list", "--address", "10.0.0.5:6379")
    assert (done.exit_code, done.stderr) == (0, "")
    for part in (
        "The head of this Ray cluster restarted at 20",
        "These virtual clusters are gone:",
        "  speech (at least 2 CPU), detached, of alice",
        "  eval (at least 2 CPU, inside speech), detached, of alice",
        "  job-1 (at least 2 CPU), with job 0200, of alice",
        "fedpilot cluster restore --address 10.0.0.5:6379",
        "fedpilot cluster restore --forget --address 10.0.0.5:6379",
    ):
        assert part in done.stdout
    document = json.loads(invoke(clusters, "list", "--json").stdout)
    assert [each["id"] for each in document["head"]["gone"]] == ["speech", "eval", "job-1"]
    told = invoke(clusters, "explain", "speech")
    assert "speech is gone: the head of the Ray cluster restarted" in told.stdout
    assert "`fedpilot cluster restore speech`" in told.stdout
    assert "ended with the head" in invoke(clusters, "explain", "job-1").stdout


def test_a_head_that_lost_nothing_says_nothing() -> None:
    assert "anew" not in invoke(bereft(), "list").stdout
    assert "anew" not in invoke(FakeClusters(shared()), "list").stdout


def test_only_what_was_of_jobs_is_not_offered() -> None:
    told = invoke(bereft(gone("job-1", "0200")), "list").stdout
    assert "again" not in told
    assert "restore --forget" in told


def test_what_is_restored_and_what_is_not_is_said() -> None:
    clusters = bereft(gone("speech"), gone("job-1", "0200"))
    done = invoke(clusters, "restore")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "speech is requested again" in done.stdout
    refused = invoke(clusters, "restore", "job-1")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert "job-1 is not restored: it belonged to job 01" in refused.stderr
    as_json = invoke(clusters, "restore", "job-1", "--json")
    assert as_json.exit_code == 3
    assert list(json.loads(as_json.stdout)["refused"]) == ["job-1"]
    assert "nothing to restore" in invoke(bereft(), "restore").stdout
    assert invoke(None, "restore").exit_code == 4


def test_what_is_not_wanted_any_more_is_forgotten() -> None:
    clusters = bereft(gone("speech"))
    assert "forgot speech" in invoke(clusters, "restore", "--forget").stdout
    assert clusters.forgot == ["speech"]
    assert json.loads(invoke(clusters, "restore", "--forget", "--json").stdout) == {
        "forgotten": ["speech"]
    }
    assert "nothing to forget" in invoke(bereft(), "restore", "--forget").stdout
