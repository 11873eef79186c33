"""How long a caller of the manager waits while it plans a large cluster.

The manager's own reconciler, file and port in one process, on a Ray that does at once what it is
asked; callers in other processes create virtual clusters and delete them, over the port.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring import Run, called, measured, parser, process, spread, table

from fedpilot.fabric import Bundle, Machine, Resources, SchedulingPolicy
from fedpilot.fabric.core.audit import Running
from fedpilot.fabric.core.cluster_state import Entry, JobId
from fedpilot.fabric.core.places.groups import GroupId, PlacementGroupRecord
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import ROOT, BundleGroup, ClusterId, MachineId, ProcessId
from fedpilot.fabric.manager.actor import collect
from fedpilot.fabric.manager.files.ledger_file import LedgerFile
from fedpilot.fabric.manager.reconciler import Reconciler
from fedpilot.fabric.manager.rpc import Address, ManagerConnections, Port
from fedpilot.fabric.manager.settings import KeeperSettings
from fedpilot.fabric.manager.snapshot import Snapshot
from fedpilot.fabric.ray.control_plane.protocol import Observed, Seen

SECTION = "answers"
REPETITIONS = 5
MACHINES, WORKLOADS, GPUS = 1_000, 15_000, 8
QUEUES = 30
CALLS = 300
PAUSE_S = 0.05
"""Between two calls of the caller."""
PATIENCE_S = 60.0
JOB = JobId("01000000")


class InstantRay:
    """A Ray that does at once what it is asked, at a cost that does not grow with it."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self.machines = {machine.id: machine for machine in machines}
        self._free = {id: machine.total for id, machine in self.machines.items()}
        self._groups: dict[GroupId, Seen] = {}

    async def create(
        self,
        group: PlacementGroupRecord,
        name: str,
        labels: Iterable[Mapping[str, str]],
        timeout_s: float,
        /,
    ) -> bool:
        hosts = tuple(piece.machine for piece in group.pieces)
        carries = tuple(piece.resources for piece in group.pieces)
        self._groups[group.id] = Seen(
            id=group.id, name=name, state="created", hosts=hosts, carries=carries, why=""
        )
        for host, amount in zip(hosts, carries, strict=True):
            if host is not None:
                self._free[host] -= amount
        return True

    async def look(self, id: GroupId, /) -> Seen | None:
        return self._groups.get(id)

    async def remove(self, id: GroupId, /) -> None:
        gone = self._groups.pop(id, None)
        for host, amount in zip(gone.hosts, gone.carries, strict=True) if gone else ():
            if host in self._free:
                self._free[host] += amount

    async def available(self) -> Mapping[MachineId, Resources]:
        return self._free

    async def dead(self, actors: Collection[str], /) -> frozenset[str]:
        return frozenset()

    async def over(self, processes: Collection[ProcessId], /) -> frozenset[ProcessId]:
        return frozenset()

    async def bury(self) -> tuple[MachineId, ...]:
        return ()

    async def running(self, jobs: Collection[JobId], /) -> Sequence[Running]:
        return ()

    async def observe(
        self, known: Mapping[GroupId, int], /, *, everything: bool = False
    ) -> Observed:
        return Observed(
            machines=tuple(self.machines.values()),
            groups=dict(self._groups),
            available=dict(self._free),
            jobs=frozenset({JOB}),
            named={},
            in_use=frozenset(),
            wanted={},
        )

    def joins(self, machine: Machine) -> None:
        self.machines[machine.id] = machine
        self._free[machine.id] = machine.total


def machine(number: int) -> Machine:
    total = Resources.of({"GPU": GPUS, "CPU": 8 * GPUS})
    return Machine(id=MachineId(f"{number:056x}"), hostname=f"m{number}", total=total, labels={})


def asks(name: str, gpus: float, project: str) -> Entry:
    bundle = Bundle(resources=Resources.of({"GPU": gpus, "CPU": gpus}), selector={})
    group = BundleGroup(bundles=(bundle,), policy=SchedulingPolicy.PACK)
    request = Request(
        id=ClusterId(name),
        parent=ROOT,
        groups=(group,),
        least=Resources(),
        limits={},
        flexible=False,
        project=project,
    )
    return Entry(request=request, owner=JOB, asked_at=time.time())


def queues() -> dict[str, Any]:
    """Projects with quotas that are half of what there is."""
    quota = MACHINES * GPUS // (2 * QUEUES)
    projects = [{"name": f"p{n}", "quota": {"default": {"GPU": quota}}} for n in range(QUEUES)]
    return {"projects": projects, "settings": {"grace_s": 1.0}}


# -- the manager ----------------------------------------------------------------------------------


def child(news: str) -> Run:
    """A manager in this process, with a caller in another one, while workloads come and go."""
    return asyncio.run(_manager(news))


async def _manager(news: str) -> Run:
    ray = InstantRay(machine(n) for n in range(MACHINES))
    ids = itertools.count(1)
    with tempfile.TemporaryDirectory() as folder:
        reconciler = Reconciler(
            ray,
            LedgerFile(Path(folder) / "ledger"),
            clock=time.time,
            new_id=lambda _: GroupId(f"{next(ids):032x}"),
            settings=KeeperSettings(),
        )
        await reconciler.start()
        reconciler.admission.apply_queues(queues(), None, "", dry_run=False)
        dice = random.Random(1)
        for number in range(WORKLOADS):
            entry = asks(f"w{number}", dice.choice([1, 1, 2, 4, 8]), f"p{number % QUEUES}")
            reconciler.state.add(entry)
        await _turns(reconciler, 20.0)
        collect()

        async def create(entry: Entry, wait_s: float) -> Mapping[str, Any]:
            await reconciler.create(entry, wait_s=wait_s)
            return Snapshot(reconciler).brief(entry.request.id)

        async def delete(id: ClusterId, key: str) -> tuple[str, ...]:
            return await reconciler.delete(id, key)

        port = Port({"create": create, "delete": delete})
        address = await port.open("127.0.0.1")
        assert address is not None
        words = address.host, address.port, address.token.hex()
        with process("answers:caller", *words) as caller:
            turning = asyncio.create_task(_turns(reconciler, PATIENCE_S * 10))
            lag = asyncio.create_task(_lag())
            told = asyncio.create_task(asyncio.to_thread(_said, caller))
            joined = itertools.count(MACHINES)
            while not told.done():
                await asyncio.sleep(1.0)
                if news == "machines":
                    ray.joins(machine(next(joined)))
            took = await told
            for task in (turning, lag):
                task.cancel()
            port.close()
            await asyncio.sleep(0.1)
        running = sum(not each.waiting for each in reconciler.state.entries.values())
        return {
            "median_s": statistics.median(took),
            "p99_s": sorted(took)[int(len(took) * 0.99)],
            "most_s": max(took),
            "calls": len(took),
            "running": running,
            "longest_pause_s": max(PAUSES),
        }


async def _turns(reconciler: Reconciler, seconds: float) -> None:
    """As the actor does; at most for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(KeeperSettings().turn_s)
        await reconciler.turn()


PAUSES = [0.0]


async def _lag() -> None:
    """Note for how long the loop does nothing else."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        PAUSES.append(time.perf_counter() - began - 0.005)


def _said(caller: Any) -> list[float]:
    found: list[float] = pickle.loads(bytes.fromhex(caller.stdout.readline().strip()))
    return found


# -- the caller -----------------------------------------------------------------------------------


def caller(host: str, port: int, token: str) -> Run:
    """Create and delete over the manager's port, and print how long each creation took."""
    connections = ManagerConnections(_NoActor())
    connections.use(Address(host, int(port), bytes.fromhex(token)))
    took, dice = list[float](), random.Random(2)
    for number in range(CALLS):
        time.sleep(PAUSE_S)
        name, project = f"c{number}", f"p{dice.randrange(QUEUES)}"
        began = time.perf_counter()
        _, error = connections.call("create", (asks(name, 1, project), 0.0), PATIENCE_S)
        took.append(time.perf_counter() - began)
        assert error is None, error
        if number % 2:
            connections.call("delete", (name, f"key {name}"), PATIENCE_S)
    print(pickle.dumps(took).hex(), flush=True)
    sys.stdin.readline()
    return {}


class _NoActor:
    """Stands for the actor, whose address is known."""

    @property
    def address(self) -> _NoActor:
        return self

    def remote(self) -> None:
        return None


# -- the rows -------------------------------------------------------------------------------------

WHAT = {
    "workloads": f"{WORKLOADS:,} workloads, {MACHINES:,} machines, others come and go",
    "machines": "the same, and a machine joins every second",
}


def text(runs: Mapping[str, list[Run]]) -> str:
    rows = [
        [
            WHAT[name],
            spread(run["median_s"] for run in done).text(1, 1000),
            spread(run["p99_s"] for run in done).text(1, 1000),
            spread(run["most_s"] for run in done).text(1, 1000),
            str(len(done)),
        ]
        for name, done in runs.items()
    ]
    return table(["while", "median, ms", "99 %, ms", "most, ms", "runs"], rows)


def main() -> None:
    arguments = parser(str(__doc__), REPETITIONS).parse_args()

    def once(name: str, _turn: int) -> Run:
        return called("answers:child", name)

    def say(run: Run) -> str:
        return f"p99 {run['p99_s'] * 1000:.0f} ms, most {run['most_s'] * 1000:.0f} ms"

    print(text(measured(SECTION, WHAT, once, say, arguments)))
