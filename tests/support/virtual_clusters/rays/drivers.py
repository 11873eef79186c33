"""Drivers in processes of their own that create and delete virtual clusters."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from rays.machines import Machines
from rays.tables import over_capacity, table
from real_ray import ENVIRONMENT, REPOSITORY, in_session

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
TWO_TASKS = """
import sys
import ray
from fedpilot import fabric
from fedpilot.fabric import VirtualCluster

fabric.init(sys.argv[1], virtual_cluster=VirtualCluster(flex_resource_min={"CPU": 1}))

@ray.remote(num_cpus=1)
def forever():
    import time
    time.sleep(1000)

work = [forever.remote() for _ in range(2)]
print("submitted", flush=True)
sys.stdin.read()
"""
"""A driver that says when it has submitted two tasks that never end."""


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
    command = ["env", f"PYTHONPATH={REPOSITORY / 'src'}", *command]
    with in_session(command, env=ENVIRONMENT, stdin=subprocess.PIPE) as process:
        yield Client(process)


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
