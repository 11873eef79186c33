"""`fedpilot cluster` on a real Ray, each command a process of its own, as at a terminal."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from real_ray import ENVIRONMENT, eventually, fedpilot, free_port, ray_head

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ray_head(num_cpus=4) as address:
        yield address


def cluster(
    address: str, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedpilot", "cluster", *arguments, "--address", address],
        env=environment or ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def but_patience(said: str) -> str:
    """What a command says on stderr, but that Ray is slow, as on a busy machine it is."""
    slow = re.compile(r"^fedpilot: .* (has not answered for|after) \d+ s \(load ")
    return "".join(line for line in said.splitlines(True) if not slow.match(line))


def asked(address: str, *arguments: str, code: int = 0) -> Any:
    """The document that a command prints; nothing else is printed."""
    done = cluster(address, *arguments, "--json")
    assert (done.returncode, but_patience(done.stderr)) == (code, "")
    return json.loads(done.stdout)


@pytest.fixture
def shared(address: str) -> Iterator[str]:
    """The address of a Ray that is emptied again."""
    yield address
    asked(address, "delete", "--all", "--yes")


@pytest.mark.slow
def test_a_team_gets_a_cluster_and_another_waits_until_it_is_deleted(shared: str) -> None:
    made = asked(shared, "create", "vision", "--node", "2xCPU=1", "--policy", "PACK")
    assert (made["state"], made["owner"], made["created"]) == ("active", None, True)
    again = asked(shared, "create", "vision", "--node", "2xCPU=1")
    assert (again["state"], again["created"]) == ("active", False)

    late = asked(shared, "create", "speech", "--min", "CPU=3", "--wait", "1", code=3)
    assert (late["state"], late["position"]) == ("waiting", 1)
    story = asked(shared, "explain", "speech")
    assert "ending vision (2 CPU)" in " ".join(story["sentences"])

    drawn = cluster(shared, "tree")
    assert (drawn.returncode, but_patience(drawn.stderr)) == (0, "")
    lines = [line.split() for line in drawn.stdout.splitlines()]
    assert next(line for line in lines if "vision" in line)[-2:] == ["2", "CPU"]
    assert next(line for line in lines if "speech" in line)[-3:] == ["wants", "3", "CPU"]

    assert asked(shared, "delete", "vision") == {"ended": ["vision"]}
    eventually(lambda: asked(shared, "show", "speech")["state"] == "active", 60, "it has room")
    assert "it was deleted" in " ".join(asked(shared, "explain", "vision")["sentences"])
    assert [each["id"] for each in asked(shared, "list")["clusters"]][:1] == ["speech"]


@pytest.mark.soak
def test_who_is_inside_another_ends_with_it(shared: str) -> None:
    asked(shared, "create", "speech", "--min", "CPU=1", "--max", "CPU=3")
    asked(shared, "create", "eval", "--node", "CPU=2", "--parent", "speech")
    speech = asked(shared, "show", "speech")
    assert (speech["children"], speech["borrowed"]) == (["eval"], {"CPU": 1.0})
    refused = cluster(shared, "delete", "speech")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "would also end eval" in refused.stderr
    assert asked(shared, "delete", "speech", "--yes") == {"ended": ["eval", "speech"]}


def test_what_can_never_be_is_refused_with_the_most_that_could(address: str) -> None:
    done = cluster(address, "create", "huge", "--node", "6xCPU=1")
    assert (done.returncode, done.stdout) == (3, "")
    assert "the cluster has 4 CPU; at most 4 of its fixed-size nodes fit together" in done.stderr
    assert cluster(address, "create", "huge", "--min", "CPU=1", "--parent", "no").returncode == 2


@pytest.mark.soak
def test_who_gives_up_at_its_deadline_is_gone_and_says_so(shared: str) -> None:
    asked(shared, "create", "vision", "--node", "CPU=4")
    done = cluster(shared, "create", "brief", "--min", "CPU=1", "--deadline", "1")
    assert (done.returncode, done.stdout) == (3, "")
    assert "'brief' did not get its places" in done.stderr
    assert asked(shared, "explain", "brief")["state"] == "ended"


@pytest.mark.soak
def test_an_interruption_leaves_it_in_the_queue(shared: str, tmp_path: Path) -> None:
    asked(shared, "create", "vision", "--node", "CPU=4")
    command = ["cluster", "create", "later", "--min", "CPU=2", "--wait", "60"]
    with fedpilot([*command, "--address", shared], tmp_path) as waiting:
        eventually(
            lambda: any(e["id"] == "later" for e in asked(shared, "list")["clusters"]), 60, "asked"
        )
        waiting.signal(signal.SIGINT)
        assert waiting.finish(30) == 130
        told = waiting.error()
    assert "later keeps its place in the queue" in told
    assert f"fedpilot cluster delete later --address {shared}" in told
    assert "Traceback" not in told
    assert asked(shared, "show", "later")["state"] == "waiting"


@pytest.mark.soak
def test_auto_is_what_ray_itself_takes_it_for(address: str) -> None:
    environment = {**ENVIRONMENT, "RAY_ADDRESS": address}
    done = cluster("auto", "list", "--json", environment=environment)
    assert (done.returncode, but_patience(done.stderr)) == (0, "")
    assert set(json.loads(done.stdout)) == {"clusters", "head"}


def test_where_there_is_no_ray_it_cannot_be_reached() -> None:
    done = cluster(f"127.0.0.1:{free_port()}", "tree", "--json")
    assert (done.returncode, done.stdout) == (4, "")
    assert "nothing listens there" in done.stderr


@pytest.mark.slow
def test_a_new_head_says_what_was_lost_with_the_one_that_was_killed_and_restores_it() -> None:
    port = free_port()
    with ray_head(port=port) as address:  # its processes are killed at the end
        asked(address, "create", "speech", "--min", "CPU=1")
        asked(address, "create", "eval", "--node", "CPU=1", "--parent", "speech")
    with ray_head(port=port) as address:
        told = cluster(address, "list")
        assert (told.returncode, but_patience(told.stderr)) == (0, "")
        assert "no virtual clusters" in told.stdout
        assert "The head of this Ray cluster restarted at" in told.stdout
        assert "speech (at least 1 CPU), detached" in told.stdout
        assert "eval (1 node of 1 CPU (PACK), inside speech), detached" in told.stdout
        assert f"fedpilot cluster restore --address {address}" in told.stdout
        done = asked(address, "restore")
        assert [each["id"] for each in done["restored"]] == ["speech", "eval"]
        assert done["refused"] == {}
        eventually(
            lambda: asked(address, "show", "eval")["state"] == "active", 60, "it is there again"
        )
        assert asked(address, "list")["head"]["gone"] == []


def raylet_of(address: str) -> psutil.Process | None:
    """The raylet of a head, once there is one."""
    port = address.rpartition(":")[2]
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["name"] == "raylet" and any(
            word.startswith("--gcs-address=") and word.endswith(f":{port}") for word in words
        ):
            return process
    return None


@pytest.mark.soak
def test_a_head_that_is_half_up_is_said_to_be_and_given_up_at_the_deadline() -> None:
    with ray_head() as address:
        eventually(lambda: raylet_of(address) is not None, 60, "the raylet starts")
        raylet = raylet_of(address)
        assert raylet is not None
        raylet.suspend()  # it is killed with the head
        began = time.monotonic()
        done = cluster(address, "list", "--timeout", "8")
        assert time.monotonic() - began < 60
    assert (done.returncode, done.stdout) == (4, "")
    assert "answers, but this command has not joined it after" in done.stderr
    assert "its control plane answers, but no raylet has let us in within 8 s" in done.stderr
