"""`fedpilot cluster delete`: ends what was named, and asks or refuses where more would end."""

from __future__ import annotations

import json

import pytest

from cluster_documents import shared
from fake_clusters import FakeClusters, invoke

DELETIONS = [
    pytest.param(["vision"], ["vision"], id="one"),
    pytest.param(["eval", "vision"], ["eval", "vision"], id="two"),
    pytest.param(["speech", "eval"], ["eval", "speech"], id="one, and what is in it"),
    pytest.param(["speech", "--yes"], ["eval", "speech"], id="one with what is in it"),
    pytest.param(["--all", "--yes"], ["vision", "eval", "speech", "tabular", "genomics"], id="all"),
]


@pytest.mark.parametrize(("arguments", "ended"), DELETIONS)
def test_deleting_says_what_ended(arguments: list[str], ended: list[str]) -> None:
    clusters = FakeClusters(shared())
    done = invoke(clusters, "delete", *arguments, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"ended": ended}


def test_anothers_virtual_cluster_is_deleted_only_by_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDPILOT_USER", "bob")
    document = shared()
    for each in document["clusters"]:
        each["user"] = {"speech": "bob", "eval": "alice"}.get(each["id"], "")
    clusters = FakeClusters(document)
    for arguments in (["speech", "--yes"], ["vision", "eval"], ["--all", "--yes"]):
        done = invoke(clusters, "delete", *arguments)
        assert (done.exit_code, done.stdout, clusters.deleted) == (3, "", [])
        assert "'eval' is alice's, and you are bob; --force ends it" in done.stderr
    assert "by alice" in invoke(clusters, "show", "eval").stdout
    done = invoke(clusters, "delete", "speech", "--yes", "--force", "--json")
    assert json.loads(done.stdout) == {"ended": ["eval", "speech"]}
    assert clusters.forced


KEPT = [
    pytest.param(["speech"], "would also end eval", id="somebody inside who was not named"),
    pytest.param(["--all"], "would also end vision", id="all, without being sure"),
    pytest.param(["vision", "nobody"], "'nobody'", id="one of them does not exist"),
    pytest.param(["default"], "outside virtual clusters", id="the rest of Ray"),
    pytest.param([], "--all", id="nothing is named"),
    pytest.param(["vision", "--all"], "--all", id="one, and all"),
]


@pytest.mark.parametrize(("arguments", "told"), KEPT)
def test_nothing_is_deleted_when_in_doubt(arguments: list[str], told: str) -> None:
    clusters = FakeClusters(shared())
    done = invoke(clusters, "delete", *arguments)
    assert (done.exit_code, done.stdout, clusters.deleted) == (2, "", [])
    assert told in done.stderr
