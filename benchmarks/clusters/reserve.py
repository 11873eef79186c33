"""What a reservation through the manager costs beside a bare placement group of Ray's.

Three raylets with more (made-up) CPUs than are asked for, both by turns in the same process.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from measuring import Run, called, measured, parser, ratios, spread, table

SECTION = "reserve"
BUNDLES, PRESENT = (1, 10, 100), (0, 1_000)
MACHINES, CPUS = 3, 400
PAUSE_S = 0.5
"""Between a removal and the next reservation: Ray sees late that something is free again."""
PATIENCE_S = 60.0
SMALL = 0.1
"""CPUs of a virtual cluster that is only there."""


# -- one process ------------------------------------------------------------------------------


@contextmanager
def own_ray() -> Iterator[str]:
    """The folder of a Ray of our own, which ends with this, and with it what drives it."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    folder = tempfile.mkdtemp(prefix="ray-")
    os.makedirs(os.path.join(tempfile.gettempdir(), "ray"), exist_ok=True)  # Ray takes it for made
    try:
        yield folder
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def machines() -> Iterator[None]:
    """Several raylets, with this process as a driver."""
    with own_ray() as folder:
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": CPUS, "object_store_memory": 10**8}
        head = {**node, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(MACHINES - 1):
                cluster.add_node(**node)
            ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


def timed(reserve: Callable[[], Callable[[], object]]) -> float:
    """Seconds of a reservation, which is given up afterwards."""
    started = time.perf_counter()
    give_up = reserve()
    took = time.perf_counter() - started
    give_up()
    time.sleep(PAUSE_S)
    return took


def child(bundles: int, present: int, times: int) -> Run:
    """Reserve so many bundles again and again, while so many virtual clusters are there."""
    from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster
    from fedpilot.fabric.inside.virtual_clusters import VirtualClusters

    def spec(count: int, cpus: float = 1.0) -> VirtualCluster:
        nodes = (FixedSizeNode(resources={"CPU": cpus}),) * count
        return VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=nodes),))

    with machines():
        from ray.util.placement_group import placement_group, remove_placement_group

        clusters = VirtualClusters()
        clusters.snapshot()
        started = time.perf_counter()
        for number in range(present):
            clusters.create(f"there-{number}", spec(1, SMALL))
        filled = time.perf_counter() - started

        def through_the_manager() -> Callable[[], object]:
            document = clusters.create("measured", spec(bundles), wait_s=PATIENCE_S)
            assert document["state"] == "active", document["state"]
            return lambda: clusters.delete("measured")

        def bare() -> Callable[[], object]:
            group = placement_group([{"CPU": 1}] * bundles, strategy="PACK")
            assert group.wait(PATIENCE_S)
            return lambda: remove_placement_group(group)

        for reserve in (through_the_manager, bare):  # once to warm up
            timed(reserve)
        seconds: dict[str, list[float]] = {"manager_s": [], "bare_s": []}
        for turn in range(times):
            both = [("manager_s", through_the_manager), ("bare_s", bare)]
            for name, reserve in both if turn % 2 else reversed(both):
                seconds[name].append(timed(reserve))
    return {"bundles": bundles, "present": present, "filled_s": filled, **seconds}


# -- all of them ------------------------------------------------------------------------------


def over(run: Run) -> float:
    """Seconds that the manager takes more than Ray alone."""
    return statistics.median(run["manager_s"]) - statistics.median(run["bare_s"])


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table that the page shows."""
    rows = []
    for name, each in runs.items():
        mine = [statistics.median(run["manager_s"]) for run in each]
        bare = [statistics.median(run["bare_s"]) for run in each]
        times = (mine, bare, [over(run) for run in each])
        ms = [spread(found).text(1, 1e3) for found in times]
        rows.append([name, *ms, ratios(mine, bare).text(2) + " ×", str(len(each))])
    header = ["reservation", "manager, ms", "bare, ms", "more, ms", "manager ÷ bare", "runs"]
    return table(header, rows)


def tasks(bundles: list[int], present: list[int]) -> dict[str, tuple[int, int]]:
    """(bundles, virtual clusters that are there) by name."""
    found = {}
    for there in present:
        for count in bundles:
            name = f"{count} bundle{'s' if count > 1 else ''}"
            found[name + (f", {there:,} there" if there else "")] = (count, there)
    return found


def main() -> None:
    options = parser(__doc__ or "", reps=5)
    options.add_argument("--bundles", type=int, nargs="+", default=list(BUNDLES))
    options.add_argument("--present", type=int, nargs="+", default=list(PRESENT))
    options.add_argument("--times", type=int, default=15, help="reservations of each in a process")
    arguments = options.parse_args()
    todo = tasks(arguments.bundles, arguments.present)

    def once(name: str, _turn: int) -> Run:
        return called("reserve:child", *todo[name], arguments.times)

    def say(run: Run) -> str:
        return f"{1e3 * over(run):>9,.1f} ms over bare"

    print("\n" + text(measured(SECTION, todo, once, say, arguments)))
