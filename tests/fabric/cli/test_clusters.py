"""`fedpilot cluster`: what list, tree, show and explain print."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cluster_documents import Document, event, shared
from fake_clusters import FakeClusters, invoke


@pytest.mark.parametrize("command", [["list"], ["tree"], ["show", "a"], ["explain", "a"]])
def test_a_ray_that_is_not_there_is_code_4(command: list[str]) -> None:
    done = invoke(None, *command)
    assert (done.exit_code, done.stdout) == (4, "")
    assert "nothing listens there" in done.stderr


JSON = [
    pytest.param(["list"], lambda d: {"clusters": d["clusters"], "head": None}, id="list"),
    pytest.param(["tree"], lambda d: d, id="tree"),
    pytest.param(["show", "speech"], lambda d: d["clusters"][1], id="show"),
]


@pytest.mark.parametrize(("command", "told"), JSON)
def test_json_is_the_document_and_nothing_else(
    command: list[str], told: Callable[[Document], Document]
) -> None:
    done = invoke(FakeClusters(shared()), *command, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == told(shared())


@pytest.mark.parametrize("command", [["list"], ["tree"], ["show", "speech"], ["explain", "speech"]])
def test_text_is_printed_for_people(command: list[str]) -> None:
    done = invoke(FakeClusters(shared()), *command)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "speech" in done.stdout
    assert "\x1b" not in done.stdout, "no colours where there is no terminal"


def test_explain_as_json_has_state_sentences_and_history() -> None:
    clusters = FakeClusters(shared())
    clusters.events = [event("tabular", "asked"), event("speech", "asked")]
    found = json.loads(invoke(clusters, "explain", "tabular", "--json").stdout)
    assert (found["id"], found["state"], found["cluster"]["position"]) == ("tabular", "waiting", 1)
    assert [each["cluster"] for each in found["history"]] == ["tabular"]
    assert found["sentences"]


@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_name_that_nobody_has_is_told_with_those_that_are(command: str) -> None:
    done = invoke(FakeClusters(shared()), command, "nobody")
    assert done.exit_code == 2
    assert "no virtual cluster 'nobody'; there are: vision, speech" in done.stderr
