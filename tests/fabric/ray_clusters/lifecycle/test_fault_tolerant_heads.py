"""A declared Ray cluster whose head keeps its state in Redis: what a new head finds again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from declaring_site import DeclaringSite, until
from fedpilot.common.host.marked_processes import signal_all
from redis_server import PASSWORD, RedisServer, redis_server

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

HEADS = 20
"""How many heads are killed, one after another."""
SMALL = "object-store-memory: '80000000'"
COUNT = """
import ray

@ray.remote(num_cpus=2)
class Counter:
    count = 0

    def up(self):
        self.count += 1
        return self.count

ray.init(namespace="test", logging_level=50, log_to_driver=False)
options = {"name": "counter", "lifetime": "detached", "get_if_exists": True}
print("COUNT", ray.get(Counter.options(**options).remote().up.remote(), timeout=120))
"""


def demo(redis: RedisServer) -> str:
    return f"""
metadata: {{name: demo}}
spec:
  gcsFaultToleranceOptions: {{redisAddress: '{redis.address}'}}
  fedpilot: {{redisPasswordFile: {redis.password_file}}}
  headGroupSpec:
    rayStartParams: {{num-cpus: '1', include-dashboard: 'false', {SMALL}}}
  workerGroupSpecs:
    - groupName: workers
      replicas: 1
      rayStartParams: {{num-cpus: '4', {SMALL}}}
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


def count(site: DeclaringSite) -> str:
    """Ask the detached actor, which only a worker has room for."""
    return site.said(COUNT).splitlines()[-1]


def reason(site: DeclaringSite) -> str:
    """Why the head is not as declared."""
    groups = site.seen()["groups"]
    return str(groups["headgroup"]["reason"]) if groups else ""


def pids(site: DeclaringSite, machine: str) -> set[int]:
    return {each.pid for each in site.processes_of(site.uid, machine) if each.program == "raylet"}


def test_a_new_head_has_what_the_old_one_knew_and_redis_may_go_away(
    site: DeclaringSite, redis: RedisServer
) -> None:
    redis.put("of others")
    site.serve()
    site.declare(demo(redis))
    site.done("wait", "demo")
    head, worker = site.machines()
    address, raylets = site.seen()["address"], pids(site, worker)
    assert [count(site), count(site)] == ["COUNT 1", "COUNT 2"]
    spec = 'VirtualCluster.from_dict({"flex_resource_min": {"CPU": 2}})'
    made = site.ask(f'clusters.create("team", {spec}, detached=True)')
    assert made["state"] == "active"
    for each in site.processes_of(site.uid):
        assert PASSWORD.encode() not in Path(f"/proc/{each.pid}/cmdline").read_bytes()

    signal_all(site.processes_of(site.uid, head), signal.SIGKILL)
    until(lambda: len(site.machines()) == 2 and head not in site.machines())
    assert worker in site.machines()
    assert (site.seen()["address"], pids(site, worker)) == (address, raylets)
    assert count(site) == "COUNT 3"
    states = '[(each["id"], each["state"]) for each in clusters.snapshot()["clusters"]]'
    until(lambda: ["team", "active"] in site.ask(states))
    managers = "sum(each['Name'] == 'virtual_cluster_manager' and each['State'] == 'ALIVE'"
    alive = f"{managers} for each in __import__('ray')._private.state.actors().values())"
    assert site.ask(alive) == 1

    redis.kill()
    until(lambda: "a head has to wait: the Redis at" in reason(site))
    redis.start()
    until(lambda: len(site.machines()) == 2 and not reason(site))
    assert pids(site, worker) == raylets
    assert count(site) == "COUNT 4"

    assert len(redis.keys()) > 1
    site.done("delete", "demo", "--wait")
    assert redis.keys() == {"of others"}


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_detached_actor_goes_on_however_often_its_head_is_killed(
    site: DeclaringSite, redis: RedisServer
) -> None:
    site.serve()
    site.declare(demo(redis))
    site.done("wait", "demo")
    head, worker = site.machines()
    raylets = pids(site, worker)
    for number in range(HEADS):
        assert count(site) == f"COUNT {number + 1}"
        signal_all(site.processes_of(site.uid, head), signal.SIGKILL)
        until(lambda gone=head: len(site.machines()) == 2 and gone not in site.machines())  # type: ignore[misc]
        (head,) = {*site.machines()} - {worker}
    assert count(site) == f"COUNT {HEADS + 1}"
    assert pids(site, worker) == raylets


@pytest.mark.soak
def test_a_head_waits_for_a_redis_that_takes_its_password(
    site: DeclaringSite, redis: RedisServer
) -> None:
    redis.password_file.write_text("wrong")
    site.serve()
    site.declare(demo(redis))
    until(lambda: "WRONGPASS" in reason(site))
    assert not site.seen()["machines"]
    aside = redis.password_file.with_suffix(".new")
    aside.write_text(PASSWORD)
    os.replace(aside, redis.password_file)
    site.done("wait", "demo")
