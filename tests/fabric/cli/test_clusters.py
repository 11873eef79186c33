"""`fedpilot cluster`: errors come before anything is started, waits are explained, JSON is bare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cluster_documents import NOW, A, Document, event, held, shared, vnode, waiting
from fedpilot.cli import main
from fedpilot.fabric import ClusterUnreachable, FabricError, VirtualCluster
from fedpilot.fabric.errors import NameTaken, NeverFits, NoSuchCluster
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.manager.snapshot import find


class FakeClusters(VirtualClusters):
    """A manager without Ray: hands out a document, and remembers what it was asked."""

    def __init__(self, document: Document, *, becomes: Sequence[Document] = ()) -> None:
        self.document = document
        self.becomes = list(becomes)
        self.created: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []
        self.deleted: list[str] = []
        self.forced = False
        self.events: list[Document] = []
        self.forgot: list[str] = []
        self.fails: FabricError | None = None

    def create(self, name: str, spec: VirtualCluster, **options: Any) -> Mapping[str, Any]:
        if self.fails is not None:
            raise self.fails
        self.created.append((name, spec.to_dict(), options))
        return self.show(name)

    def delete(self, name: str, *, force: bool = False) -> tuple[str, ...]:
        find(self.document, name)
        self.forced = force
        self.deleted.append(name)
        ended = [e["id"] for e in self.document["clusters"] if name in (e["id"], e["parent"])]
        kept = [each for each in self.document["clusters"] if each["id"] not in ended]
        self.document = {**self.document, "clusters": kept}
        return tuple(reversed(ended))

    def restore(self, names: Sequence[str] = ()) -> Mapping[str, Any]:
        gone = [each for each in self.document["head"]["gone"] if not names or each["id"] in names]
        found = [{"id": e["id"], "state": "active", "reason": "", "position": None} for e in gone]
        refused = {e["id"]: "it belonged to job 01" for e in gone if not e["detached"]}
        return {
            "restored": [each for each in found if each["id"] not in refused],
            "refused": refused if names else {},
        }

    def forget(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        self.forgot = [each["id"] for each in self.document["head"]["gone"]]
        return tuple(self.forgot)

    def show(self, name: str) -> Mapping[str, Any]:
        if self.becomes:
            others = [each for each in self.document["clusters"] if each["id"] != name]
            self.document = {**self.document, "clusters": [*others, self.becomes.pop(0)]}
        return find(self.document, name)

    def snapshot(self) -> Mapping[str, Any]:
        return self.document

    def history(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.events)


def opening(clusters: VirtualClusters) -> Callable[..., AbstractContextManager[VirtualClusters]]:
    @contextmanager
    def opened(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[VirtualClusters]:
        yield clusters

    return opened


def invoke(clusters: VirtualClusters | None, *arguments: str, stdin: str | None = None) -> Result:
    def refused(
        address: str, auth_mode: str | None, timeout_s: float
    ) -> AbstractContextManager[VirtualClusters]:
        raise ClusterUnreachable(address, "nothing listens there")

    obj = refused if clusters is None else opening(clusters)
    runner = CliRunner()
    return runner.invoke(main, ["cluster", *arguments], input=stdin, obj=obj)


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpilot.fabric.cli.clusters.FIRST_POLL_S", 0.001)
    monkeypatch.setattr("fedpilot.fabric.cli.clusters.LAST_POLL_S", 0.001)


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
    pytest.param("a: 1\na: 2\n", ["team.yaml:2", "duplicate key"], id="a key twice"),
    pytest.param("a: [1\n", ["team.yaml:2", "expected"], id="no YAML at all"),
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
    """What becomes of one is that it is no more."""

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
    assert f"in vain: {why}" in done.stderr


@pytest.mark.parametrize("deadline", [None, NOW + 60])
def test_an_end_by_somebody_else_is_not_called_giving_up(deadline: float | None) -> None:
    waits = {**WAITING, "deadline": deadline}
    clusters = GoneThen(shared(), becomes=[waits, waits])
    clusters.events = [event("new", "asked"), event("new", "ended", "it was deleted")]
    done = invoke(clusters, "create", "new", "--wait", "9")
    assert done.exit_code == 3
    assert "new is no more, and did not give up by itself: it was deleted" in done.stderr
    assert "in vain" not in done.stderr


def test_a_clock_that_is_set_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = FakeClusters(shared(), becomes=[WAITING] * 3 + in_time(1))
    hours = iter(range(100))
    monkeypatch.setattr("fedpilot.fabric.cli.clusters.time.time", lambda: 3600.0 * next(hours))
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
    pytest.param(["default"], "outside all virtual clusters", id="what is nobody's"),
    pytest.param([], "--all", id="nothing is named"),
    pytest.param(["vision", "--all"], "--all", id="one, and all"),
]


@pytest.mark.parametrize(("arguments", "told"), KEPT)
def test_nothing_is_deleted_when_in_doubt(arguments: list[str], told: str) -> None:
    clusters = FakeClusters(shared())
    done = invoke(clusters, "delete", *arguments)
    assert (done.exit_code, done.stdout, clusters.deleted) == (2, "", [])
    assert told in done.stderr


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
        "The head of this Ray cluster began anew at 20",
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
    assert "speech is gone: the head of the Ray cluster began anew" in told.stdout
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
    assert "speech is asked for again" in done.stdout
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
