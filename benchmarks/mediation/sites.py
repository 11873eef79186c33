"""What a site costs the mediator: processor seconds per round, and memory, for more and more sites.

The mediator is a process with the settings that it has by itself, and so is a coordinator; only a
silent site is waited for longer, since all of them live in one process that may be busy. Sites
speak the real protocol, over loopback with mutual TLS, out of one process, and no Ray is behind
them. In a round each site gets one order with the same model, and answers with one of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from measuring import Failed, Run, called, line_of, measured, parser, process, spread, table

from .mediated import RUN, connected, round_of, serve, submitted

SECTION = "sites"
COUNTS = (25, 50, 100, 200)
LARGE = (200,)
"""How many sites get a large model."""
PARAMETERS, LARGE_PARAMETERS = 250_000, 2_500_000
"""Of four bytes each."""
IDLE_S = 10.0
"""How long only heartbeats are counted."""
JOIN_S = 120.0
ROUND_S = 300.0


# -- the mediator's process, and the coordinator's ------------------------------------------------


async def mediate(folder: str) -> None:
    """A mediator that waits longer for silent sites."""
    from fedpilot.mediator.core.health import HealthSettings

    await serve("sites", folder, health=HealthSettings(grace_s=ROUND_S))


def coordinate(folder: str, run: str) -> None:
    """Some rounds with all sites; writes what each cost the mediator, whose child it is."""
    place = Path(folder) / "runs" / run
    config = json.loads((place / "config.yaml").read_text())
    mediator = psutil.Process(os.getppid())
    rounds = []
    with connected(folder, run) as connection:
        ready = connection.wait_for_sites(config["sites"], timeout_s=JOIN_S)
        for number in range(1, config["rounds"] + 1):
            forget_peak(mediator)
            cpu = cpu_s(mediator)
            took = round_of(connection, ready, number, config["parameters"], ROUND_S)
            rounds.append(
                {
                    "round_s": took,
                    "cpu_s": cpu_s(mediator) - cpu,
                    "peak_bytes": peak_bytes(mediator),
                }
            )
    (place / "rounds.json").write_text(json.dumps(rounds))


def cpu_s(process: psutil.Process) -> float:
    """What a process has used of the processors, without its children."""
    used = process.cpu_times()
    return float(used.user + used.system)


def forget_peak(process: psutil.Process) -> None:
    """Have the most memory that a process has had counted from now on."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peak_bytes(process: psutil.Process) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (kib,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kib) << 10


# -- the sites' process ---------------------------------------------------------------------------


async def sites(
    folder: Path, address: str, mediator: psutil.Process, count: int, parameters: int, n: int
) -> Run:
    """Join, be idle, and serve `n` rounds; what all of that cost the mediator."""
    import numpy as np

    from fake_agents import FakeAgent
    from fedpilot.mediator import Payload
    from fedpilot.mediator.identity import Authority, Role
    from fedpilot.mediator.proto import federation_pb2 as pb
    from fedpilot.mediator.wire.transfer import keep_freed_memory

    keep_freed_memory()
    authority = Authority.open(folder / "certs")
    turn = asyncio.Lock()

    def agent(number: int) -> FakeAgent:
        async def answer(order: pb.Order, payload: Payload) -> Payload:
            if order.verb != "work":
                return Payload(kind="done")
            async with turn:  # the answers are written one by one, and heartbeats go out between
                await asyncio.sleep(0)
            model = np.array(payload.tensors["model"])
            model[-1] = number  # no two sites answer with the same blob
            return Payload(kind="done", tensors={"model": model})

        name = f"site-{number}"
        credentials = authority.issue(name, Role.SITE, now=time.time())
        return FakeAgent(address, credentials, folder.parent / name, work=answer)

    agents = [agent(number) for number in range(count)]
    for each in agents:
        each.blobs.limit_bytes = 4 * parameters * 4  # a model and an answer, of two rounds
    found: Run = {"sites": count, "parameters": parameters}
    found["empty_bytes"] = mediator.memory_info().rss
    cpu = cpu_s(mediator)
    for each in agents:
        await each.start()
    async with asyncio.timeout(JOIN_S):
        for each in agents:
            await each.welcomed.wait()
    found["join_cpu_s"] = cpu_s(mediator) - cpu
    cpu = cpu_s(mediator)
    await asyncio.sleep(IDLE_S)
    found["idle_cpu_share"] = (cpu_s(mediator) - cpu) / IDLE_S
    found["joined_bytes"] = mediator.memory_info().rss
    config = json.dumps({"sites": count, "rounds": n, "parameters": parameters})
    async with submitted(authority, address, config) as admin:
        async with asyncio.timeout(JOIN_S + n * ROUND_S):
            while True:
                await asyncio.sleep(0.5)
                run = json.loads((await admin.show_run(pb.RunRequest(run=RUN))).run_json)
                if run["status"] not in ("submitted", "running", "stopping"):
                    break
    place = folder / "runs" / RUN
    if run["status"] != "finished":
        raise Failed(f"{run}\n{(place / 'coordinator.log').read_text()[-2000:]}")
    rounds = json.loads((place / "rounds.json").read_text())
    for figure in rounds[0]:
        found[figure] = [each[figure] for each in rounds]
    served = [sum(id.key.startswith("round/") for id in each.worked) for each in agents]
    if served != [n] * count:
        raise Failed(f"each site has {n} orders to serve, and they served {served}")
    for each in agents:
        await each.close()
    return found


def child(count: int, parameters: int, rounds: int) -> Run:
    """A mediator and its sites, in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="sites-", ignore_cleanup_errors=True) as made:
        folder = Path(made) / "hub"
        with process("sites:mediate", folder) as started:
            address, _ = line_of(started).split()
            mediator = psutil.Process(started.pid)
            return asyncio.run(sites(folder, address, mediator, count, parameters, rounds))


# -- all of them ----------------------------------------------------------------------------------

HEADER = (
    "sites",
    "model, MB",
    "CPU per site and round, ms",
    "a round, s",
    "CPU of joining, ms per site",
    "CPU of heartbeats, % of a core",
    "memory, empty, MB",
    "joined, MB",
    "at most, MB",
    "runs",
)


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table on the page; each figure is from the median round of its run."""
    rows = []
    for each in sorted(
        runs.values(), key=lambda found: (found[0]["parameters"], found[0]["sites"])
    ):
        count, parameters = each[0]["sites"], each[0]["parameters"]
        figures = [
            f"{count:,}",
            f"{4e-6 * parameters:,.0f}",
            spread(1e3 * per_round(run) for run in each).text(1),
            spread(spread(run["round_s"]).median for run in each).text(2),
            spread(1e3 * run["join_cpu_s"] / count for run in each).text(1),
            spread(100 * run["idle_cpu_share"] for run in each).text(1),
            spread(run["empty_bytes"] / 1e6 for run in each).text(),
            spread(run["joined_bytes"] / 1e6 for run in each).text(),
            spread(max(run["peak_bytes"]) / 1e6 for run in each).text(),
            str(len(each)),
        ]
        rows.append(figures)
    return table(HEADER, rows)


def per_round(run: Run) -> float:
    """CPU seconds of the mediator for one site in the median round."""
    return spread(run["cpu_s"]).median / int(run["sites"])


def main() -> None:
    options = parser(__doc__ or "", reps=3)
    options.add_argument("--sites", type=int, nargs="*", default=list(COUNTS))
    options.add_argument("--large", type=int, nargs="*", default=list(LARGE), help="sites")
    options.add_argument("--rounds", type=int, default=7)
    arguments = options.parse_args()

    def once(name: str, _turn: int) -> Run:
        return called("sites:child", *todo[name], arguments.rounds)

    def say(run: Run) -> str:
        ms, megabytes = 1e3 * per_round(run), max(run["peak_bytes"]) / 1e6
        return f"{ms:.1f} ms per site and round, {megabytes:.0f} MB"

    todo = {f"{count} sites": (count, PARAMETERS) for count in arguments.sites}
    todo |= {f"{count} sites, large": (count, LARGE_PARAMETERS) for count in arguments.large}
    print("\n" + text(measured(SECTION, todo, once, say, arguments)))
