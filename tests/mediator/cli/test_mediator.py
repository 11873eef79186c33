"""`fedpilot mediator start`: one line when it is ready, an orderly end, errors with their codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import postgres
from fedpilot.mediator.cli.mediator import mediator
from fedpilot.mediator.identity import Credentials
from mediators import SOURCE, mediating, reaching

START = "from fedpilot.mediator.cli.mediator import mediator; mediator()"
END_S = 60.0


@contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, on any free ports."""
    command = [sys.executable, "-c", START, "start", "--folder", str(folder)]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--join-port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_it_says_that_it_is_ready_and_ends_in_order(tmp_path: Path) -> None:
    with started(tmp_path / "m", "--json") as process:
        ready = json.loads(first_line(process))
        assert ready["event"] == "mediator_ready"
        assert ready["pid"] == process.pid
        assert len(ready["made"]) == 3
        assert Credentials.read(Path(ready["admin"])).identity.role == "admin"

        async def asked() -> list[str]:
            async with reaching(tmp_path / "m", ready["address"], ready["join_address"]) as here:
                return list(await here.sites())

        assert asyncio.run(asked()) == []
        process.terminate()
        _, said = process.communicate(timeout=END_S)
        assert process.returncode == 0, said
        assert "Traceback" not in said


def test_the_first_start_says_what_it_made_and_what_comes_next(tmp_path: Path) -> None:
    with started(tmp_path / "m") as process:
        assert first_line(process).startswith("ready: sites and users at 127.0.0.1:")
        lines = [first_line(process) for _ in range(7)]
        assert "certificate authority" in lines[0]
        assert f"--credentials {tmp_path / 'm' / 'admin'}" in lines[4]
        process.terminate()
        process.communicate(timeout=END_S)
    (tmp_path / "m" / "admin").rename(tmp_path / "alice")
    with started(tmp_path / "m") as process:
        first_line(process)
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=END_S)
        assert process.returncode == 130
        assert "Traceback" not in said
        assert rest == ""  # nothing had to be made
        assert not (tmp_path / "m" / "admin").exists()  # it was taken elsewhere


def test_two_mediators_never_share_a_folder(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m"):
            with started(tmp_path / "m") as process:
                _, said = await asyncio.to_thread(process.communicate, timeout=END_S)
                assert process.returncode == 2
                assert "another mediator works in" in said

    asyncio.run(test())


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, listen: str) -> None:
    folder = tmp_path / "m"
    result = CliRunner().invoke(mediator, ["start", "--folder", str(folder), "--listen", listen])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--listen is HOST:PORT" in result.stderr
    assert not folder.exists()


def test_an_address_of_another_machine_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    with started(tmp_path / "m", "--listen", "203.0.113.7:0") as process:
        out, err = process.communicate(timeout=END_S)
        assert (process.returncode, out) == (2, ""), err
        assert "cannot listen at" in err


def test_a_file_of_queues_with_pools_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    monkeypatch.setattr("fedpilot.mediator.server.raise_descriptors", lambda: None)
    file = tmp_path / "queues.yaml"
    file.write_text("projects:\n  - name: a\npools:\n  - name: gpus\n    selector: {gpu: a100}\n")
    folder = tmp_path / "m"
    asked = ["start", "--folder", str(folder), "--queues", str(file)]
    result = CliRunner().invoke(mediator, asked)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{file}:3" in result.stderr
    assert "allowed: no pools: a mediator's sites are the pool `default`" in result.stderr
    assert not folder.exists()


@pytest.mark.parametrize(
    ("store", "said"),
    [
        pytest.param(
            "mysql://x/y", "found mysql://x/y", id="another database", marks=pytest.mark.soak
        ),
        pytest.param("postgresql://u:s3cret@h:port/y", "...@h:port/y", id="a port that is none"),
        pytest.param("sqlite:////nowhere/at/all.sqlite", "unable to open", id="no such folder"),
    ],
)
def test_a_store_that_is_none_is_refused_in_a_line_before_anything_is_made(
    tmp_path: Path, store: str, said: str
) -> None:
    with started(tmp_path / "m", "--store", store) as process:
        out, err = process.communicate(timeout=END_S)
        assert process.returncode == 2, err
        assert said in err
        assert "Traceback" not in err
        assert "s3cret" not in err
        assert out == ""
    assert not (tmp_path / "m" / "certs").exists()


@pytest.mark.slow
@pytest.mark.skipif(bool(postgres.excused()), reason=postgres.excused())
def test_it_remembers_in_postgresql(tmp_path: Path) -> None:
    async def test(url: str) -> None:
        async with mediating(tmp_path / "m", store=url) as here, here.agent("paris"):
            await here.state("paris", "ready")
            await here.submit("run", [{"site": "paris", "key": "a", "numbers": 10}], wait_for=1)
            assert (await here.ended("run"))["status"] == "finished"
        async with mediating(tmp_path / "m", store=url) as here:
            assert (await here.run("run"))["status"] == "finished"
            assert list(await here.sites()) == ["paris"]
            assert [each["event"] for each in await here.events("run")] == [
                "run_started",
                "run_finished",
            ]

    with postgres.postgres() as server, postgres.database(server) as url:
        asyncio.run(test(url))
