"""Virtual clusters on a real Ray of three machines: never over capacity, and nothing stays."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, SchedulingPolicy, VirtualCluster
from fedpilot.fabric.errors import NeverFits, NoSuchCluster
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from real_ray import ENVIRONMENT, REPOSITORY, end_session, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

PATIENCE_S = 60.0
CPUS = 4
DEFAULT = "default"
RARELY = 1e-3
"""CPUs are compared up to this: Ray's tables hold floats."""


# -- a Ray of several machines, and what is on it that is not ours ----------------------------


@dataclass
class Machines:
    """A Ray of a head and more machines, all on this host, with this process as a driver of it."""

    cluster: Cluster

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def head(self) -> str:
        return str(self.cluster.head_node.node_id)

    @property
    def ledger(self) -> Path:
        """The file that the manager writes."""
        folder: str = self.cluster.head_node.get_session_dir_path()
        return Path(folder) / "fedpilot" / "ledger.sqlite"


@contextlib.contextmanager
def machines(count: int = 3, cpus: float = CPUS) -> Iterator[Machines]:
    """Start so many machines, and end them."""
    folder = tempfile.mkdtemp(prefix="ray-")
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
        for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):
            environment.setenv(name, ENVIRONMENT[name])
        node = {"num_cpus": cpus, "object_store_memory": 10**8}
        head = {**node, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(count - 1):
                cluster.add_node(**node)
            ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
            yield Machines(cluster)
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def counter() -> Any:
    """An actor that says which process it is, and how often it was asked."""

    class Asked:
        def __init__(self) -> None:
            self.times = 0

        def ask(self) -> tuple[int, int]:
            import os

            self.times += 1
            return os.getpid(), self.times

    return ray.remote(num_cpus=1, max_restarts=-1)(Asked)  # ships by value from inside here


class Steady:
    """An actor in a placement group that must not notice anything."""

    def __init__(self, group: PlacementGroup) -> None:
        self._group = group
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        self._actor = counter().options(scheduling_strategy=where).remote()
        self._pid, self._asked = ray.get(self._actor.ask.remote(), timeout=PATIENCE_S)

    def check(self) -> None:
        """Its placement group is there, it is the same process, and no call was lost."""
        state = placement_group_table(self._group)["state"]
        assert state == "CREATED"
        self._asked += 1
        answer = ray.get(self._actor.ask.remote(), timeout=PATIENCE_S)
        assert answer == (self._pid, self._asked)


@contextlib.contextmanager
def foreign(at: Machines) -> Iterator[Steady]:
    """A placement group on the head machine that we did not make, with an actor in it."""
    here = [{"ray.io/node-id": at.head}]
    group = placement_group([{"CPU": 1}], name="somebody else's", bundle_label_selector=here)
    assert group.wait(PATIENCE_S)
    yield Steady(group)
    ray.util.remove_placement_group(group)


def handle(group: str) -> PlacementGroup:
    """A placement group by the id that a snapshot says."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)))


# -- what Ray says, and whether the manager says the same -------------------------------------


def table() -> dict[str, dict[str, Any]]:
    """Ray's placement groups by id, those that are removed left out."""
    found: dict[str, dict[str, Any]] = placement_group_table()
    return {id: group for id, group in found.items() if group["state"] != "REMOVED"}


def ours(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Those of the manager."""
    return {id: group for id, group in found.items() if group["name"].startswith("fedpilot:")}


def carried(found: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """CPUs that placement groups hold on each machine."""
    held: Counter[str] = Counter()
    for group in found:
        for index, machine in group["bundles_to_node_id"].items():
            if machine:
                held[machine] += group["bundles"][index].get("CPU", 0)
    return held


def over_capacity(document: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What holds more than there is, by the books or by Ray's table."""
    total = {each["id"]: each["total"].get("CPU", 0) for each in document["machines"]}
    booked: Counter[str] = Counter()
    for cluster in document["clusters"]:
        for node in cluster["nodes"]:
            booked[node["parent"]] += node["total"].get("CPU", 0)
            total[node["id"]] = node["total"].get("CPU", 0)
    raw = carried(found.values())
    most = {each["NodeID"]: each["Resources"].get("CPU", 0) for each in nodes()}
    return [
        *(f"books: {n} of {total.get(p)} on {p}" for p, n in booked.items() if n > total.get(p, 0)),
        *(f"Ray: {n} of {most.get(m)} on {m}" for m, n in raw.items() if n > most.get(m, n)),
    ]


def nodes() -> list[dict[str, Any]]:
    """Ray's machines, dead ones too."""
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found


def differences(clusters: VirtualClusters) -> list[str]:
    """What the manager's books and Ray say differently; what changes just now is not judged."""
    before = clusters.snapshot()
    found, alive = ours(table()), {each["NodeID"] for each in nodes() if each["Alive"]}
    after = clusters.snapshot()
    wrong = []
    if {each["id"] for each in after["machines"]} != alive:
        wrong.append("the machines")
    states = {each["id"]: each["state"] for each in after["clusters"]}
    then, now = (_booked(each) for each in (before, after))
    for id, group in found.items():
        cluster = group["name"].split(":")[2]
        placed = group["state"] == "CREATED"
        if cluster not in states:
            wrong.append(f"{id} of {cluster}, which is in no book")
        elif placed and id not in now:
            wrong.append(f"{id} of {cluster} ({states[cluster]}) is not in the books")
        elif not placed and states[cluster] == "active":
            wrong.append(f"{id} of {cluster}, which is active, is {group['state']}")
    for id in then.keys() & now.keys():
        cluster, places = now[id]
        if then[id] != now[id] or states[cluster] != "active":
            continue
        group = found.get(id, {})
        real = {n: group["bundles_to_node_id"][n] for n in places} if group else None
        if real != places:
            wrong.append(f"{id} of {cluster} is at {real}, the books say {places}")
    wrong += [
        f"{id} is {state}" for id, state in states.items() if state not in ("active", "waiting")
    ]
    return wrong + over_capacity(after, table())


def _booked(document: Mapping[str, Any]) -> dict[str, tuple[str, dict[int, str]]]:
    """Placement group -> (virtual cluster, bundle -> machine), as the books have it."""
    found: dict[str, tuple[str, dict[int, str]]] = {}
    for cluster in document["clusters"]:
        for node in cluster["nodes"]:
            for group in node["groups"]:
                places = found.setdefault(group["id"], (cluster["id"], {}))[1]
                places[group["bundle"]] = node["machine"]
    return found


def nothing_left(clusters: VirtualClusters, at: Machines, held: float) -> list[str]:
    """What is still there of ours; `held` CPUs are somebody else's."""
    document, left = clusters.snapshot(), ours(table())
    found = [f"virtual cluster {each['id']}" for each in document["clusters"]]
    found = [each for each in found if each != f"virtual cluster {DEFAULT}"]
    found += [f"placement group {group['name']}" for group in left.values()]
    there, free = (Counter(each) for each in (ray.cluster_resources(), ray.available_resources()))
    if abs(there["CPU"] - free["CPU"] - held) > RARELY:
        found.append(f"{there['CPU'] - free['CPU']} CPUs are not free, {held} should not be")
    books = sum(each["available"].get("CPU", 0) for each in document["machines"])
    if abs(there["CPU"] - books - held) > RARELY:
        found.append(f"{books} CPUs are free by the books, {there['CPU'] - held} should be")
    with contextlib.closing(sqlite3.connect(f"file:{at.ledger}?mode=ro", uri=True)) as file:
        for name in ("entries", "groups", "works"):
            (count,) = file.execute(f"SELECT count(*) FROM {name}").fetchone()
            found += [f"{count} {name} in the file"] if count else []
        names = [id for (id,) in file.execute("SELECT id FROM clusters")]
        found += [f"{id} in the file" for id in names if id != DEFAULT]
    return found


# -- clients in processes of their own --------------------------------------------------------

BEGIN = """
import json, os, random, sys, threading, time

said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Ray prints goes elsewhere

import ray
from fedpilot.fabric import *
from fedpilot.fabric.errors import NeverFits
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
clusters = VirtualClusters()

def any_spec(dice, size=1.0):
    if dice.random() < 0.3:
        return VirtualCluster(flex_resource_min={"CPU": size * dice.choice([0.5, 1, 2, 5])})
    policy = dice.choice(list(SchedulingPolicy))
    node = FixedSizeNode(resources={"CPU": size * dice.choice([0.5, 1])})
    nodes = (node,) * dice.choice([1, 2, 3])
    return VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=nodes, scheduling_policy=policy),))

one_at_a_time = threading.Lock()

def say(**what):
    with one_at_a_time:
        print(json.dumps(what), flush=True, file=said)
"""
MANY = """
number, count, times = map(int, sys.argv[2:5])
size, *waits = map(float, sys.argv[5:])
clusters.snapshot()
say(event="ready")
sys.stdin.readline()

def ask(index):
    dice = random.Random(1000 * number + index)
    for time_ in range(times):
        name = f"c{number}-{index}-{time_}"
        told = {"event": "done", "name": name}
        try:
            found = clusters.create(name, any_spec(dice, size), wait_s=dice.choice(waits))
            told["state"] = found["state"]
            time.sleep(dice.random() * 0.1)
            told["ended"] = clusters.delete(name)
        except Exception as error:
            told["error"] = repr(error)
        say(**told)

threads = [threading.Thread(target=ask, args=(index,)) for index in range(count)]
for each in threads: each.start()
for each in threads: each.join()
say(event="over")
sys.stdin.readline()
"""


@dataclass
class Client:
    """A driver that prints events as JSON; it goes on when it is told to."""

    process: subprocess.Popen[str]

    def read(self) -> Iterator[dict[str, Any]]:
        """What it says, up to its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def until(self, event: str) -> list[dict[str, Any]]:
        """What it says up to that event."""
        return list(itertools.takewhile(lambda found: found["event"] != event, self.read()))

    def wait_for(self, event: str) -> dict[str, Any]:
        """Its next event of that name."""
        for found in self.read():
            if found["event"] == event:
                return found
        raise AssertionError(f"it ended without {event}")

    def go_on(self) -> None:
        """Let it do what it waits to do."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def client(script: str, address: str, *arguments: object) -> Iterator[Client]:
    """A driver in a process of its own, killed at the end."""
    command = [sys.executable, "-c", BEGIN + script, address, *map(str, arguments)]
    process = subprocess.Popen(
        ["env", f"PYTHONPATH={REPOSITORY / 'src'}", *command],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Client(process)
    finally:
        end_session(process.pid)
        process.wait(60)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@dataclass
class Watched:
    """What a watcher saw."""

    samples: int = 0
    most: int = 0
    """Virtual clusters at one moment."""
    waiting: int = 0

    def add(self, document: Mapping[str, Any]) -> None:
        """One more snapshot."""
        states = [each["state"] for each in document["clusters"]]
        self.samples += 1
        self.most = max(self.most, len(states))
        self.waiting = max(self.waiting, states.count("waiting"))


def crowd(
    at: Machines, waits: Sequence[float], *, clients: int, count: int, times: int, size: float = 1
) -> Watched:
    """Let clients ask `count` at a time each, and watch that nothing is ever over capacity."""
    clusters, seen, said = VirtualClusters(), Watched(), list[dict[str, Any]]()
    with contextlib.ExitStack() as stack:
        asking = [
            stack.enter_context(client(MANY, at.address, number, count, times, size, *waits))
            for number in range(clients)
        ]
        for each in asking:
            each.wait_for("ready")
        for each in asking:
            each.go_on()
        readers = [
            threading.Thread(target=lambda one=each: said.extend(one.until("over")), daemon=True)
            for each in asking
        ]
        for reader in readers:
            reader.start()
        until = time.monotonic() + 240
        while any(reader.is_alive() for reader in readers):
            assert time.monotonic() < until, "the clients do not come to an end"
            document = clusters.snapshot()
            assert over_capacity(document, table()) == []
            seen.add(document)
            time.sleep(0.02)
    assert [each for each in said if "error" in each] == []
    assert {each["state"] for each in said} <= {"active", "starting", "waiting"}
    assert all(each["ended"] == [each["name"]] for each in said)
    assert len(said) == clients * count * times
    return seen


# -- the tests --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def at() -> Iterator[Machines]:
    with machines() as found:
        yield found


@pytest.fixture(scope="module")
def somebody(at: Machines) -> Iterator[Steady]:
    """What must survive everything here."""
    with foreign(at) as found:
        yield found
        found.check()


@pytest.fixture
def clusters(at: Machines, somebody: Steady) -> Iterator[VirtualClusters]:
    found = VirtualClusters()
    yield found
    somebody.check()
    left: list[str] = []

    def clean() -> bool:
        left[:] = nothing_left(found, at, held=1)
        return not left

    with contextlib.suppress(AssertionError):
        eventually(clean, 60, "nothing is left")
    assert left == []


def fixed(*sizes: float, policy: SchedulingPolicy = SchedulingPolicy.PACK) -> VirtualCluster:
    wanted = tuple(FixedSizeNode(resources={"CPU": size}) for size in sizes)
    group = FixedSizeNodes(nodes=wanted, scheduling_policy=policy)
    return VirtualCluster(fixed_size_nodes=(group,))


def placed(document: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(machine, CPUs) of each node, by the manager; empty bundles are none."""
    return sorted((each["machine"], each["total"]["CPU"]) for each in document["nodes"])


def made(
    clusters: VirtualClusters, name: str, spec: VirtualCluster, **how: Any
) -> Mapping[str, Any]:
    """Reserve, and show what was got."""
    clusters.create(name, spec, **how)
    return clusters.show(name)


def really(document: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(machine, CPUs) of each bundle of its placement groups, by Ray."""
    of_it = [
        each
        for each in table().values()
        if f":{document['id']}:" in each["name"] and each["state"] == "CREATED"
    ]
    return sorted(
        (each["bundles_to_node_id"][index], bundle["CPU"])
        for each in of_it
        for index, bundle in each["bundles"].items()
    )


@pytest.mark.parametrize(
    ("spec", "machines_used"),
    [
        pytest.param(fixed(1), {1}, id="a node"),
        pytest.param(fixed(0.5, 2, 1, policy=SchedulingPolicy.STRICT_PACK), {1}, id="packed"),
        pytest.param(fixed(3, 1, 3, policy=SchedulingPolicy.STRICT_SPREAD), {3}, id="spread"),
        pytest.param(VirtualCluster(flex_resource_min={"CPU": 9}), {3}, id="flexible"),
        pytest.param(
            VirtualCluster(
                fixed_size_nodes=fixed(2, 2).fixed_size_nodes, flex_resource_min={"CPU": 2}
            ),
            {1, 2, 3},
            id="both kinds",
        ),
    ],
)
def test_ray_holds_what_the_manager_says_until_it_is_deleted(
    clusters: VirtualClusters, spec: VirtualCluster, machines_used: set[int]
) -> None:
    document = made(clusters, "one", spec)
    assert document["state"] == "active"
    assert really(document) == placed(document)
    assert len({machine for machine, _ in placed(document)}) in machines_used
    assert made(clusters, "one", spec)["nodes"] == document["nodes"]  # asked again
    assert clusters.delete("one") == ("one",)
    assert really(document) == []
    with pytest.raises(NoSuchCluster):
        clusters.show("one")


def test_a_child_holds_part_of_what_its_parent_has(clusters: VirtualClusters) -> None:
    parent = made(clusters, "parent", fixed(3, 3, policy=SchedulingPolicy.STRICT_SPREAD))
    child = made(clusters, "child", fixed(1, 2), parent="parent")
    assert child["state"] == "active"
    assert really(child) == placed(child)
    eventually(
        lambda: sum(size for each in (parent, child) for _, size in really(each)) == 6,
        5,
        "what the child did not take is reserved for the parent",
    )
    assert clusters.delete("parent") == ("child", "parent")


def test_who_waits_gets_what_is_deleted_and_who_never_fits_is_told(
    clusters: VirtualClusters,
) -> None:
    clusters.create("first", VirtualCluster(flex_resource_min={"CPU": 9}))
    second = made(clusters, "second", fixed(3), wait_s=0)
    assert (second["state"], second["position"], really(second)) == ("waiting", 1, [])
    with pytest.raises(NeverFits):
        clusters.create("third", fixed(CPUS + 1))
    clusters.delete("first")
    second = made(clusters, "second", fixed(3))
    assert second["state"] == "active"
    assert really(second) == placed(second)
    clusters.delete("second")


OWNS = """
clusters.create("owned", VirtualCluster(flex_resource_min={"CPU": 2}))
clusters.create("kept", VirtualCluster(flex_resource_min={"CPU": 2}), detached=True)
say(event="owns")
sys.stdin.readline()
"""


def test_it_ends_with_its_job_unless_it_is_detached(
    clusters: VirtualClusters, at: Machines
) -> None:
    with client(OWNS, at.address) as driver:
        driver.wait_for("owns")
        assert {"owned", "kept"} <= {each["id"] for each in clusters.snapshot()["clusters"]}
        driver.go_on()
        assert driver.process.wait(PATIENCE_S) == 0
    eventually(
        lambda: {each["id"] for each in clusters.snapshot()["clusters"]} == {DEFAULT, "kept"},
        5,
        "the cluster of the job that ended is gone, the detached one is there",
    )
    clusters.delete("kept")


def test_500_at_once_on_machines_too_small_for_all(clusters: VirtualClusters, at: Machines) -> None:
    seen = crowd(at, [0, 0.2, 2], clients=8, count=63, times=1)
    print(seen)
    assert seen.samples > 5
    assert seen.waiting > 20


@pytest.mark.soak
def test_a_thousand_leave_nothing_behind(clusters: VirtualClusters, at: Machines) -> None:
    seen = crowd(at, [30], clients=4, count=25, times=10, size=0.05)
    print(seen)
    assert seen.samples > 5
