"""Kills while clients create and delete: the manager and Ray soon say the same again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from rays.drivers import Client, client
from rays.machines import CPUS, Machines, Steady, foreign, handle, machines
from rays.tables import DEFAULT, differences, nodes, nothing_left
from real_ray import eventually

SEEN_S = 60.0
"""How long Ray may take to see that a machine is gone, and a busy machine to do anything."""
NEWS_S = 0.5
"""Younger differences are of what clients do now."""
LONG_S = 2.0
"""If a difference stayed for longer, the course is printed."""

CREATES_AND_DELETES = """
dice = random.Random(int(sys.argv[2]))
mine, wrong = [], []
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
say(event="ready")
done = 0

def delete(name):
    try:
        clusters.delete(name)
    except FabricError as error:
        wrong.append(repr(error))

while not stop.is_set():
    name = f"c{sys.argv[2]}-{done}"
    done += 1
    try:
        clusters.create(name, any_spec(dice, 0.5), wait_s=dice.choice([0, 0.2, 1]))
    except NeverFits:
        continue  # while a machine is dead
    except FabricError as error:
        wrong.append(repr(error))
        continue
    mine.append(name)
    time.sleep(dice.random() * 0.2)
    if len(mine) > dice.randrange(5):
        delete(mine.pop(dice.randrange(len(mine))))
for name in mine:
    delete(name)
say(event="over", done=done, wrong=wrong)
sys.stdin.readline()
"""
OWNS = """
name = sys.argv[2]
clusters.create(name, VirtualCluster(flex_resource_min={"CPU": 0.5}), wait_s=0)
say(event="owns")
sys.stdin.readline()
"""


@dataclass
class Siege:
    """A Ray under attack."""

    at: Machines
    clusters: VirtualClusters
    dice: random.Random
    steady: tuple[Steady, ...]
    """What must not notice anything."""
    owners: int = 0
    agreed_s: list[float] = field(default_factory=list)
    """How long one difference between the cluster state and Ray stayed at most, by event."""

    def manager(self) -> None:
        """Kill the manager."""
        pid = self.clusters.call("pid")
        self._wait()
        os.kill(pid, signal.SIGKILL)
        self.agreed("the manager was killed")
        assert self.clusters.call("pid") != pid

    def driver(self) -> None:
        """Kill a driver that owns a virtual cluster."""
        self.owners += 1
        name = f"owned-{self.owners}"
        with client(OWNS, self.at.address, name) as owner:
            owner.wait_for("owns")
            assert name in self._names()
            self._wait()
            owner.process.kill()
            owner.process.wait(60)
        eventually(lambda: name not in self._names(), SEEN_S, f"{name} ends with its driver")
        self.agreed("a driver was killed")  # so Ray holds no group of it either

    def raylet(self) -> None:
        """Kill a machine that is not the head, and add another."""
        node = self.dice.choice(sorted(self.at.cluster.worker_nodes, key=lambda each: each.node_id))
        self._wait()
        self.at.cluster.remove_node(node, allow_graceful=False)
        eventually(lambda: node.node_id not in self._alive(), SEEN_S, "Ray sees it")
        self.agreed("a machine died", but=("recovering",))
        self.at.cluster.add_node(num_cpus=CPUS, object_store_memory=10**8)
        self.agreed("a machine came")

    def agreed(self, after: str, but: tuple[str, ...] = ()) -> None:
        """No difference between the cluster state and Ray stays, and other work goes on.

        Clients go on to create and delete, so new differences come while old ones go.
        """
        states = tuple(f"is {state}" for state in but)
        begun, trail = time.monotonic(), []
        since: dict[str, float] = {}
        longest = 0.0
        while True:
            found = [each for each in differences(self.clusters) if not each.endswith(states)]
            now = time.monotonic()
            trail.append(f"  {now - begun:.2f} s: {found}")
            subjects = {each.split(" ")[0] for each in found}
            first_look = len(trail) == 1
            gone = [since.pop(each) for each in since.keys() - subjects]
            longest = max([longest, *(now - began for began in gone)])
            for each in subjects - since.keys():
                since[each] = begun if first_look else now
            if first_look and not found:
                longest = now - begun
            oldest = max([0.0, *(now - began for began in since.values())])
            if not found or (now - begun > NEWS_S and oldest < NEWS_S):
                break
            if oldest > SEEN_S:
                history = "\n".join(map(str, self.clusters.history()[-40:]))
                raise AssertionError(f"{after}; {SEEN_S} s later:\n{found}\n{history}")
            time.sleep(0.05)
        self.agreed_s.append(longest)
        print(f"{after}: a difference stayed for at most {longest:.2f} s", flush=True)
        if longest > LONG_S:
            print(*trail, *map(str, self.clusters.history()[-20:]), sep="\n", flush=True)
        for each in self.steady:
            each.check()

    def _wait(self) -> None:
        time.sleep(self.dice.random() * 0.5)

    def _names(self) -> set[str]:
        return {each["id"] for each in self.clusters.snapshot()["clusters"]}

    def _alive(self) -> set[str]:
        return {each["NodeID"] for each in nodes() if each["Alive"]}


def on(machine: str) -> VirtualCluster:
    """One CPU of a machine."""
    node = FixedSizeNode(resources={"CPU": 1}, parent_node_selector={"ray.io/node-id": machine})
    return VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=(node,)),))


@contextlib.contextmanager
def besieged(seed: int, *, clients: int = 3) -> Iterator[Siege]:
    """Three machines with clients; in the end all is deleted, and nothing is left."""
    with machines() as at, foreign(at) as somebody:
        clusters = VirtualClusters()
        clusters.create("kept", on(at.head), detached=True)
        (node,) = clusters.show("kept")["nodes"]
        kept = Steady(handle(node["groups"][0]["id"]))
        with contextlib.ExitStack() as stack:
            asking: list[Client] = [
                stack.enter_context(client(CREATES_AND_DELETES, at.address, seed * 100 + number))
                for number in range(clients)
            ]
            for each in asking:
                each.wait_for("ready")
            yield Siege(at, clusters, random.Random(seed), (somebody, kept))
            for each in asking:
                each.go_on()
            over = [each.wait_for("over") for each in asking]
            print(f"{sum(each['done'] for each in over)} virtual clusters created", flush=True)
            assert [wrong for each in over for wrong in each["wrong"]] == []
            assert min(each["done"] for each in over) > 3
        kept.check()
        assert {each["id"] for each in clusters.snapshot()["clusters"]} == {DEFAULT, "kept"}
        clusters.delete("kept")
        left: list[str] = []

        def clean() -> bool:
            left[:] = nothing_left(clusters, at, held=1)
            return not left

        with contextlib.suppress(AssertionError):
            eventually(clean, SEEN_S, "nothing is left")
        assert left == []
        somebody.check()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_manager_a_driver_and_a_machine_are_killed() -> None:
    with besieged(seed=1) as siege:
        siege.manager()
        siege.driver()
        siege.raylet()
