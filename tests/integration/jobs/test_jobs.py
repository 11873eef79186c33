"""Unmodified Ray scripts as jobs on a real Ray: held inside, ended whole, seen if they get out."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, SchedulingPolicy, VirtualCluster
from fedpilot.fabric.errors import NeverFits, NoSuchCluster, NoSuchJob, SpecError
from fedpilot.fabric.jobs.jobs import ENDED, Jobs
from fedpilot.fabric.manager.settings import KeeperSettings
from rays.jobs import (
    LOOK_S,
    ONE,
    SLEEPER,
    clusters,
    ended,
    printed,
    processes,
    says,
    script,
    two_machines,
)
from rays.machines import PATIENCE_S
from real_ray import eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(180)]

TWO = VirtualCluster(
    fixed_size_nodes=[
        FixedSizeNodes(
            nodes=[FixedSizeNode(resources={"CPU": 1}), FixedSizeNode(resources={"CPU": 1})],
            scheduling_policy=SchedulingPolicy.STRICT_SPREAD,
        )
    ]
)
GROUP = "ray._private.worker.global_worker.core_worker.get_placement_group_id().hex()"
NO_GROUP = "f" * 36


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with two_machines() as found:
        yield found


@pytest.fixture(scope="module")
def jobs(address: str) -> Jobs:
    return Jobs()


# -- held inside ------------------------------------------------------------------------------


def test_all_that_an_unmodified_script_submits_runs_in_its_virtual_cluster(
    jobs: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['MINE'] = 'ran'\n")
    command = script(
        tmp_path,
        f"""
        import json, os, subprocess, sys, time
        import ray
        from ray.util import list_named_actors

        def raw():
            return {GROUP}

        @ray.remote
        def task(): return raw()

        @ray.remote
        def outer(): return [raw(), *ray.get([task.remote(), task.remote()])]

        @ray.remote(num_cpus=1)
        class Actor:
            def who(self): return [raw(), ray.get(task.remote())]

        ray.init()
        found = {{"size": ray.cluster_resources()["CPU"], "nodes": len(ray.nodes())}}
        found["tasks"] = ray.get([task.remote() for _ in range(3)])
        for how in ("DEFAULT", "SPREAD"):
            found[how] = [ray.get(task.options(scheduling_strategy=how).remote())]
        found["nested"] = ray.get(outer.remote())
        actor = Actor.remote()
        found["actor"] = ray.get(actor.who.remote())
        below = subprocess.run(
            [sys.executable, "-c", "import ray\\n"
             "@ray.remote\\n"
             "def task(): return {GROUP}\\n"
             "print(ray.get(task.remote()))"],
            capture_output=True, text=True, check=True,
        )
        found["below"] = below.stdout.split()[-1:]
        found["mine"] = os.environ.get("MINE")
        print(json.dumps(found), flush=True)
        time.sleep(3)
        """,
    )
    id = jobs.submit(command, TWO, runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}})
    groups: set[str] = set()
    escapes: list[str] = []

    def over() -> bool:
        job = jobs.show(id)
        if job.cluster is not None:
            groups.update(g["id"] for node in job.cluster["nodes"] for g in node["groups"])
            escapes.extend(job.cluster["escapes"])
        return job.status in ENDED

    eventually(over, PATIENCE_S, "the job has ended", every_s=LOOK_S)
    assert ended(jobs, id).status == "SUCCEEDED", jobs.logs(id)
    found = printed(jobs, id)
    assert (found.pop("size"), found.pop("nodes"), found.pop("mine")) == (2.0, 2, "ran")
    assert groups
    assert {how: set(where) - groups for how, where in found.items() if set(where) - groups} == {}
    assert escapes == []


def test_a_script_with_a_search_path_of_its_own_is_held_too(jobs: Jobs, tmp_path: Path) -> None:
    """Its nested tasks, too, where they name a strategy and there is no room elsewhere."""
    command = script(
        tmp_path,
        f"""
        import json
        import ray

        ray.init()

        @ray.remote
        def task(): return {GROUP}

        @ray.remote
        def outer():
            found = {{"outer": {GROUP}}}
            for how in ("DEFAULT", "SPREAD"):
                found[how] = ray.get(task.options(scheduling_strategy=how).remote())
            return found

        found = {{"first": ray.get(task.remote()), "size": ray.cluster_resources()["CPU"]}}
        print(json.dumps({{**found, "nested": ray.get(outer.remote())}}))
        """,
    )
    id = jobs.submit(["env", f"PYTHONPATH={tmp_path}", *command], ONE)
    assert ended(jobs, id).status == "SUCCEEDED", jobs.logs(id)
    found = printed(jobs, id)
    assert found["size"] == 1.0
    assert found["nested"].keys() == {"outer", "DEFAULT", "SPREAD"}
    assert set(found["nested"].values()) == {found["nested"]["outer"]}
    assert NO_GROUP not in {found["first"], found["nested"]["outer"]}


def test_a_job_that_never_calls_init_joins_a_virtual_cluster_that_stays_and_names_machines(
    jobs: Jobs, tmp_path: Path
) -> None:
    """Work that names another machine, or what none has, is refused."""
    machines = [node["NodeID"] for node in ray.nodes()]
    command = script(
        tmp_path,
        f"""
        import json
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        @ray.remote(max_retries=0)
        def task(): return [ray.get_runtime_context().get_node_id(), {GROUP}]

        first = ray.get(task.remote())
        (mine,) = ray.nodes()
        (other,) = {{*{machines!r}}} - {{mine["NodeID"]}}
        address = "node:" + mine["NodeManagerAddress"]

        def at(machine, **how):
            return dict(scheduling_strategy=NodeAffinitySchedulingStrategy(machine, **how))

        def tried(**options):
            try:
                return ray.get(task.options(**options).remote(), timeout=20)
            except ValueError as error:
                return "refused: " + str(error)

        print(json.dumps({{
            "mine": mine["NodeID"],
            "first": first,
            "here": tried(**at(mine["NodeID"], soft=False)),
            "soft": tried(**at(other, soft=True)),
            "by address": tried(resources={{address: 0.01}}),
            "elsewhere": tried(**at(other, soft=False)),
            "gpus": tried(num_gpus=64),
            "unknown": tried(resources={{"node:10.11.12.13": 0.01}}),
        }}))
        """,
    )
    jobs.clusters.create("team", ONE, detached=True)
    try:
        id = jobs.submit(command, join="team")
        job = ended(jobs, id)
        assert (job.status, job.virtual_cluster, job.joined) == ("SUCCEEDED", "team", True)
        assert clusters(jobs)["team"]["escapes"] == []
    finally:
        jobs.clusters.delete("team")
    found = printed(jobs, id)
    for how in ("first", "here", "soft", "by address"):
        machine, group = found[how]
        assert machine == found["mine"]
        assert group != NO_GROUP
    assert "holds nothing on machine" in found["elsewhere"]
    assert "no machine has 1 CPU, 64 GPU: the most on one is 2 CPU, 0 GPU" in found["gpus"]
    assert "no machine of this Ray cluster has node:10.11.12.13" in found["unknown"]


# -- the queue, and the end -------------------------------------------------------------------


def test_a_job_whose_keeper_is_killed_leaves_nothing(jobs: Jobs, tmp_path: Path) -> None:
    command, marker = script(tmp_path, SLEEPER), str(tmp_path / "never")
    id = jobs.submit([*command, marker], ONE)
    says(jobs, id, "it runs")
    (confine,) = [p for p in processes(marker) if "fedpilot.fabric.confine" in p.cmdline()]
    confine.send_signal(signal.SIGKILL)
    eventually(lambda: id not in clusters(jobs), 60, "its virtual cluster is gone")
    eventually(lambda: not processes(marker), 60, "its command is gone")
    assert ended(jobs, id).status == "FAILED"


def test_a_job_whose_virtual_cluster_is_deleted_ends(jobs: Jobs, tmp_path: Path) -> None:
    command = script(tmp_path, "import time; print('it runs', flush=True); time.sleep(600)")
    marker = str(tmp_path / "never")
    id = jobs.submit(["sh", "-c", shlex.join([*command, marker]) + "; true"], ONE)
    says(jobs, id, "it runs")
    jobs.clusters.delete(id)
    eventually(lambda: not processes(marker), 60, "its command is gone, and what that started")
    why = "its virtual cluster has ended, and so has this command: it was deleted"
    assert (ended(jobs, id).status, jobs.show(id).message) == ("FAILED", why)


# -- what gets out ----------------------------------------------------------------------------


def test_who_takes_somebody_elses_places_is_seen_or_does_not_run(
    jobs: Jobs, tmp_path: Path
) -> None:
    group = placement_group([{"CPU": 1}], name="not yours", lifetime="detached")
    assert group.wait(PATIENCE_S)
    command = script(
        tmp_path,
        f"""
        import pathlib, time
        import ray
        from ray.util import get_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray.init(namespace={ray.get_runtime_context().namespace!r})

        @ray.remote
        def by_name(): time.sleep(60)

        @ray.remote(num_cpus=0, resources={{"CPU_group_{group.id.hex()}": 0.5}})
        def by_resource(): pathlib.Path({str(tmp_path / "got there")!r}).touch()

        there = PlacementGroupSchedulingStrategy(get_placement_group("not yours"))
        out = [by_name.options(scheduling_strategy=there, num_cpus=0.5).remote()]
        try:
            out.append(by_resource.remote())
        except ValueError:
            pass
        print("both are asked for", flush=True)
        ray.get(out)
        """,
    )
    id = jobs.submit(command, ONE)

    def seen() -> bool:
        cluster = clusters(jobs).get(id)
        return cluster is not None and any("by_name" in each for each in cluster["escapes"])

    try:
        eventually(seen, PATIENCE_S, "it is seen where it should not be", every_s=LOOK_S)
        says(jobs, id, "both are asked")
        time.sleep(2 * KeeperSettings().audit_s)
        assert not (tmp_path / "got there").exists()
    except AssertionError as error:
        raise AssertionError(f"{jobs.show(id)}\n{jobs.logs(id)}") from error
    finally:
        jobs.stop(id)
        remove_placement_group(group)
    ended(jobs, id)


def test_drivers_that_know_nothing_of_their_virtual_cluster_are_seen(
    jobs: Jobs, tmp_path: Path
) -> None:
    """One is never told of it, and the other forgets it; both belong to one job."""

    def driver(task: str, first: str = "") -> list[str]:
        (folder := tmp_path / task).mkdir()
        return script(
            folder,
            f"""
            import os, time
            import ray

            {first}
            ray.init()

            @ray.remote(num_cpus=0.5)
            def {task}(): time.sleep(60)

            ray.get({task}.remote())
            """,
        )

    untold = ["env", "--unset=PYTHONPATH", "--unset=RAY_RUNTIME_ENV_HOOK", *driver("untold")]
    forgets = driver("forgets", "os.environ.pop('FEDPILOT_VIRTUAL_CLUSTER')")
    both = f"{shlex.join(untold)} & {shlex.join(forgets)} & wait"
    id = jobs.submit(["sh", "-c", both], ONE)

    def seen() -> bool:
        escapes = clusters(jobs).get(id, {}).get("escapes", ())
        return all(any(task in each for each in escapes) for task in ("untold", "forgets"))

    try:
        eventually(seen, PATIENCE_S, "both are seen", every_s=LOOK_S)
    except AssertionError as error:
        raise AssertionError(f"{jobs.show(id)}\n{jobs.logs(id)}") from error
    finally:
        jobs.stop(id)
    ended(jobs, id)


# -- what is refused --------------------------------------------------------------------------


def test_what_can_never_be_is_refused_before_anything_is_submitted(jobs: Jobs) -> None:
    before = [job.id for job in jobs.list()]
    with pytest.raises(NeverFits):
        jobs.submit(["true"], VirtualCluster(flex_resource_min={"CPU": 40}))
    with pytest.raises(NoSuchCluster):
        jobs.submit(["true"], join="nobody")
    with pytest.raises(SpecError, match="worker_process_setup_hook"):
        jobs.submit(["true"], runtime_env={"worker_process_setup_hook": "mine.hook"})
    with pytest.raises(SpecError, match="runtime_env"):
        jobs.submit(["true"], runtime_env={"working_dir": "/nowhere/at/all"})
    with pytest.raises(NoSuchJob):
        jobs.show("nothing")
    with pytest.raises(NoSuchJob):
        jobs.logs("nothing")
    assert [job.id for job in jobs.list()] == before
