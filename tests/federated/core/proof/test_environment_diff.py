"""Workers that differ in what bits depend on are told of, and refused where they must be alike."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import pytest

from federations import Lab, Log
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster, VirtualClusterManager
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated.core.proof.environment_diff import (
    Difference,
    EnvironmentDiff,
    differing,
    unlike,
)
from fedpilot.federated.errors import RunRefused, WorkerNotMade, WorkersExhausted
from fedpilot.federated.federation.report import wording
from fedpilot.federated.site.workers import node as node_module
from fedpilot.federated.site.workload import FederatedWorkload
from fedpilot.mediator import SiteContext

ONE_WORKER = VirtualCluster(
    fixed_size_nodes=(FixedSizeNodes(nodes=(FixedSizeNode(resources={"CPU": 1.0}),)),)
)
ZEN = {"torch": "2.7", "cpu_kind": "znver4", "threads": 1, "host": "a", "pid": 1, "ray": "2.9"}
LAKE = {**ZEN, "cpu_kind": "icelake", "host": "b", "pid": 2, "ray": "2.8"}


def test_what_is_new_about_a_worker_is_said_once() -> None:
    seen = EnvironmentDiff()
    assert seen.joined("east/0", ZEN) == ()
    assert seen.joined("east/1", {**ZEN, "host": "c", "ray": "2.1"}) == (), "bits ask for neither"
    assert seen.joined("west/0", LAKE) == (
        Difference(worker="west/0", what="cpu_kind", found="icelake", others=("znver4",)),
    )
    assert seen.joined("west/1", LAKE) == ()
    (silent,) = seen.joined("north/0", {key: LAKE[key] for key in LAKE if key != "torch"})
    assert (silent.what, silent.found, silent.others) == ("torch", "not said", ("2.7",))


def test_workers_that_differ_are_named() -> None:
    assert differing({"a/0": ZEN, "a/1": dict(ZEN)}) == ""
    alike = {f"a/{number}": ZEN for number in range(5)}
    found = differing({**alike, "b/0": {**LAKE, "threads": 2}})
    assert found == (
        "cpu_kind: icelake (b/0) and znver4 (a/0, a/1, a/2 and 2 more); "
        "threads: 1 (a/0, a/1, a/2 and 2 more) and 2 (b/0)"
    )
    assert unlike(ZEN, {**ZEN, "pid": 9}) == ""
    assert unlike(ZEN, LAKE) == "cpu_kind is icelake, not znver4"


class Machines:
    """What the workers say of themselves, in the order in which they come up."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self.kinds = ["znver4"]
        self._as_it_is = node_module.environment
        patch.setattr(node_module, "environment", self)

    def __call__(self) -> dict[str, Any]:
        with self._lock:
            number = next(self._numbers)
        kind = self.kinds[min(number, len(self.kinds) - 1)]
        return {**self._as_it_is(), "cpu_kind": kind}


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(monkeypatch)


def test_a_mixed_gang_is_told_of_and_runs(lab: Lab, machines: Machines) -> None:
    machines.kinds, log = ["znver4", "icelake"], Log()
    result = lab.run(log, federation__rounds=1)
    (told,) = log.of("workers_differ")
    assert told["what"] == "cpu_kind"
    assert {told["found"], *told["others"]} == {"znver4", "icelake"}
    names = [event.name for event in log]
    assert (
        names.index("worker_ready") < names.index("workers_differ") < names.index("workers_ready")
    )
    line = wording.remark("workers_differ", told)
    assert line is not None
    assert told["worker"] in line
    assert "icelake" in line
    assert result.rounds == 1


def test_a_mixed_gang_is_refused_before_it_trains(lab: Lab, machines: Machines) -> None:
    machines.kinds, log = ["znver4", "icelake"], Log()
    with pytest.raises(RunRefused, match=r"cpu_kind: icelake \(local/\d\) and znver4 \(local/\d\)"):
        lab.run(log, run__reproducible="strict")
    assert not log.of("round_started")


def test_a_gang_of_equals_is_strictly_the_same(lab: Lab) -> None:
    log = Log()
    strict = lab.run(log, run__reproducible="strict", federation__rounds=1)
    assert strict.digest == lab.run(federation__rounds=1).digest
    assert not log.of("workers_differ")


def test_a_later_worker_that_differs_gets_no_work(lab: Lab, machines: Machines) -> None:
    machines.kinds, log = ["znver4", "znver4", "icelake"], Log()
    keys = {"run__reproducible": "strict", "resources__worker_restarts": 1}
    federation = lab.federation(log, **keys)
    lab.cluster.faults.kill_at("train", 2)
    result = federation.run()
    first, *others = log.of("worker_lost")
    assert others, "those that are started in its place"
    assert {each["worker"] for each in others} == {first["worker"]}
    assert all("its cpu_kind is icelake, not znver4" in each["reason"] for each in others)
    assert len(log.of("worker_ready")) == 2
    machines.kinds = ["znver4"]
    assert result.digest == lab.run(**keys).digest


def test_a_run_ends_where_only_workers_are_left_that_differ(lab: Lab, machines: Machines) -> None:
    machines.kinds = ["znver4", "icelake"]
    keys = {"run__reproducible": "strict", "resources__worker_restarts": 1}
    federation = lab.federation(**keys, resources__workers=1)
    lab.cluster.faults.kill_at("train", 2)
    with pytest.raises(WorkersExhausted, match="its cpu_kind is icelake, not znver4"):
        federation.run()


def test_the_manifest_has_the_workers_that_came_later(lab: Lab, machines: Machines) -> None:
    machines.kinds = ["znver4", "znver4", "icelake"]
    federation = lab.federation()
    lab.cluster.faults.kill_at("train", 2)
    result = federation.run()
    manifest = json.loads((result.folder / "manifest.json").read_text())
    assert {each["cpu_kind"] for each in manifest["workers"]} == {"znver4", "icelake"}


@pytest.mark.parametrize("rule", ["warn", "strict"])
def test_a_run_that_goes_on_elsewhere_is_compared_with_what_it_was(
    rule: str, lab: Lab, machines: Machines
) -> None:
    log = Log()

    def stop(event: Any) -> None:
        if event.name == "round_finished" and event.fields["round"] == 2:
            raise KeyboardInterrupt

    keys = {"run__reproducible": rule}
    federation = lab.federation(stop, **keys)
    with pytest.raises(KeyboardInterrupt):
        federation.run(run_id="moved")
    federation.close()
    machines.kinds = ["icelake"]
    resumed = lab.federation(log, **keys)
    if rule == "strict":
        with pytest.raises(RunRefused, match=r"icelake \(.*znver4 \(local/0 before"):
            resumed.resume("moved")
    else:
        assert resumed.resume("moved").rounds == 4
        assert {each["found"] for each in log.of("workers_differ")} == {"znver4"}


def test_a_site_that_comes_later_may_have_other_workers_unless_all_have_to_be_alike(
    lab: Lab,
) -> None:
    with lab.federation(run__reproducible="warn") as federation:
        assert "like" not in federation.start().gang.spec_of("local").header


def test_a_site_that_comes_later_is_told_what_its_workers_have_to_be(
    lab: Lab, machines: Machines
) -> None:
    federation = lab.federation(run__reproducible="strict")
    assert "like" not in federation.gang.spec_of("local").header
    spec = federation.start().gang.spec_of("local")
    assert spec.header["like"]["cpu_kind"] == "znver4"
    machines.kinds = ["icelake"]
    manager = VirtualClusterManager(FakeCluster([fake_machine("b", CPU=8)]))
    site = FederatedWorkload()
    site.prepare(spec, SiteContext(name="late"))
    with manager, manager.reserve(ONE_WORKER, name="late") as gang:
        with pytest.raises(WorkerNotMade, match="its cpu_kind is icelake, not znver4"):
            site.start(gang, lambda event: None)
        site.stop()
