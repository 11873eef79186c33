"""Graphs that adapt between rounds: journaled before use, the same at any number of sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from federations import CLIENTS, Lab, Log, in_time, on_a_graph, raising, timeless
from fedpilot.federated.errors import ConfigError, GraphNotAdapted, RunRefused
from fedpilot.federated.federation.verify import Replay
from graph_runs import NAMES, digests_over, over, run_over
from pairings import paired
from records import Archive
from shaky_sites import ShakySite, returning

CODE = '''
import networkx as nx

CALLS = []

def chords(graph, measures, round):
    """A ring with other chords in each call."""
    CALLS.append((graph, measures, round))
    ids = list(measures)
    made = nx.cycle_graph(ids)
    made.add_edge(ids[0], ids[round])
    return made

def best(graph, measures, round):
    """Everybody exchanges with the client whose model is the best."""
    best = max(measures, key=lambda name: (measures[name]["accuracy"], name))
    return nx.star_graph([best, *(name for name in measures if name != best)])

def same(graph, measures, round):
    return graph

def raises(graph, measures, round):
    raise ValueError("no idea")

def stranger(graph, measures, round):
    graph.add_edge("client_0", "eve")
    return graph

def apart(graph, measures, round):
    graph.remove_edges_from([("client_0", "client_1"), ("client_5", "client_6")])
    return graph

def one_way(graph, measures, round):
    return nx.cycle_graph(list(measures), create_using=nx.DiGraph)

def nothing(graph, measures, round):
    pass

number = 5
'''

EVERY = 2


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"adapting_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def adapted(adapt: str, **keys: Any) -> dict[str, Any]:
    return {"graph__adapt": adapt, "graph__adapt_every": EVERY, "federation__rounds": 5, **keys}


def test_the_function_is_called_every_few_rounds_with_what_is_known(lab: Lab, code: str) -> None:
    log = Log()
    keys = {"evaluation__nodes": "all", "evaluation__where": "sites"}
    with lab.federation(log, **on_a_graph(**adapted(f"{code}:chords", **keys))) as federation:
        data = federation.loaded.inputs.data
        result = in_time(federation.run)
    calls = __import__(code).CALLS
    assert [number for *_, number in calls] == [3, 5]
    first, measures, _ = calls[0]
    names = [f"client_{client}" for client in range(CLIENTS)]
    assert nx.utils.graphs_equal(nx.Graph(first.edges()), nx.Graph(nx.cycle_graph(names).edges()))
    assert calls[1][0].has_edge("client_0", "client_3")
    for client, name in enumerate(names):
        labels = data.y[data.partition.indices(client)].tolist()
        assert measures[name]["samples"] == len(labels)
        assert measures[name]["labels"] == tuple(labels.count(label) for label in range(3))
    mean = sum(measures[name]["accuracy"] for name in names) / CLIENTS
    assert mean == pytest.approx(result.rows[1]["node_accuracy"])
    assert [(each["round"], each["new"], each["edges"]) for each in log.of("graph_adapted")] == [
        (3, 1, 13),
        (5, 1, 13),
    ]


def test_the_graph_decides_from_its_round_on(lab: Lab, code: str) -> None:
    plain = lab.run(**on_a_graph(federation__rounds=5))
    chords = lab.run(**on_a_graph(**adapted(f"{code}:chords")))
    models = [[row["model"] for row in run.rows] for run in (plain, chords)]
    assert models[0][:2] == models[1][:2]
    assert models[0][2] != models[1][2]
    assert lab.run(**on_a_graph(**adapted(f"{code}:same"))).digest == plain.digest


@pytest.mark.parametrize(
    ("adapt", "strategy"), paired(["chords", "best", "similar"], ["dpsgd", "push_sum"])
)
def test_however_many_sites_give_the_same_bits(
    adapt: str, strategy: str, lab: Lab, code: str
) -> None:
    name = adapt if adapt == "similar" else f"{code}:{adapt}"
    keys = adapted(name, strategy=strategy)
    alone, apart = (
        run_over(lab, NAMES[:sites], resources__workers=workers, **keys)
        for sites, workers in ((1, 2), (3, 1))
    )
    assert apart.digest == alone.digest
    assert digests_over(apart.folder, 5) == digests_over(alone.folder, 5)
    assert timeless(apart.rows) == timeless(alone.rows)


@pytest.mark.parametrize("stopped", [2, 3])
def test_a_resumed_run_reads_its_graph_and_asks_for_no_other(
    stopped: int, lab: Lab, code: str
) -> None:
    keys = adapted(f"{code}:chords")
    alone = run_over(lab, NAMES[:1], **keys)
    stop = raising(KeyboardInterrupt(), "graph_adapted" if stopped == 2 else "round_finished",
                   round=3)  # fmt: skip
    with over(lab, NAMES, stop, **keys) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    calls = __import__(code).CALLS
    calls.clear()
    with over(lab, NAMES, **keys) as federation:
        resumed = in_time(lambda: federation.resume("r"))
    assert resumed.digest == alone.digest
    assert [number for *_, number in calls] == [5]


@pytest.mark.parametrize(
    "order", [14, 18, *(pytest.param(n, marks=pytest.mark.soak) for n in (16, 20))]
)
def test_a_site_that_was_lost_gets_the_graph_again(
    order: int, lab: Lab, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = adapted(f"{code}:chords")
    alone = run_over(lab, NAMES[:1], **keys)
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", ShakySite)
    monkeypatch.setattr(ShakySite, "moments", {"north": {order}})
    log = Log()
    with over(lab, NAMES, log, **keys) as federation:
        federation._events.observers.append(returning(federation, "north"))
        result = in_time(federation.run)
    assert [event["site"] for event in log.of("site_lost")] == ["north"]
    assert result.digest == alone.digest


def test_a_run_whose_graph_is_gone_is_not_resumed(lab: Lab, code: str) -> None:
    keys = adapted(f"{code}:chords")
    stop = raising(KeyboardInterrupt(), "round_finished", round=4)
    with over(lab, NAMES[:1], stop, **keys) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    (lab.runs / "r" / "journal" / "round-000003.graph.safetensors").unlink()
    with (
        over(lab, NAMES[:1], **keys) as federation,
        pytest.raises(RunRefused, match=r"round-000003\.graph.*missing"),
    ):
        in_time(lambda: federation.resume("r"))


def test_a_verification_reads_the_graphs_too(lab: Lab, code: str, archive: Archive) -> None:
    archive.record("r", **on_a_graph(**adapted(f"{code}:chords")))
    calls = __import__(code).CALLS
    calls.clear()
    found = archive.verify("r", how=Replay.ALL)
    assert found.failure is None
    assert not found.differs
    assert calls == []


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", r"ValueError: no idea .*\.py, line \d+"),
        ("stranger", "no client is called 'eve'"),
        ("apart", "2 parts that never meet"),
        ("one_way", "directed"),
        ("nothing", "nothing"),
    ],
)
def test_a_function_that_gives_no_graph_ends_the_run_with_its_round_and_name(
    function: str, said: str, lab: Lab, code: str
) -> None:
    keys = on_a_graph(**adapted(f"{code}:{function}"))
    with lab.federation(**keys) as federation, pytest.raises(GraphNotAdapted, match=said) as raised:
        in_time(lambda: federation.run(run_id="r"))
    assert raised.value.exits_with == 1
    assert f"round 3 is not begun: `graph.adapt: {code}:{function}`" in str(raised.value)
    rows = (lab.runs / "r" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [1, 2]


@pytest.mark.parametrize(
    ("adapt", "keys", "said"),
    [
        ("no_such_module:f", {}, "no_such_module"),
        ("alike", {}, "`similar`.*`module:function`"),
        ("similar", {"name": "matching"}, "another graph in each round"),
        (None, {}, "`adapt_every` without"),
    ],
)
def test_what_cannot_adapt_is_refused_before_anything_starts(
    adapt: Any, keys: dict[str, Any], said: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)graph\.adapt.*{said}"):
        lab.federation(**on_a_graph(**adapted(adapt, **keys)))


def test_too_many_clients_to_compare_are_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpilot.federated.core.topology.similarity.MOST_NODES", 11)
    with pytest.raises(ConfigError, match=r"(?s)graph\.adapt.*at most 11 clients"):
        lab.federation(**on_a_graph(**adapted("similar")))
