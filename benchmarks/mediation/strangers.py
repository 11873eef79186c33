"""What strangers cost a mediator: rounds and heartbeats beside thousands of connections that idle.

The mediator is a process with the settings, the log and the descriptors that `fedpilot mediator
start` gives it. Three sites without Ray work for it over loopback. Another process, of the lowest
priority, plays the strangers: 1,500 connections that say nothing, and 500 that stop after the first
message of a TLS handshake. It opens a closed connection again some seconds later. Turns with and
without strangers alternate on the same mediator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import os
import random
import ssl
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measuring import Failed, Run, end, process, spread

from .mediated import connected, round_of, serve, submitted

IDLE, HALF_OPEN = 1_500, 500
AGAIN_S = 10.0
"""After so long a stranger comes again."""
COME_S = 5.0
"""Within this all of them come."""
SITES, PARAMETERS = 3, 1_000_000
HEARTBEAT_S = 0.5
TURN_S, TURNS = 20.0, 3
PATIENCE_S = 300.0


# -- the mediator's process -----------------------------------------------------------------------


async def mediate(folder: str) -> None:
    """A mediator; prints where it is, and ends when stdin does."""
    from fedpilot.mediator.core.health import HealthSettings
    from fedpilot.mediator.server import LogPace, raise_descriptors

    handler = logging.StreamHandler()
    handler.addFilter(LogPace(time.monotonic))
    shown = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(format=shown, level=logging.INFO, handlers=[handler])
    raise_descriptors()
    health = HealthSettings(heartbeat_s=HEARTBEAT_S, grace_s=PATIENCE_S)
    await serve("strangers", folder, health=health)


def coordinate(folder: str, run: str) -> None:
    """Rounds with all sites, one after the other; writes when each began, and how long it took."""
    stopped: list[str] = []
    with (
        connected(folder, run) as connection,
        (Path(folder).parent / "rounds").open("w", buffering=1) as file,
    ):
        connection.on_stop(stopped.append)
        ready = connection.wait_for_sites(SITES, timeout_s=PATIENCE_S)
        for number in itertools.count(1):
            if stopped:
                return
            began = time.time()
            took = round_of(connection, ready, number, PARAMETERS, PATIENCE_S)
            print(json.dumps([began, took]), file=file)
            time.sleep(0.1)


# -- the sites' process ---------------------------------------------------------------------------


async def sites(hub: str, address: str) -> None:
    """Join, and answer; writes when each heartbeat went out, and how long its answer took."""
    folder = Path(hub)
    import numpy as np

    from fake_agents import FakeAgent
    from fedpilot.mediator import Payload
    from fedpilot.mediator.identity import Authority, Role
    from fedpilot.mediator.proto import federation_pb2 as pb

    authority = Authority.open(folder / "certs")
    file = (folder.parent / "beats").open("w", buffering=1)

    class Timed(FakeAgent):
        """Tells how long each heartbeat took."""

        async def _beat(self, every_s: float) -> None:
            while True:
                await asyncio.sleep(every_s)
                self.sent_at = time.time()
                self._outgoing.put_nowait(pb.FromSite(heartbeat=pb.Heartbeat()))

        def _take(self, message: pb.ToSite) -> bool:
            if message.HasField("renewal"):
                print(json.dumps([self.sent_at, time.time() - self.sent_at]), file=file)
            return super()._take(message)

    async def answer(order: pb.Order, payload: Payload) -> Payload:
        model = np.array(payload.tensors["model"])
        model[-1] = random.random()
        return Payload(kind="done", tensors={"model": model})

    agents = []
    for number in range(SITES):
        credentials = authority.issue(f"site-{number}", Role.SITE, now=time.time())
        agents.append(Timed(address, credentials, folder.parent / f"site-{number}", work=answer))
        agents[-1].blobs.limit_bytes = 16 * PARAMETERS
        await agents[-1].start()
    async with submitted(authority, address):
        await asyncio.Event().wait()


# -- the strangers' process -----------------------------------------------------------------------


async def strangers(*addresses: str) -> None:
    """Connect, again and again, until this process is ended."""
    os.nice(19)  # they come from outside, and take no processor of the mediator's
    half = hello()

    async def stranger(number: int, say: bytes) -> None:
        host, _, port = addresses[number % len(addresses)].rpartition(":")
        from_ = (f"127.0.1.{1 + number % 8}", 0)
        await asyncio.sleep(random.random() * COME_S)
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=from_)
                try:
                    writer.write(say)
                    while await reader.read(1 << 16):
                        pass
                finally:
                    writer.close()
            await asyncio.sleep(AGAIN_S * (0.5 + random.random()))

    says = [b""] * IDLE + [half] * HALF_OPEN
    await asyncio.gather(*(stranger(number, say) for number, say in enumerate(says)))


def hello() -> bytes:
    """What a TLS client says first."""
    out = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(
        ssl.MemoryBIO(), out, server_hostname="localhost"
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


# -- all of them ----------------------------------------------------------------------------------


def beside_strangers(turns: int = TURNS, turn_s: float = TURN_S) -> Run:
    """Seconds of rounds and heartbeats in turns with and without strangers, and bytes of log."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strangers-")))
        log = stack.enter_context((place / "log").open("w"))
        other = stack.enter_context((place / "others.log").open("w"))

        def start(*words: Any, **options: Any) -> subprocess.Popen[str]:
            return stack.enter_context(process(*words, **options))

        environment = {"GRPC_VERBOSITY": "NONE", **os.environ}
        mediator = start("strangers:mediate", place / "hub", stderr=log, env=environment)
        assert mediator.stdout is not None
        addresses = mediator.stdout.readline().split()
        if not addresses:
            raise Failed((place / "log").read_text()[-2000:])
        start("strangers:sites", place / "hub", addresses[0], stdout=other, stderr=other)
        deadline = time.monotonic() + PATIENCE_S
        while len(_rows(place / "rounds")) < 3:
            if time.monotonic() > deadline:
                raise Failed((place / "log").read_text()[-2000:])
            time.sleep(0.2)
        found: Run = {"calm": [], "beside": [], "turns": turns, "strangers": []}
        began, size = time.time(), (place / "log").stat().st_size
        for _ in range(turns):
            found["calm"].append(_turn(place, turn_s))
            there = start("strangers:strangers", *addresses, stdout=other, stderr=other)
            time.sleep(COME_S)
            found["strangers"].append(len(os.listdir(f"/proc/{mediator.pid}/fd")))
            found["beside"].append(_turn(place, turn_s))
            end(there)
            time.sleep(2.0)
        found["log_bytes_per_hour"] = (
            3600 * ((place / "log").stat().st_size - size) / (time.time() - began)
        )
        found["log"] = (place / "log").read_text()[-1500:]
        return found


def _turn(place: Path, turn_s: float) -> dict[str, float]:
    began = time.time()
    time.sleep(turn_s)
    rounds, beats = (
        [seconds for at, seconds in _rows(place / name) if at >= began]
        for name in ("rounds", "beats")
    )
    if not rounds or not beats:
        raise Failed(f"{len(rounds)} rounds, {len(beats)} heartbeats in {turn_s:g} s")
    return {
        "round_s": statistics.median(rounds),
        "beat_s": statistics.median(beats),
        "slowest_beat_s": max(beats),
        "rounds": len(rounds),
        "beats": len(beats),
    }


def _rows(path: Path) -> list[list[float]]:
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def slower(run: Run, what: str, more_s: float = 0.0) -> float:
    """How many times longer something takes beside strangers: the median over the turns."""
    pairs = zip(run["beside"], run["calm"], strict=True)
    return statistics.median(
        (more_s + beside[what]) / (more_s + calm[what]) for beside, calm in pairs
    )


def heartbeats_slower(run: Run) -> float:
    """How many times longer a heartbeat is away from the one before it, answer included."""
    return slower(run, "beat_s", HEARTBEAT_S)


def lines(run: Run) -> Iterator[str]:
    """What a run shows."""
    for name in ("calm", "beside"):
        turns = run[name]
        rounds = spread(1e3 * each["round_s"] for each in turns).text()
        beats = spread(1e3 * each["beat_s"] for each in turns).text(1)
        slowest = max(1e3 * each["slowest_beat_s"] for each in turns)
        yield f"{name}: a round {rounds} ms, a heartbeat {beats} ms, at most {slowest:.0f} ms"
    yield f"a round takes {slower(run, 'round_s'):.2f} times as long beside strangers"
    yield f"a heartbeat comes after {heartbeats_slower(run):.3f} times as long"
    yield f"descriptors of the mediator: {run['strangers']}"
    yield f"log: {run['log_bytes_per_hour'] / 1e6:.3f} MB an hour"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=TURNS)
    run = beside_strangers(options.parse_args().turns)
    print("\n".join(lines(run)))
    print(run["log"])
