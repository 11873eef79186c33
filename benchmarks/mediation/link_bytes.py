"""What crosses the links of sites: bytes per round, and how much of a slow link a model gets.

Counted at the network interfaces of hosts that are namespaces, headers, heartbeats and all. A round
is one of `fedpilot run` over real Ray clusters, and its bytes are those of the whole run, from its
submission to its end, divided by its rounds. Over the slow link one site that has no Ray behind it
gets a model, and then sends one; the seconds are the coordinator's, so that to write, hash and
check the file is part of them. Rounds on pinned data over a link that a model fills for a minute
are timed as a whole, against what their bytes take. Needs root, iproute2 and iptables.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from measuring import Run, called, command, measured, parser, ratios, spread, table

from .mediated import RUN, connected, serve, submitted

SECTION = "link_bytes"
SITES = ("oslo", "paris")
HIDDEN = (1545, 1545)
"""About 2.5 M parameters, 10 MB, behind the 64 inputs of the digits."""
PARAMETERS = (64 + 1) * HIDDEN[0] + (HIDDEN[0] + 1) * HIDDEN[1] + (HIDDEN[1] + 1) * 10
MODEL_BYTES, PARTIAL_BYTES = 4, 8
"""Per parameter."""
CLIENTS = {10: 5, 10_000: 2}
"""Clients per round, and rounds."""
CONFIG = """
federation: {{number_of_clients: {clients}, clients_per_round: {clients}, rounds: {rounds}}}
model: {{model_type: mlp, options: {{hidden: [{hidden}]}}}}
data: {{dataset_type: digits, data_distribution_kind: bootstrap, samples_per_client: 1}}
training: {{batch_size: 1}}
resources: {{workers: 1}}
"""
PINNED = """
federation: {{clients_per_round: {clients}, rounds: {rounds}}}
model: {{model_type: mlp, options: {{hidden: [{width}, {width}]}}}}
data: {{from: sites, dataset: scans}}
training: {{batch_size: 8, execution: sequential}}
evaluation: {{where: sites, clients: all}}
resources: {{workers: 1}}
"""
RUN_S = 3_600.0
HOME_MB = 1024
"""Disk of a site's home folder: more than a few models and Partials take."""
MEGABITS, MEGABYTES = 100, 200
TRANSFER_S = 300.0


# -- bytes of a round -----------------------------------------------------------------------------


def bytes_of_rounds(clients: int, rounds: int) -> Run:
    """What crosses the uplinks of two sites while a model is trained."""
    from fleet import fleet

    with fleet(*SITES, home_mb=HOME_MB) as here:
        for site in SITES:
            here.join(site)
        here.until(dict.fromkeys(SITES, "ready"))
        before = [host.traffic() for host in here.sites.values()]
        hidden = ", ".join(map(str, HIDDEN))
        config = CONFIG.format(clients=clients, rounds=rounds, hidden=hidden)
        started = time.perf_counter()
        here.submit(config, RUN)
        last = here.finished(RUN, RUN_S)
        assert last["status"] == "finished", here.logs()
        lost = [each for each in here.events(RUN) if each["event"] == "site_lost"]
        assert not lost, lost  # their clients train elsewhere, so rounds have other bytes
        crossed = [
            host.traffic() - then for host, then in zip(here.sites.values(), before, strict=True)
        ]
        return {
            "clients": clients,
            "rounds": rounds,
            "sites": len(SITES),
            "parameters": PARAMETERS,
            "run_s": time.perf_counter() - started,
            "to_site_bytes": [each.received for each in crossed],
            "from_site_bytes": [each.sent for each in crossed],
        }


def needed(run: Run) -> float:
    """Bytes that a round has to take: a model to each site, and a Partial from it."""
    return float(run["sites"] * run["parameters"] * (MODEL_BYTES + PARTIAL_BYTES))


def per_round(run: Run) -> float:
    """Bytes that a round took."""
    return float(sum(run["to_site_bytes"]) + sum(run["from_site_bytes"])) / run["rounds"]


# -- rounds over a slow link ----------------------------------------------------------------------


def rounds_over(megabits: float, rounds: int, width: int, sites: Sequence[str] = SITES) -> Run:
    """Rounds on pinned data, each site behind a link of so much, beside the same without a limit.

    The model has two hidden layers of `width` units, so about `width` squared parameters.
    """
    import faults
    from fleet import fleet

    config = PINNED.format(clients=3 * len(sites), rounds=rounds, width=width)
    with fleet(*sites, home_mb=HOME_MB) as here:
        for site in sites:
            here.join(site, *faults.declare(here.folder, site))
        here.until(dict.fromkeys(sites, "ready"), 120)
        calm = _rounds_of(here, config, "calm")
        for site in sites:
            here.sites[site].limit(megabits, both_ways=True)
        slow = _rounds_of(here, config, RUN)
        here.until(dict.fromkeys(sites, "ready"))
        return {
            "megabits": megabits,
            "rounds": rounds,
            "sites": len(sites),
            "parameters": next(
                each["parameters"] for each in slow["events"] if each["event"] == "run_started"
            ),
            "seconds": slow["seconds"],
            "same": calm["digest"] == slow["digest"],
            "slow_links": [each for each in slow["events"] if each["event"] == "link_slow"],
            "given_up": [each for each in slow["events"] if each["event"] == "site_lost"],
        }


def _rounds_of(here: Any, config: str, run: str) -> dict[str, Any]:
    here.submit(config, run)
    last = here.finished(run, RUN_S)
    assert last["status"] == "finished", here.logs()
    events = here.events(run)
    begun = next(each for each in events if each["event"] == "round_started")
    seconds = datetime.fromisoformat(last["time"]) - datetime.fromisoformat(begun["time"])
    return {"digest": last["digest"], "seconds": seconds.total_seconds(), "events": events}


def over_bandwidth(run: Run) -> float:
    """How many times longer the rounds took than their models and Partials do by themselves.

    A site gets each round's model once, to judge it and to train on, and the first one to begin.
    """
    models, partials = run["rounds"] + 1, run["rounds"]
    nbytes = run["parameters"] * (models * MODEL_BYTES + partials * PARTIAL_BYTES)
    return float(run["seconds"]) / (8e-6 * nbytes / float(run["megabits"]))


# -- a slow link ----------------------------------------------------------------------------------


def through_a_link(megabits: int, megabytes: int) -> Run:
    """Seconds that a model takes to a site and from it, and the bytes at the site's interface."""
    from hosts import hosts
    from real_ray import ENVIRONMENT, eventually

    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="link-")))
        made = stack.enter_context(hosts("hub", "oslo"))
        hub, site = made["hub"], made["oslo"]
        log = stack.enter_context((place / "log").open("a"))

        def start(host: Any, function: str, *words: object, out: IO[str]) -> None:
            started = command(f"link_bytes:{function}", *words)
            host.start(started, env=ENVIRONMENT, cwd=place, out=out, err=log)

        def said(path: Path) -> bool:
            assert "Traceback" not in (text := (place / "log").read_text()), text
            return path.exists() and path.read_text().endswith("\n")

        folder, ready = place / "hub", place / "ready"
        with ready.open("w") as out:
            start(hub, "mediate", folder, hub.address, out=out)
        eventually(lambda: said(ready), 60, "the mediator is ready")
        for host in (hub, site):
            host.limit(megabits)
        (folder / "order.json").write_text(json.dumps({"megabytes": megabytes}))
        address, _ = ready.read_text().split()
        start(site, "be_a_site", folder, address, out=log)
        found = folder / "found.json"
        eventually(lambda: said(found), TRANSFER_S, f"both transfers; {place / 'log'}")
        return {"megabits": megabits, "bytes": megabytes * 10**6, **json.loads(found.read_text())}


async def mediate(folder: str, host: str) -> None:
    """A mediator that waits longer for silent sites."""
    from fedpilot.mediator.core.health import HealthSettings

    await serve("link_bytes", folder, host=host, health=HealthSettings(grace_s=TRANSFER_S))


def coordinate(folder: str, run: str) -> None:
    """Send a model, have one sent, and write down how long each took."""
    import numpy as np

    from fedpilot.mediator import Payload

    place = Path(folder)
    parameters = json.loads((place / "order.json").read_text())["megabytes"] * 250_000
    model = np.random.default_rng(0).random(parameters, np.float32)
    found = {}
    with connected(folder, run) as connection:
        (site,) = connection.wait_for_sites(1, timeout_s=60)
        link = connection.link(site.name)
        for way, tensors in (("to_site_s", {"model": model}), ("from_site_s", {})):
            payload = Payload(kind=way, tensors=tensors)
            started = time.perf_counter()
            answer = link.ask("work", payload, key=way, round_number=1, purpose="training")
            answer.result(TRANSFER_S)
            found[way] = time.perf_counter() - started
    (place / "found.json").write_text(json.dumps(found) + "\n")


async def be_a_site(hub: str, address: str) -> None:
    """Join, have the coordinator started, and answer it until this process is ended."""
    folder = Path(hub)
    import numpy as np

    from fake_agents import FakeAgent
    from fedpilot.mediator import Payload
    from fedpilot.mediator.identity import Authority, Role
    from fedpilot.mediator.proto import federation_pb2 as pb

    authority = Authority.open(folder / "certs")
    parameters = json.loads((folder / "order.json").read_text())["megabytes"] * 250_000
    model = {"model": np.random.default_rng(1).random(parameters, np.float32)}

    async def answer(order: pb.Order, payload: Payload) -> Payload:
        return Payload(kind="done", tensors=model if order.kind == "from_site_s" else {})

    credentials = authority.issue("oslo", Role.SITE, now=time.time())
    agent = FakeAgent(address, credentials, folder.parent / "oslo", work=answer)
    async with agent:
        await agent.welcomed.wait()
        async with submitted(authority, address):
            await asyncio.Event().wait()


# -- all of them ----------------------------------------------------------------------------------

HEADER = ("what crosses", "needed, MB", "crossed, MB", "crossed ÷ needed", "runs")
LINK_HEADER = ("a model over a slow link", "model, MB", "seconds", "share of the link", "runs")


def text(runs: Mapping[str, list[Run]]) -> str:
    """The two tables that the page shows."""
    rounds, links = [], []
    for name, each in runs.items():
        if "clients" in each[0]:
            wanted, found = [needed(run) for run in each], [per_round(run) for run in each]
            megabytes = [spread(nbytes).text(1, 1e-6) for nbytes in (wanted, found)]
            rounds.append([name, *megabytes, ratios(found, wanted).text(3), str(len(each))])
            continue
        for way, word in (("to_site", "to a site"), ("from_site", "from a site")):
            seconds = spread(run[f"{way}_s"] for run in each).text(1)
            part = spread(share(run, way) for run in each).text(2)
            model = f"{each[0]['bytes'] / 1e6:,.0f}"
            links.append([f"{word}, {name}", model, seconds, part, str(len(each))])
    tables = ((HEADER, rounds), (LINK_HEADER, links))
    return "\n\n".join(table(header, rows) for header, rows in tables if rows)


def share(run: Run, way: str) -> float:
    """The model's part of what the link could have carried meanwhile."""
    return 8e-6 * float(run["bytes"]) / run["megabits"] / run[f"{way}_s"]


def main() -> None:
    options = parser(__doc__ or "", reps=3)
    options.add_argument("--clients", type=int, nargs="*", default=list(CLIENTS))
    options.add_argument("--no-link", action="store_true", help="leave the slow link out")
    arguments = options.parse_args()
    if os.geteuid():
        options.error("network namespaces need root")

    todo = {
        f"a round of {clients:,} clients": ("bytes_of_rounds", clients, CLIENTS.get(clients, 2))
        for clients in arguments.clients
    }
    if not arguments.no_link:
        todo[f"{MEGABITS} Mbit/s"] = ("through_a_link", MEGABITS, MEGABYTES)

    def once(name: str, _turn: int) -> Run:
        function, *words = todo[name]
        return called(f"link_bytes:{function}", *words, timeout=RUN_S + 300)

    def say(run: Run) -> str:
        if "clients" in run:
            return f"{per_round(run) / needed(run):.3f} of what is needed"
        return f"{share(run, 'to_site'):.2f} to a site, {share(run, 'from_site'):.2f} from it"

    print("\n" + text(measured(SECTION, todo, once, say, arguments)))
