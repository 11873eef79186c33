"""Clients train on vnodes of their class only, and the bits are those of one class."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from elastic_gangs import SharedCluster
from federations import CLIENTS, Lab, Log, many_pieces, on_a_graph, raising
from fedpilot.cli import main
from fedpilot.fabric import VirtualClusterManager
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import ConfigError, Federation, RunRefused
from fedpilot.federated.errors import WorkerNotMade, WorkersExhausted
from fedpilot.federated.federation.report.wording import remark
from fedpilot.federated.prepare.gang_request import gang_request
from fedpilot.federated.site.workers import gang_watch, pool as pool_module
from fedpilot.federated.site.workers.node import FederatedNode
from fedpilot.mediator import InProcessSite

pytestmark = pytest.mark.timeout(120)

ODD = [
    {"name": "odd", "workers": 1, "clients": {"ids": "client_*[13579]"}},
    {"name": "even", "workers": 2},
]
"""Worker 0 trains clients of odd numbers, workers 1 and 2 the others."""
SPLIT: dict[str, Any] = {"resources__workers": None, "resources__groups": ODD}
EVERYBODY = {"federation__clients_per_round": None, "federation__rounds": 2}
AT_SITES = {"evaluation__where": "sites", "evaluation__clients": "all"}


class Places:
    """Which clients each worker had to do with, by what it did with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: defaultdict[str, defaultdict[int, set[int]]] = defaultdict(
            lambda: defaultdict(set)
        )
        for name in ("train", "train_nodes"):
            self._watch(monkeypatch, name, clients_at=1)
        for name in ("evaluate_clients", "evaluate_nodes", "host", "train_one"):
            self._watch(monkeypatch, name, clients_at=0)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str, clients_at: int) -> None:
        method = getattr(FederatedNode, name)

        def watching(node: Any, *args: Any) -> Any:
            clients = np.atleast_1d(args[clients_at]).tolist()
            number = int(threading.current_thread().name.split("/")[-2])
            self.found[name][number].update(clients)
            return method(node, *args)

        monkeypatch.setattr(FederatedNode, name, watching)

    def check(self, *names: str, odd: frozenset[int] = frozenset({0})) -> None:
        """Clients were with workers of their class, all of them, in each of these ways."""
        assert self.found.keys() == set(names)
        for by_worker in self.found.values():
            for number, clients in by_worker.items():
                assert {client % 2 == 1 for client in clients} == {number in odd}
            assert set().union(*by_worker.values()) == set(range(CLIENTS))


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    many_pieces(monkeypatch)
    return Places(monkeypatch)


@pytest.mark.parametrize(
    ("keys", "did"),
    [
        pytest.param(EVERYBODY, ["train"], id="a star"),
        pytest.param({**EVERYBODY, **AT_SITES}, ["train", "evaluate_clients"], id="at sites"),
        pytest.param(
            {**EVERYBODY, "federation__aggregation_strategy": "median"}, ["train"], id="median"
        ),
        pytest.param(
            on_a_graph(federation__rounds=2, evaluation__nodes="all"),
            ["train_nodes", "evaluate_nodes"],
            id="a graph",
        ),
        pytest.param(
            on_a_graph("exponential", "push_sum", federation__rounds=2, evaluation__nodes="none"),
            ["train_nodes"],
            id="a directed graph",
        ),
    ],
)
def test_clients_train_on_their_class_and_the_bits_are_the_same(
    keys: dict[str, Any], did: list[str], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = lab.run(**keys)
    many_pieces(monkeypatch)
    places = Places(monkeypatch)
    result = lab.run(**keys, **SPLIT)
    assert result.digest == calm.digest
    measured = [(row["accuracy"], row["loss"], row["train_loss"]) for row in result.rows]
    assert measured == [(row["accuracy"], row["loss"], row["train_loss"]) for row in calm.rows]
    places.check(*did)


def test_what_single_clients_do_is_done_on_their_class(lab: Lab, places: Places) -> None:
    with lab.federation(**SPLIT) as federation:
        for client in federation:
            federation[client].materialize()
            federation[client].train()
    places.check("host", "train_one")


@pytest.mark.parametrize("nth", [2, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 5))])
def test_a_death_is_the_loss_of_its_class(nth: int, lab: Lab, places: Places) -> None:
    federation = lab.federation(**EVERYBODY, **SPLIT)
    lab.cluster.faults.kill_at("train", nth)
    with federation:
        disturbed = federation.run()
    places.check("train")
    assert disturbed.digest == lab.run(**EVERYBODY).digest


def test_a_class_without_workers_ends_the_run_which_goes_on_elsewhere(lab: Lab) -> None:
    odd = [{**ODD[0], "workers": 2}, {**ODD[1], "workers": 1}]
    keys = {**EVERYBODY, "resources__worker_restarts": 0}
    federation = lab.federation(**keys, resources__workers=None, resources__groups=odd)
    for nth in (1, 2, 3):
        lab.cluster.faults.kill_at("train", nth)
    with federation, pytest.raises(WorkersExhausted):
        federation.run(run_id="r")
    result = lab.federation(**EVERYBODY, **SPLIT).resume("r")
    assert result.digest == lab.run(**EVERYBODY).digest


@pytest.mark.parametrize(("first", "then"), [(SPLIT, {}), ({}, SPLIT)], ids=["without", "with"])
def test_a_run_may_go_on_with_classes_or_without(
    first: dict[str, Any], then: dict[str, Any], lab: Lab
) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    with lab.federation(stop, **EVERYBODY, **first) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    result = lab.federation(**EVERYBODY, **then).resume("r")
    assert result.digest == lab.run(**EVERYBODY).digest


# -- classes in which clients get other bits ------------------------------------------------------


def unlike(workers: int = 1, pattern: str = "client_*[13579]") -> dict[str, Any]:
    """The first class has two threads."""
    first = {**ODD[0], "workers": workers, "cpus_per_worker": 2, "clients": {"ids": pattern}}
    return {"resources__workers": None, "resources__groups": [first, ODD[1]]}


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Workers of a fake cluster share this process, and so the number of threads."""
    asked: list[tuple[int, str]] = []

    def settle(threads: int, device: str) -> torch.device:
        asked.append((threads, device))
        return torch.device("cpu")

    monkeypatch.setattr("fedpilot.federated.site.workers.node.settle", settle)
    return asked


def test_each_class_has_its_threads_and_the_first_one_evaluates_the_test_set(
    lab: Lab, one_thread: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: set[int] = set()
    method = FederatedNode.evaluate_test

    def testing(node: Any, *args: Any) -> Any:
        tested.add(int(threading.current_thread().name.split("/")[-2]))
        return method(node, *args)

    monkeypatch.setattr(FederatedNode, "evaluate_test", testing)
    keys = {**EVERYBODY, "evaluation__batch_size": 4}
    lab.run(**keys, **unlike())
    assert sorted(one_thread) == [(1, "cpu"), (1, "cpu"), (2, "cpu")]
    assert tested == {0}
    tested.clear()
    lab.run(**keys, **SPLIT)
    assert tested == {0, 1, 2}, "classes that are alike share it"


@pytest.mark.usefixtures("one_thread")
def test_a_run_of_unlike_classes_goes_on_with_those_only(lab: Lab) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    stopped = lab.federation(stop, **EVERYBODY, **unlike())
    with stopped as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    for other in (SPLIT, {}, unlike(pattern="client_1*")):
        with pytest.raises(RunRefused, match="resources"):
            lab.federation(**EVERYBODY, **other).resume("r")
    result = lab.federation(**EVERYBODY, **unlike(workers=2)).resume("r")
    assert result.digest == lab.run(**EVERYBODY, **unlike()).digest


class Hellos:
    """What workers say of their threads, by the number of their vnode."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads = {0: 2, 1: 2, 2: 1, 3: 1}

        def hello(_node: Any) -> dict[str, Any]:
            vnode = int(threading.current_thread().name.split("/")[-2])
            return {"pid": 1, "host": "a", "threads": self.threads[vnode], "sharers": ""}

        monkeypatch.setattr(FederatedNode, "hello", hello)


@pytest.fixture
def hellos(monkeypatch: pytest.MonkeyPatch) -> Hellos:
    return Hellos(monkeypatch)


STRICT = {"run__reproducible": "strict", "federation__rounds": 1, **unlike(workers=2)}


@pytest.mark.usefixtures("one_thread")
def test_strict_compares_the_workers_of_a_class(lab: Lab, hellos: Hellos) -> None:
    lab.run(**STRICT)
    hellos.threads[1] = 3
    with pytest.raises(RunRefused, match=r"threads: 2 \(local/0\) and 3 \(local/1\)"):
        lab.run(**STRICT)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("number", [1, 3])
def test_a_site_that_comes_later_is_compared_class_by_class(
    number: int, lab: Lab, hellos: Hellos
) -> None:
    spec = lab.federation(**STRICT).start().gang.spec_of("local")
    told = spec.header["like_by_class"]
    assert {name: each["threads"] for name, each in told.items()} == {"odd": 2, "even": 1}
    manager = VirtualClusterManager(FakeCluster([fake_machine("b", CPU=8)]))
    with manager:
        late = InProcessSite("late", manager)
        assert late.prepare(gang_request(lab.federation(**STRICT).config, "late")).result()
        late.check("federated", spec).result()
        late.start(lambda _: None).result()
        late.release().result()
        hellos.threads[number] = 5
        late.prepare(gang_request(lab.federation(**STRICT).config, "late")).result()
        late.check("federated", spec).result()
        with pytest.raises(WorkerNotMade, match="its threads is 5, not"):
            late.start(lambda _: None).result()
        late.release().result()


# -- what is said ---------------------------------------------------------------------------------


def test_events_and_the_manifest_say_which_classes_there_are(lab: Lab) -> None:
    log = Log()
    result = lab.run(log, federation__rounds=1, **SPLIT)
    (ready,) = log.of("workers_ready")
    assert ready["vnode_classes"] == {"odd": 1, "even": 2}
    said = remark("workers_ready", {**ready, "seconds": 1.0})
    assert said == "  workers  3 warm workers (1 odd, 2 even), ready after 1 s"
    manifest = json.loads((result.folder / "manifest.json").read_text())
    assert sorted(each["vnode_class"] for each in manifest["workers"]) == ["even", "even", "odd"]
    assert "name: odd" in (result.folder / "config.yaml").read_text()
    plan = json.loads((result.folder / "plan.json").read_text())
    (here,) = plan["sites"]
    assert [(c["name"], c["vnodes"], c["clients"]) for c in here["vnode_classes"]] == [
        ("odd", 1, 6),
        ("even", 2, 6),
    ]


def test_check_says_how_many_clients_each_class_has(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(lab.config(**SPLIT)))
    told = CliRunner().invoke(main, ["check", str(path)]).output
    assert "# vnode classes: odd (1 worker) for 6 clients, even (2 workers) for 6 clients" in told
    facts = json.loads(CliRunner().invoke(main, ["check", str(path), "--json"]).output)
    assert facts["vnode_classes"] == [
        {"name": "odd", "workers": [1, 1], "clients": 6},
        {"name": "even", "workers": [2, 2], "clients": 6},
    ]


def test_plan_says_how_long_each_class_takes_and_what_would_fit(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    keys = {**SPLIT, "training__execution": None, "resources__ray": {"num_cpus": 3}}
    path.write_text(json.dumps(lab.config(**keys)))
    told = " ".join(CliRunner().invoke(main, ["plan", str(path)]).output.split())
    assert re.search(r"odd 1 vnode for 6 clients, \S+ \S+ a round; even 2 vnodes for 6", told)
    short = CliRunner().invoke(main, ["plan", str(path), "--set", "resources.ray.num_cpus=2"])
    assert short.exit_code == 3
    assert "local holds none (2 vnodes of even beside 1 odd (1 CPU): " in short.output
    assert '"name": "even", "workers": 1' in short.output


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "key", "found"),
    [
        pytest.param({"ids": "c_*"}, "[0].clients.ids", "`c_*` takes none", id="no client's id"),
        pytest.param({"ids": "*"}, "[1].clients", 'no client is left for "even"', id="none left"),
        pytest.param({"share": 1e-9}, "[0].clients.share", '"odd" takes none', id="a tiny share"),
        pytest.param(
            {"column": "ward", "values": "x"}, "[0].clients.column", "`ward`", id="no column"
        ),
    ],
)
def test_classes_that_no_client_is_in_are_refused(
    clients: dict[str, Any], key: str, found: str, lab: Lab
) -> None:
    with pytest.raises(ConfigError) as refused:
        lab.federation(
            resources__workers=None, resources__groups=[{**ODD[0], "clients": clients}, ODD[1]]
        )
    (problem,) = refused.value.problems
    assert problem.key == f"resources.groups{key}"
    assert found in problem.found


def test_a_client_that_no_class_takes_is_refused_in_the_file(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    config = lab.config(resources__workers=None, resources__groups=ODD[:1])
    path.write_text(json.dumps(config, indent=1))
    told = CliRunner().invoke(main, ["check", str(path)])
    assert told.exit_code == 2
    assert re.search(r"x.yaml:\d+: resources.groups\n", told.output)
    assert "client_0, which no class takes" in told.output


# -- columns, sites, and workers that come and go --------------------------------------------------


def test_a_column_of_the_data_says_which_class_a_client_is_in(lab: Lab, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    np.savez(
        tmp_path / "all.npz",
        x=rng.normal(size=(80, 4)),
        y=rng.integers(0, 3, 80),
        client_ids=np.repeat([f"p{i}" for i in range(8)], 10),
        hospital=np.repeat(["north", "east", "east", "west"], 20),
    )
    groups = [
        {"name": "far", "workers": 1, "clients": {"column": "hospital", "values": ["n*", "west"]}},
        {"name": "near", "workers": 1, "clients": {"column": "hospital", "values": "east"}},
    ]
    config = lab.config(
        resources__workers=None, resources__groups=groups, federation__number_of_clients=None
    )
    config["data"] = {
        "dataset_type": "npz",
        "options": {"path": str(tmp_path / "all.npz"), "columns": ["hospital"]},
        "data_distribution_kind": "natural",
    }
    with Federation(config, cluster=FakeCluster([fake_machine("a", CPU=4)])) as federation:
        classes = federation.loaded.inputs.classes
        assert classes is not None
        assert [classes.name_of(at) for at in range(8)] == ["far"] * 2 + ["near"] * 4 + ["far"] * 2
        federation.run()


def test_every_site_has_all_classes(lab: Lab, places: Places) -> None:
    config = lab.config(**EVERYBODY, **SPLIT)
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    with Federation(config, cluster=cluster, sites=["east", "west"]) as federation:
        result = federation.run()
    places.check("train")
    assert result.digest == lab.run(**EVERYBODY).digest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TICK_S", 0.01)
    monkeypatch.setattr(gang_watch, "LOOK_S", 0.002)


GROWING = [{**ODD[0], "workers": {"min": 1, "max": 2}}, {**ODD[1], "workers": {"min": 1, "max": 3}}]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "keys", [EVERYBODY, on_a_graph(federation__rounds=2)], ids=["star", "ring"]
)
def test_workers_of_a_class_come_and_leave(
    keys: dict[str, Any], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = lab.run(**keys).digest
    many_pieces(monkeypatch)
    places, log, cluster = Places(monkeypatch), Log(), SharedCluster(monkeypatch)
    manager = cluster.manager
    method = "train_nodes" if "federation__topology" in keys else "train"

    def grow() -> None:
        for at in (1, 0, 1):
            assert manager.grow(at) is not None
        assert manager.grow(0) is None

    cluster.steps.at["hello", 1] = grow
    cluster.steps.at[method, 3] = lambda: manager.take(manager.surplus[-1])
    cluster.steps.at[method, 6] = lambda: manager.notice(manager.surplus[0], 10.0)
    config = lab.config(
        **keys, resources__workers=None, resources__groups=GROWING, evaluation__nodes=None
    )
    with Federation(config, observers=[log], cluster=cluster) as federation:
        assert federation.run().digest == calm
    assert len(log.of("worker_left")) == 2
    assert {each["vnode_class"] for each in log.of("worker_ready")} == {"odd", "even"}
    names = places.found[method]
    odd = {number for number in names if "odd" in manager.labels_of(number).values()}
    for number, clients in names.items():
        assert {client % 2 == 1 for client in clients} == {number in odd}


def test_a_private_ray_has_all_workers_that_fit(lab: Lab) -> None:
    log = Log()
    lab.run(log, federation__rounds=1, resources__workers=None, resources__groups=GROWING)
    (ready,) = log.of("workers_ready")
    assert ready["vnode_classes"] == {"odd": 2, "even": 3}
