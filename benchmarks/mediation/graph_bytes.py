"""What crosses the links of three sites while their clients mix on a graph, beside the run's plan.

Counted at the network interfaces of hosts that are namespaces, headers, TLS and heartbeats
included, from a run's submission to its end. One k-connected graph is run three times at the same
sites: as `locality` divides it, under `round_robin`, and with all clients at one site, so that no
edge crosses. An idle period before them says what heartbeats alone move. `--megabits` times rounds
instead, with one site behind a link of so much: the mediator measures it in a first run, and the
plan of the second one has the measured speeds. Needs root, iproute2 and iptables.
"""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import Run, called, measured, parser, ratios, spread, table

from .mediated import RUN

SECTION = "graph_bytes"
SITES = ("oslo", "paris", "tokyo")
CLIENTS, ROUNDS, DEGREE = 48, 4, 4
HIDDEN = (480, 400)
"""227,610 parameters, 0.9 MB."""
CONFIG = """
federation:
  number_of_clients: {clients}
  rounds: {rounds}
  topology: k_connected
  aggregation_strategy: dpsgd
  assignment: {assignment}
graph: {{degree: {degree}}}
model: {{model_type: mlp, options: {{hidden: [{hidden}]}}}}
data: {{dataset_type: digits}}
resources: {{workers: 1}}
"""
INSIDE = "one_site:all_clients"
ONE_SITE = '''
"""All clients at the first site, so that no edge crosses."""

from fedpilot.mediator import Division


def all_clients(problem):
    first, *others = sorted(site.name for site in problem.sites)
    return Division(shares={first: problem.clients, **dict.fromkeys(others, ())})
'''
ASSIGNMENTS = {"locality": "locality", "round robin": "round_robin", "nothing crosses": INSIDE}
EXCHANGE = "exchange"
IDLE_S = 30.0
RUN_S = 900.0
HOME_MB = 512
"""Disk of a site's home folder."""


# -- a run ----------------------------------------------------------------------------------------


def bytes_of_runs(clients: int, rounds: int) -> Run:
    """What crosses the uplinks of three sites while each of the runs goes on."""
    with _joined() as here:
        began, before = time.perf_counter(), _crossed(here)
        time.sleep(IDLE_S)
        idle = _since(here, before)
        return {
            "clients": clients,
            "rounds": rounds,
            "idle_bytes_per_s": sum(idle.values()) / (time.perf_counter() - began),
            **{
                name: _one_run(here, name, assignment, clients, rounds)
                for name, assignment in ASSIGNMENTS.items()
            },
        }


@contextmanager
def _joined() -> Iterator[Any]:
    """Three sites that are ready."""
    from fleet import fleet

    with fleet(*SITES, home_mb=HOME_MB) as here:
        (here.folder / "one_site.py").write_text(ONE_SITE)
        for site in SITES:
            here.join(site)
        here.until(dict.fromkeys(SITES, "ready"), 120)
        yield here


def seconds_over(megabits: int, clients: int, rounds: int) -> Run:
    """Rounds with one site behind a slow link: before it was measured, and after."""
    with _joined() as here:
        slow = SITES[-1]
        here.sites[slow].limit(megabits, both_ways=True)
        runs = {
            name: _one_run(here, name, "locality", clients, rounds)
            for name in ("not measured", "measured")
        }
        return {
            "megabits": megabits,
            "clients": clients,
            "rounds": rounds,
            "link": here.ask("site", "show", slow)["link"],
            **runs,
        }


def _one_run(here: Any, name: str, assignment: str, clients: int, rounds: int) -> dict[str, Any]:
    config = CONFIG.format(
        clients=clients,
        rounds=rounds,
        degree=DEGREE,
        hidden=", ".join(map(str, HIDDEN)),
        assignment=assignment,
    )
    run = f"{RUN}-{name.replace(' ', '-')}"
    (here.folder / f"{run}.yaml").write_text(config)
    foreseen = here.ask("plan", f"{run}.yaml")
    began, before = time.perf_counter(), _crossed(here)
    here.submit(config, run)
    last = here.finished(run, RUN_S)
    assert last["status"] == "finished", here.logs()
    lost = [each for each in here.events(run) if each["event"] == "site_lost"]
    assert not lost, lost  # a round that is begun anew has other bytes
    crossed = _since(here, before)
    folder = here.folder / "hub" / "runs" / run
    plan = json.loads((folder / "plan.json").read_text())
    beside = json.loads((folder / "manifest.json").read_text())["plan"]
    return {
        "run_s": time.perf_counter() - began,
        "foreseen_bytes": _whole(foreseen),
        "planned_bytes": _whole(plan),
        "crossed_bytes": crossed,
        "exchange_bytes": _booked(folder, EXCHANGE),
        "beside": beside["sites"],
        "round_s": beside["seconds"],
        "models": plan["graph"]["cut"]["models"],
        "digest": last["digest"],
    }


def _crossed(here: Any) -> dict[str, Any]:
    return {site: here.sites[site].traffic() for site in SITES}


def _since(here: Any, before: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each site in both directions since then."""
    parts = {site: now - before[site] for site, now in _crossed(here).items()}
    return {site: part.received + part.sent for site, part in parts.items()}


def _whole(plan: Mapping[str, Any]) -> int:
    return int(plan["run"]["bytes_in"] + plan["run"]["bytes_out"])


def _booked(folder: Path, purpose: str) -> int:
    """Bytes that the run itself has counted for a purpose."""
    with (folder / "traffic.csv").open() as file:
        return sum(int(row["bytes"]) for row in csv.DictReader(file) if row["purpose"] == purpose)


# -- what it says ---------------------------------------------------------------------------------


def crossed(run: Mapping[str, Any]) -> int:
    """Bytes at the interfaces of all sites."""
    return sum(run["crossed_bytes"].values())


def of_plan(run: Mapping[str, Any]) -> float:
    """Bytes at the interfaces, as a part of those of the plan."""
    return float(crossed(run) / run["planned_bytes"])


def payload_of_plan(run: Mapping[str, Any]) -> float:
    """Bytes of a round in traffic.csv, as a part of those of the plan; the first is left out.

    A site that owes the same models to two others brings them to the mediator once, and the plan
    counts them twice: so under `round_robin`.
    """
    each = [of[way] for of in run["beside"].values() for way in ("bytes_in", "bytes_out")]
    found, planned = (sum(way[which] or 0 for way in each) for which in ("measured", "planned"))
    return float(found / planned)


def seconds_of_plan(run: Mapping[str, Any]) -> float:
    """Seconds of a round, as a part of those of the plan; the first is left out."""
    return float(run["round_s"]["measured"] / run["round_s"]["planned"])


HEADER = (
    *("a run", "models that cross", "exchange, MB", "planned, MB", "crossed, MB"),
    *("crossed ÷ planned", "traffic.csv ÷ planned", "of round robin", "runs"),
)


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table."""
    rows = []
    for each in runs.values():
        for name in ASSIGNMENTS:
            found = [run[name] for run in each]
            robin = [crossed(run["round robin"]) for run in each]
            rows.append(
                [
                    name,
                    f"{found[-1]['models']:,.0f}",
                    spread(run["exchange_bytes"] for run in found).text(3, 1e-6),
                    spread(run["planned_bytes"] for run in found).text(1, 1e-6),
                    spread(crossed(run) for run in found).text(1, 1e-6),
                    spread(of_plan(run) for run in found).text(3),
                    spread(payload_of_plan(run) for run in found).text(3),
                    ratios([crossed(run) for run in found], robin).text(3),
                    str(len(found)),
                ]
            )
    return table(HEADER, rows)


SECONDS_HEADER = (
    *("one site's link", "measured up, Mbit/s", "measured down, Mbit/s", "planned, s"),
    *("a round, s", "a round ÷ planned", "runs"),
)


def text_of_seconds(runs: Mapping[str, list[Run]]) -> str:
    """The table over a slow link."""
    rows = []
    for name, each in runs.items():
        found = [run["measured"] for run in each]
        links = [spread(run["link"][way] for run in each).text(2, 8e-6) for way in ("up", "down")]
        seconds = [
            spread(run["round_s"][which] for run in found).text(1)
            for which in ("planned", "measured")
        ]
        part = spread(seconds_of_plan(run) for run in found).text(2)
        rows.append([name, *links, *seconds, part, str(len(found))])
    return table(SECONDS_HEADER, rows)


def main() -> None:
    options = parser(__doc__ or "", reps=1)
    options.add_argument("--clients", type=int, default=CLIENTS)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--megabits", type=int, help="time rounds over such a link of one site")
    arguments = options.parse_args()
    if os.geteuid():
        options.error("network namespaces need root")

    def once(_name: str, _turn: int) -> Run:
        words = arguments.clients, arguments.rounds
        return called("graph_bytes:bytes_of_runs", *words, timeout=4 * RUN_S)

    def say(run: Run) -> str:
        parts = ", ".join(f"{name} {of_plan(run[name]):.3f}" for name in ASSIGNMENTS)
        return f"of the plan: {parts}; idle {run['idle_bytes_per_s']:.0f} B/s"

    def once_slow(_name: str, _turn: int) -> Run:
        words = arguments.megabits, arguments.clients, arguments.rounds
        return called("graph_bytes:seconds_over", *words, timeout=4 * RUN_S)

    def say_slow(run: Run) -> str:
        part = seconds_of_plan(run["measured"])
        return f"{run['measured']['round_s']['measured']:.1f} s a round, {part:.2f} of the plan"

    if arguments.megabits:
        slow = [f"{arguments.megabits} Mbit/s"]
        found = measured(f"{SECTION}_slow", slow, once_slow, say_slow, arguments)
        print("\n" + text_of_seconds(found))
        return
    names = [f"k_connected, {arguments.clients} clients"]
    print("\n" + text(measured(SECTION, names, once, say, arguments)))
