"""`fedpilot cluster create`: what is asked for, how long it waits, what its exit codes tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster_documents import NOW, A, Document, event, held, shared, vnode, waiting
from fake_clusters import FakeClusters, invoke
from fedpilot.fabric import FabricError
from fedpilot.fabric.cli.spec_options import QUEUE
from fedpilot.fabric.errors import NameTaken, NeverFits, NoSuchCluster


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpilot.fabric.cli.create_cluster.FIRST_POLL_S", 0.001)
    monkeypatch.setattr("fedpilot.fabric.cli.create_cluster.LAST_POLL_S", 0.001)


SPREAD = {"nodes": [{"resources": {"CPU": 1.0, "GPU": 0.5}}] * 2}

SPECS = [
    pytest.param([], None, {}, id="nothing is whatever is free"),
    pytest.param(
        ["--min", "CPU=2,memory=4GiB", "--max", "CPU=8,memory=20GB"],
        None,
        {
            "flex_resource_min": {"CPU": 2.0, "memory": 4.0 * 2**30},
            "flex_resource_max": {"CPU": 8.0, "memory": 20.0 * 10**9},
        },
        id="flexible, with sizes",
    ),
    pytest.param(
        ["--node", "2xCPU=1,GPU=0.5", "--policy", "STRICT_SPREAD"],
        None,
        {"fixed_size_nodes": [{**SPREAD, "scheduling_policy": "STRICT_SPREAD"}]},
        id="two equal nodes, each on a machine",
    ),
    pytest.param(
        ["--node", "CPU=1,GPU=0.5", "--node", "CPU=1,GPU=0.5"],
        None,
        {"fixed_size_nodes": [{**SPREAD, "scheduling_policy": "PACK"}]},
        id="nodes one by one",
    ),
    pytest.param(
        ["--node", "CPU=1,GPU=0.5", "--min-nodes", "2", "--max-nodes", "8"],
        None,
        {"fixed_size_nodes": [{**SPREAD, "scheduling_policy": "PACK", "max_nodes": 8}]},
        id="between two and eight nodes",
    ),
    pytest.param(
        ["--min", "CPU=1", "--max-actors", "0"],
        None,
        {"flex_resource_min": {"CPU": 1.0}, "max_actors_without_resources": 0},
        id="without actors that hold nothing",
    ),
    pytest.param(
        ["--json-spec", '{"flex_resource_min": {"CPU": 1}}'],
        None,
        {"flex_resource_min": {"CPU": 1.0}},
        id="JSON",
    ),
    pytest.param(
        ["--spec", "-"],
        "flex_resource_min: {CPU: 1}",
        {"flex_resource_min": {"CPU": 1.0}},
        id="YAML from stdin",
    ),
]


@pytest.mark.parametrize(("arguments", "stdin", "spec"), SPECS)
def test_a_spec_can_be_given_in_many_ways(
    arguments: list[str], stdin: str | None, spec: Mapping[str, Any]
) -> None:
    clusters = FakeClusters(shared(), becomes=[held("new", vnode("new/0", A, 1))])
    done = invoke(clusters, "create", "new", *arguments, stdin=stdin)
    assert (done.exit_code, done.stderr) == (0, "")
    [(name, asked, options)] = clusters.created
    assert (name, asked) == ("new", spec)
    assert options["detached"] is True, "what is made by a command outlives it"
    assert "holds 1 CPU in 1 vnode on 1 machine" in done.stdout


BAD = [
    pytest.param(
        "fixed_size_nodes:\n  - nodes:\n      - resources:\n          CPU: two\n",
        ["team.yaml:4", "fixed_size_nodes[0].nodes[0].resources.CPU", "a number", "'two'"],
        id="text where a number belongs",
    ),
    pytest.param(
        "flex_resource_min: {CPU: 1}\nfixed_size_node: []\n",
        ["team.yaml:2", "'fixed_size_node'", "allowed are", "did you mean 'fixed_size_nodes'?"],
        id="a key that does not exist",
    ),
    pytest.param(
        "fixed_size_nodes:\n- nodes: [{resources: {CPU: 1}}]\n  scheduling_policy: SPRED\n",
        ["team.yaml:3", "wanted one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD", "'SPRED'"],
        id="a policy that does not exist",
    ),
    pytest.param(
        "a: 1\na: 2\n", ["team.yaml:2", "a second `a`", "the first is in line 1"], id="a key twice"
    ),
    pytest.param("a: [1\n", ["team.yaml:1", "an unclosed bracket"], id="no YAML at all"),
    pytest.param("", ["team.yaml", "wanted a mapping, found None"], id="an empty file"),
]


@pytest.mark.parametrize(("text", "told"), BAD)
def test_a_bad_file_is_told_with_its_line_before_anything_is_started(
    text: str, told: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "team.yaml"
    path.write_text(text)
    done = invoke(None, "create", "new", "--spec", str(path))
    assert (done.exit_code, done.stdout) == (2, "")
    for part in told:
        assert part in done.stderr


USAGE = [
    pytest.param(["--min", "CPU"], ["--min", "NAME=AMOUNT", "'CPU'"], id="no amount"),
    pytest.param(["--min", "CPU=-1"], ["--min", "'CPU=-1'"], id="less than nothing"),
    pytest.param(["--min", "CPU=1,CPU=2"], ["CPU is given twice"], id="an amount twice"),
    pytest.param(["--node", "0xCPU=1"], ["--node", "one node or more"], id="no nodes"),
    pytest.param(["--node", "GPU=1.5"], ["--node GPU=1.5", "whole GPUs"], id="a GPU and a half"),
    pytest.param(["--min", "CPU=3", "--max", "CPU=2"], ["--max", "which is 2"], id="min over max"),
    pytest.param(["--policy", "SPREAD"], ["--node"], id="a policy for no nodes"),
    pytest.param(["--max-nodes", "4"], ["--node"], id="the most of no nodes"),
    pytest.param(
        ["--node", "2xCPU=1", "--min-nodes", "3"], ["--min-nodes 3", "found 2"], id="two counts"
    ),
    pytest.param(
        ["--node", "3xCPU=1", "--max-nodes", "2"],
        ["--node, --max-nodes", "max_nodes", "from 3", "found 2"],
        id="fewer at most than at least",
    ),
    pytest.param(["--policy", "NEAR", "--node", "CPU=1"], ["STRICT_SPREAD"], id="no such policy"),
    pytest.param(["--json-spec", "{"], ["--json-spec", "wanted JSON"], id="no JSON"),
    pytest.param(["--json-spec", "{}", "--min", "CPU=1"], ["give one of"], id="two specs"),
    pytest.param(["--spec", "nowhere.yaml"], ["nowhere.yaml"], id="no such file"),
]


@pytest.mark.parametrize(("arguments", "told"), USAGE)
def test_bad_usage_is_told_before_anything_is_started(
    arguments: list[str], told: list[str]
) -> None:
    done = invoke(None, "create", "new", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    for part in told:
        assert part in done.stderr


def test_its_place_in_line_is_what_the_options_say() -> None:
    clusters = FakeClusters(shared(), becomes=[held("new", vnode("new/0", A, 1))] * 2)
    words = ["--project", "vision", "--pool", "gpus", "--priority-class", "build"]
    invoke(clusters, "create", "new", *words, "--no-preemptible", "--priority", "-3")
    invoke(clusters, "create", "new")
    queues = [{k: o[k] for k in QUEUE if k in o} for _, _, o in clusters.created]
    asked = {"project": "vision", "pool": "gpus", "priority_class": "build"}
    assert queues == [{**asked, "preemptible": False, "priority": -3}, {}]


def test_a_project_inside_another_virtual_cluster_is_refused_before_anything_is_started() -> None:
    done = invoke(None, "create", "new", "--parent", "speech", "--project", "vision")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "wanted none of them inside virtual cluster 'speech'" in done.stderr


def test_a_bad_name_is_told_before_anything_is_started() -> None:
    done = invoke(None, "create", "a/b")
    assert done.exit_code == 2
    assert "name: wanted text without '/'" in done.stderr


def in_time(position: int | None) -> list[Document]:
    return [waiting("new", position or 1, 3, "2 CPU are free"), held("new", vnode("new/0", A, 3))]


WAITING = waiting("new", 2, 3, "tabular is before it")

WAITS = [
    pytest.param(["--wait", "10"], in_time(1), 0, "active", id="it gets its places in time"),
    pytest.param(["--wait", "0.01"], [WAITING], 3, "waiting", id="it does not, and is refused"),
    pytest.param(["--wait", "0"], [WAITING], 0, "waiting", id="it was only to be asked for"),
]


@pytest.mark.parametrize(("arguments", "becomes", "code", "state"), WAITS)
def test_it_waits_as_long_as_it_is_told_to(
    arguments: list[str], becomes: list[Document], code: int, state: str
) -> None:
    done = invoke(FakeClusters(shared(), becomes=becomes), "create", "new", *arguments, "--json")
    assert (done.exit_code, done.stderr) == (code, "")
    assert json.loads(done.stdout)["state"] == state


def test_who_waits_still_is_told_why_and_what_to_do() -> None:
    clusters = FakeClusters(shared(), becomes=[WAITING])
    done = invoke(clusters, "create", "new", "--wait", "0.01", "--address", "host:1")
    assert done.exit_code == 3
    assert "○ waiting" in done.stdout
    assert "2nd in line" in done.stdout
    assert "tabular is before it" in done.stdout
    assert "fedpilot cluster explain new --address host:1" in done.stdout
    assert "fedpilot cluster delete new --address host:1" in done.stdout


class GoneThen(FakeClusters):
    """The virtual cluster has ended."""

    def show(self, name: str) -> Mapping[str, Any]:
        if self.becomes:
            return self.becomes.pop(0)
        raise NoSuchCluster(name)


def test_giving_up_at_the_deadline_is_a_refusal_with_its_reason() -> None:
    why = "its deadline is over; tabular is before it"
    limited = {**WAITING, "deadline": NOW - 6}
    clusters = GoneThen(shared(), becomes=[limited, limited])
    clusters.events = [event("new", "asked"), event("new", "ended", why, ago=5)]
    done = invoke(clusters, "create", "new", "--deadline", "1", "--wait", "9")
    assert done.exit_code == 3
    assert f" s: {why}" in done.stderr


@pytest.mark.parametrize("deadline", [None, NOW + 60])
def test_an_end_by_somebody_else_is_not_called_giving_up(deadline: float | None) -> None:
    waits = {**WAITING, "deadline": deadline}
    clusters = GoneThen(shared(), becomes=[waits, waits])
    clusters.events = [event("new", "asked"), event("new", "ended", "it was deleted")]
    done = invoke(clusters, "create", "new", "--wait", "9")
    assert done.exit_code == 3
    assert "new ended before it got its places: it was deleted" in done.stderr
    assert "did not get its places" not in done.stderr


def test_a_clock_that_is_set_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = FakeClusters(shared(), becomes=[WAITING] * 3 + in_time(1))
    hours = iter(range(100))
    monkeypatch.setattr(
        "fedpilot.fabric.cli.create_cluster.time.time", lambda: 3600.0 * next(hours)
    )
    done = invoke(clusters, "create", "new", "--wait", "10", "--json")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (0, "active")


def test_an_interruption_leaves_it_in_the_queue_and_says_how_to_go_on() -> None:
    class Interrupted(FakeClusters):
        def show(self, name: str) -> Mapping[str, Any]:
            if self.becomes:
                return self.becomes.pop(0)
            raise KeyboardInterrupt

    done = invoke(Interrupted(shared(), becomes=[WAITING]), "create", "new", "--wait", "9")
    assert (done.exit_code, done.stdout) == (130, "")
    assert "new keeps its place in the queue" in done.stderr
    assert "fedpilot cluster explain new" in done.stderr
    assert "fedpilot cluster delete new" in done.stderr


REFUSALS = [
    pytest.param(NeverFits("new", "one node needs 9 CPU, the most is 4 CPU", 0), 3, id="too large"),
    pytest.param(NameTaken("new"), 2, id="the name is taken"),
    pytest.param(NoSuchCluster("nowhere", ["speech"]), 2, id="no such parent"),
    pytest.param(FabricError("the manager does not answer"), 1, id="the manager is silent"),
]


@pytest.mark.parametrize(("error", "code"), REFUSALS)
def test_every_refusal_has_its_exit_code(error: FabricError, code: int) -> None:
    clusters = FakeClusters(shared())
    clusters.fails = error
    done = invoke(clusters, "create", "new")
    assert (done.exit_code, done.stdout) == (code, "")
    assert str(error) in done.stderr


def test_who_never_fits_is_told_how_many_would() -> None:
    clusters = FakeClusters(shared())
    clusters.fails = NeverFits("new", "STRICT_SPREAD needs 3 machines, found 2", 2)
    assert "at most 2 of its fixed-size nodes fit" in invoke(clusters, "create", "new").stderr
