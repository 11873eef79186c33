"""What a round of the scheduler costs: allocate, reclaim by whole machines, a turn without news.

CPU time of a process, since nothing waits; the snapshot's making is included. Each figure is the
median of processes that warm up, and then do the work once.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from measuring import Run, called, measured, parser, spread, table

from fedpilot.fabric.core.scheduling.plan import plan
from fedpilot.fabric.core.scheduling.records import (
    UNLIMITED,
    GangPart,
    GangSpec,
    MachineIndex,
    Member,
    PoolQueue,
    QueueIndex,
    SchedulingPlan,
    Settings,
    StartMembers,
    StopMembers,
    Workload,
    WorkloadId,
)
from fedpilot.fabric.core.scheduling.snapshot import Facts, MachineSpec, Scale
from fedpilot.fabric.simulation.case_schema import SettleCase
from fedpilot.fabric.simulation.play import play

SECTION = "scheduler"
REPETITIONS = 9
GPUS = 8
SETTINGS = Settings()
MEMBERS = 10
"""A reclaiming gang asks for a member per so many machines."""


def cluster(machines: int, departments: int, quotas: list[int]) -> tuple[Facts, list[QueueIndex]]:
    """Machines of 8 GPUs and projects with these quotas, in departments by turns."""
    scale = Scale.of({"gpu": machines * GPUS})
    unit = scale.units[0]
    specs = [
        MachineSpec(name=f"m{i:05}", pool="default", capacity=(GPUS * unit,), labels={})
        for i in range(machines)
    ]
    queues: list[PoolQueue] = []

    def queue(name: str, quota: int, parent: QueueIndex | None, *, leaf: bool) -> None:
        queues.append(
            PoolQueue(
                name=name,
                pool="default",
                parent=parent,
                leaf=leaf,
                quota=(quota * unit,),
                weight=(Fraction(1),),
                limit=(UNLIMITED,),
                rationed=(True,),
                created=len(queues),
            )
        )

    for number in range(departments):
        mine = quotas[number::departments]
        queue(f"D{number}", sum(mine), None, leaf=False)
    for number, quota in enumerate(quotas):
        parent = QueueIndex(number % departments) if departments else None
        queue(f"P{number}", quota, parent, leaf=True)
    leaves = [QueueIndex(i) for i, each in enumerate(queues) if each.leaf]
    return Facts(scale, specs, queues, each_gpu=False), leaves


def workload(
    number: int, queue: QueueIndex, *, gpus: int = 1, members: int = 1, on: int | None = None
) -> Workload:
    part = GangPart(request=(gpus * 10_000,), least=members, most=members)
    found = Workload(
        id=WorkloadId(f"w{number:06}"),
        queue=queue,
        gang=GangSpec(parts=(part,)),
        priority=50,
        preemptible=True,
        submit_order=number,
    )
    return found if on is None else found.started((Member(0, MachineIndex(on)),), 0.0)


def allocate(machines: int = 100, pending: int = 500) -> tuple[float, SchedulingPlan]:
    """Start pending jobs of one GPU of 4 projects in 2 departments."""
    facts, leaves = cluster(machines, 2, [machines] * 4)
    jobs = [workload(i, leaves[i % 4]) for i in range(pending)]
    return timed(facts, jobs)


def reclaim(machines: int) -> tuple[float, SchedulingPlan]:
    """Reclaim for a gang, within its quota, from machines full of the jobs of three projects."""
    gang = machines // MEMBERS
    rest = (machines * GPUS - gang * GPUS) // 3
    facts, leaves = cluster(machines, 0, [gang * GPUS, rest, rest, rest])
    places = [i for i in range(machines) for _ in range(GPUS)]
    random.Random(1).shuffle(places)
    jobs = [workload(i, leaves[1 + i % 3], on=place) for i, place in enumerate(places)]
    jobs.append(workload(len(jobs), leaves[0], gpus=GPUS, members=gang))
    seconds, planned = timed(facts, jobs)
    stopped = sum(
        len(each.positions) for each in planned.decisions if isinstance(each, StopMembers)
    )
    started = [each for each in planned.decisions if isinstance(each, StartMembers)]
    if stopped != gang * GPUS or len(started) != 1:
        raise SystemExit(f"stopped {stopped} for {gang} members, started {len(started)} gangs")
    return seconds, planned


def no_news(machines: int = 1_000, workloads: int = 15_000) -> tuple[float, SchedulingPlan]:
    """A turn on a full cluster whose backlog cannot start; only the turn counts."""
    facts, leaves = cluster(machines, 5, [machines * GPUS // 30] * 30)
    full = machines * GPUS
    for i in range(workloads):
        on = i // GPUS if i < full else None
        facts.add(workload(i, leaves[i % 30], on=on))
    for decision in plan(facts.snapshot(), 0.0, SETTINGS).decisions:
        facts.apply(decision, 0.0)
    return timed(facts, [])


def stream(workloads: int = 15_000) -> tuple[float, Any]:
    """Replay short workloads of three sizes in 30 queues of 5 departments, as in Kueue's baseline:
    all arrive within 100 s, and the machines are busy for some 600 s."""
    draw = random.Random(1)
    sizes = [(1, 2.0)] * 7 + [(5, 5.0)] * 2 + [(20, 10.0)]
    jobs = []
    for number in range(workloads):
        cpus, runs_s = sizes[number % len(sizes)]
        jobs.append(
            {
                "id": f"w{number:05}",
                "project": f"P{draw.randrange(30)}",
                "member_request": {"cpu": cpus},
                "arrives_s": round(draw.uniform(0, 100), 1),
                "runs_s": runs_s,
            }
        )
    quota = {"default": {"cpu": 20}}
    case = {
        "id": "stream",
        "kind": "settle",
        "nodes": [{"name": f"m{i}", "capacity": {"cpu": 20}} for i in range(30)],
        "departments": [{"name": f"D{i}", "quota": {"default": {"cpu": 120}}} for i in range(5)],
        "projects": [
            {"name": f"P{i}", "department": f"D{i % 5}", "quota": quota} for i in range(30)
        ],
        "workloads": jobs,
    }
    begin = time.process_time()
    answer = play(SettleCase.model_validate(case))
    seconds = time.process_time() - begin
    finished = sum(each["finished"] for each in answer["replay"]["projects"].values())
    if finished != workloads:
        raise SystemExit(f"only {finished} of {workloads} workloads ended")
    return seconds, answer["replay"]


def timed(facts: Facts, jobs: list[Workload]) -> tuple[float, SchedulingPlan]:
    """CPU seconds to take up the workloads, make the snapshot, and plan."""
    begin = time.process_time()
    for job in jobs:
        facts.add(job)
    planned = plan(facts.snapshot(), 0.0, SETTINGS)
    return time.process_time() - begin, planned


WORKS: Mapping[str, Callable[[], tuple[float, Any]]] = {
    "allocate: 100 machines, 500 pending jobs": allocate,
    "a turn without news: 1,000 machines, 15,000 workloads": no_news,
    "reclaim: 100 machines": lambda: reclaim(100),
    "reclaim: 500 machines": lambda: reclaim(500),
    "reclaim: 1,000 machines": lambda: reclaim(1_000),
    "reclaim: 10,000 machines": lambda: reclaim(10_000),
    "replay: 15,000 workloads, 30 queues": stream,
}


def child(name: str) -> Run:
    """Do one work once, in a process that has warmed up."""
    allocate()
    reclaim(100)
    return {"cpu_s": WORKS[name]()[0]}


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table that the page shows, and how reclaim grows."""
    rows = [
        [name, spread(run["cpu_s"] for run in runs[name]).text(1, 1e3), str(len(runs[name]))]
        for name in WORKS
        if name in runs
    ]
    told = table(["work", "CPU, ms", "runs"], rows)
    medians = {name: statistics.median(run["cpu_s"] for run in each) for name, each in runs.items()}
    small, large = "reclaim: 1,000 machines", "reclaim: 10,000 machines"
    if small in medians and large in medians:
        power = math.log10(medians[large] / medians[small])
        told += (
            f"\n\nFrom 1,000 to 10,000 machines reclaim grows as *n* to the power of {power:.2f}."
        )
    return told


def main() -> None:
    options = parser(__doc__ or "", REPETITIONS)
    options.add_argument("--only", nargs="+", default=[""], help="parts of the names of works")
    given = options.parse_args()
    names = [name for name in WORKS if any(part in name for part in given.only)]

    def once(name: str, _turn: int) -> Run:
        return called("scheduler:child", name)

    def say(run: Run) -> str:
        return f"{1e3 * run['cpu_s']:>9,.1f} ms"

    print("\n" + text(measured(SECTION, names, once, say, given)))


if __name__ == "__main__":
    main()
