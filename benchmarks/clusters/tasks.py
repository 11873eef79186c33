"""What a task costs inside a virtual cluster, beside bare Ray, and what its end costs the manager.

One Ray with as many CPUs as a virtual cluster of ours takes: bare, fixed-size nodes and flexible
resources by turns in the same process. The manager's own cost is measured without Ray, in one
process: the CPU time from "this task has ended" to the next, while so many others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from measuring import Run, called, measured, parser, ratios, spread, table

from .reserve import own_ray

SECTION = "tasks"
CPUS = 2
BURSTS = (100, 1_000)
"""How many tasks that do nothing are submitted at once."""
WAITING = (200, 2_000, 10_000)
"""How many tasks wait while others end."""
FORMS = ("bare", "fixed", "flexible")
ENDS, BLOCKS = 100, 7
"""So many ends are timed together, and so many times."""
LATENCY, COST = "tasks", "the manager"


# -- latency, on a Ray ------------------------------------------------------------------------


def latency(times: int) -> Run:
    """Round trips, and bursts, in each form by turns."""
    from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster

    nodes = (FixedSizeNode(resources={"CPU": 1}),) * CPUS
    specs: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
        "bare": contextlib.nullcontext,
        "fixed": lambda: VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=nodes),)),
        "flexible": lambda: VirtualCluster(
            flex_resource_min={"CPU": CPUS}, flex_resource_max={"CPU": CPUS}
        ),
    }
    found: dict[str, list[float]] = {}
    with own_ray() as folder:
        from fedpilot import fabric

        fabric.init(
            num_cpus=CPUS,
            include_dashboard=False,
            object_store_memory=10**8,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )
        for turn in range(times + 1):  # the first warms up
            for form in FORMS if turn % 2 else reversed(FORMS):
                with specs[form]():
                    for name, took in _measured_here().items():
                        if turn:
                            found.setdefault(f"{form}_{name}_s", []).append(took)
    return dict(found)


def _measured_here() -> dict[str, float]:
    """What a round trip and bursts take where this process is now."""
    import ray

    @ray.remote(num_cpus=1)
    def nothing() -> None:
        return None

    ray.get([nothing.remote() for _ in range(2 * CPUS)])
    trips = []
    for _ in range(30):
        time.sleep(0.01)
        others = [nothing.remote() for _ in range(CPUS)]  # so that it is full
        started = time.perf_counter()
        ray.get(nothing.remote())
        trips.append(time.perf_counter() - started)
        ray.get(others)
    found = {"trip": statistics.median(trips)}
    for count in BURSTS:
        time.sleep(0.5)
        started = time.perf_counter()
        ray.get([nothing.remote() for _ in range(count)])
        found[f"{count}"] = time.perf_counter() - started
    return found


# -- the manager's cost, on paper -------------------------------------------------------------


def cost() -> Run:
    """Milliseconds of CPU per task that ends, by how many wait behind it."""
    made = {count: desk(count) for count in WAITING}
    found: dict[str, list[float]] = {f"waiting_{count}_ms": [] for count in WAITING}
    for _ in range(BLOCKS):
        for count, end in made.items():
            started = time.process_time()
            for _ in range(ENDS):
                end()
            found[f"waiting_{count}_ms"].append(1e3 * (time.process_time() - started) / ENDS)
    return dict(found)


def desk(waiting: int, kinds: int = 1) -> Callable[[], None]:
    """A manager with so many tasks that wait; each call ends one, and one more comes."""
    from fedpilot.fabric.core.cluster_state import Entry
    from fedpilot.fabric.core.places.groups import GroupId
    from fedpilot.fabric.core.places.request import Request
    from fedpilot.fabric.core.records import ROOT, ClusterId, ProcessId, WorkId
    from fedpilot.fabric.core.resources import Resources
    from fedpilot.fabric.core.selectors import parse
    from fedpilot.fabric.manager.files.ledger_file import LedgerFile
    from fedpilot.fabric.manager.reconciler import Reconciler
    from fedpilot.fabric.manager.routing.messages import Ask
    from fedpilot.fabric.testing.fake_cluster import ManualClock, fake_machine
    from fedpilot.fabric.testing.fake_gcs import FakeRay

    groups, works, clock = itertools.count(1), itertools.count(1), ManualClock(1000.0)
    ray, all_of_it = FakeRay(clock), Resources.of({"CPU": 8})
    ray.machine_up(fake_machine("a", CPU=8))
    reconciler = Reconciler(
        ray, LedgerFile(None), clock=clock, new_id=lambda _: GroupId(f"g{next(groups)}")
    )
    request = Request(id=ClusterId("job"), parent=ROOT, least=all_of_it)

    def submit() -> None:
        number = next(works)
        reconciler.router.place(
            Ask(
                id=WorkId(f"w{number}"),
                cluster=request.id,
                demand=Resources.of({"CPU": 1}),
                selector={"kind": parse(f"!in(k{number % kinds})")} if kinds > 1 else {},
                owner=ProcessId("driver"),
            )
        )
        reconciler.admission.commit()

    async def begin() -> None:
        await reconciler.start()
        await reconciler.create(Entry(request=request))
        for _ in range(waiting + 8):
            submit()

    async def end() -> None:
        reconciler.router.done([next(iter(reconciler.state.ledger.uses))])
        reconciler.admission.commit()
        submit()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    return lambda: loop.run_until_complete(end())


# -- all of them ------------------------------------------------------------------------------


def text(runs: Mapping[str, list[Run]]) -> str:
    """The tables: each form beside bare Ray, and the manager's cost by the queue's length."""
    rows = []
    measures = {"trip": "one task", **{f"{n}": f"{n:,} at once" for n in BURSTS}}
    for name, label in measures.items():
        found = {form: _each(runs.get(LATENCY, []), f"{form}_{name}_s") for form in FORMS}
        if all(found.values()):
            times = [ratios(found[form], found["bare"]).text(2) + " ×" for form in FORMS[1:]]
            ms = [spread(found[form]).text(1, 1e3) for form in FORMS]
            rows.append([label, *ms, *times])
    queues = {n: _each(runs.get(COST, []), f"waiting_{n}_ms") for n in WAITING}
    costs = [
        [f"{count:,}", spread(each).text(3), ratios(each, queues[WAITING[0]]).text(2) + " ×"]
        for count, each in queues.items()
        if each
    ]
    return f"{table(HEADER, rows)}\n\n{table(COST_HEADER, costs)}"


def _each(runs: Sequence[Run], name: str) -> list[float]:
    """The medians of single processes."""
    return [statistics.median(run[name]) for run in runs if name in run]


HEADER = ("tasks", "bare, ms", "fixed, ms", "flexible, ms", "fixed ÷ bare", "flexible ÷ bare")
COST_HEADER = ("tasks that wait", "manager's CPU per task, ms", "÷ the fewest")


def main() -> None:
    options = parser(__doc__ or "", reps=3)
    options.add_argument("--times", type=int, default=5, help="turns of each form in a process")
    arguments = options.parse_args()

    def once(name: str, _turn: int) -> Run:
        return called("tasks:latency", arguments.times) if name == LATENCY else called("tasks:cost")

    def say(run: Run) -> str:
        return ", ".join(
            f"{name} {statistics.median(each):.3g}"
            for name, each in run.items()
            if isinstance(each, list)
        )

    print("\n" + text(measured(SECTION, [LATENCY, COST], once, say, arguments)))
