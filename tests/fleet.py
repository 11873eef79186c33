"""A federation as operators have it: a mediator and sites, each on a host of its own.

Every site is a real Ray cluster in a network namespace, with an agent beside it that dials out to
the mediator in another one. All are real processes; whatever is killed here is killed for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hosts import Host, hosts
from real_ray import ENVIRONMENT, eventually, session_of

FEDPILOT = (sys.executable, "-m", "fedpilot")
PORT, RAY_PORT = 7443, 6379
COORDINATOR, RUNNER = "fedpilot.mediator.coordinator", "fedpilot.mediator.runner"
OF_RAY = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::ManagerActor")
"""What a Ray cluster has whether a run is there or not."""
RAY = str(Path(sys.executable).parent / "ray")


@dataclass
class Fleet:
    """The mediator's host, the sites' hosts, and what runs on them."""

    folder: Path
    hub: Host
    sites: dict[str, Host]
    cpus: int
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    """`mediator`, `agent <site>`, `ray <site>`."""

    @property
    def address(self) -> str:
        """Where the mediator listens."""
        return f"{self.hub.address}:{PORT}"

    @property
    def env(self) -> dict[str, str]:
        """Of every process: a home of its own, and no Ray that is known from outside."""
        home = str(self.folder)
        return {**ENVIRONMENT, "HOME": home, "FEDPILOT_CONFIG_DIR": f"{home}/config"}

    # -- what runs ----------------------------------------------------------------------------

    def start_mediator(self) -> None:
        """Start it, and wait until it listens."""
        command = ("mediator", "start", "--folder", "hub", "--listen", self.address, "--json")
        self._start("mediator", self.hub, (*FEDPILOT, *command))
        log = self._log("mediator")
        eventually(lambda: '"mediator_ready"' in log.read_text(), 60, "the mediator is ready")

    def start_ray(self, site: str) -> None:
        """Start the head of a site's cluster, and do not wait for it: its agent does."""
        host = self.sites[site]
        shutil.rmtree(self.folder / f"r-{site}", ignore_errors=True)
        command = (
            *(RAY, "start", "--head", "--block", f"--port={RAY_PORT}"),
            *(f"--node-ip-address={host.address}", f"--num-cpus={self.cpus}"),
            *(f"--temp-dir={self.folder}/r-{site}", "--include-dashboard=false"),
            *("--include-log-monitor=false", "--disable-usage-stats"),
            *("--dashboard-agent-listen-port=0", "--object-store-memory=104857600"),
            *("--min-worker-port=0", "--max-worker-port=0"),
        )
        self._start(f"ray {site}", host, command)

    def join(self, site: str, *options: str) -> None:
        """Join for the first time, with a token."""
        token = self.run("site", "token", site).stdout.split()[-1]
        (self.folder / f"{site}.token").write_text(token)
        self.start_agent(site, "--token-file", str(self.folder / f"{site}.token"), *options)

    def start_agent(self, site: str, *options: str) -> None:
        """Start the agent of a site, and do not wait for it."""
        host = self.sites[site]
        command = (
            *("site", "join", "--mediator", self.address, "--name", site),
            *("--home", str(self.folder / site), "--json"),
            *("--ray-address", f"{host.address}:{RAY_PORT}", "--ray-auth-mode", "disabled"),
        )
        self._start(f"agent {site}", host, (*FEDPILOT, *command, *options))

    def kill(self, name: str) -> None:
        """SIGKILL: of the mediator and an agent the one process, of a Ray all its processes."""
        process = self.running.pop(name)
        if name.startswith("ray "):
            for each in session_of(process.pid):
                with contextlib.suppress(psutil.Error):
                    each.kill()
        else:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(20)

    def kill_coordinator(self, run: str) -> None:
        """SIGKILL of the one that a run has now."""
        of = [pid for pid, words in self._at_hub() if COORDINATOR in words and words[-1] == run]
        assert len(of) == 1, f"run {run} has one coordinator: {of}"
        os.kill(of[0], signal.SIGKILL)

    def end(self, name: str) -> int:
        """SIGTERM; its exit code."""
        process = self.running.pop(name)
        process.terminate()
        return process.wait(40)

    # -- what is asked ------------------------------------------------------------------------

    def run(self, *arguments: str, code: int = 0, timeout_s: float = 60) -> Any:
        """A `fedpilot` command of an admin, on the mediator's host."""
        access = ("--mediator", self.address, "--credentials", str(self.folder / "admin"))
        done = self.hub.run(
            (*FEDPILOT, *arguments, *access), env=self.env, cwd=self.folder, timeout_s=timeout_s
        )
        said = f"fedpilot {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, said
        return done

    def ask(self, *arguments: str) -> Any:
        """The JSON document that a command prints."""
        return json.loads(self.run(*arguments, "--json").stdout)

    def states(self) -> dict[str, str]:
        """Of the sites."""
        return {site["name"]: site["state"] for site in self.ask("site", "list")["sites"]}

    def until(self, states: dict[str, str], within_s: float = 60) -> None:
        """Wait until the sites stand so."""
        eventually(lambda: states.items() <= self.states().items(), within_s, f"{states}")

    def submit(self, config: str, run: str, *options: str) -> subprocess.Popen[str]:
        """`fedpilot run` with a config, following it."""
        path = self.folder / f"{run}.yaml"
        path.write_text(config)
        access = ("--mediator", self.address, "--credentials", str(self.folder / "admin"))
        command = (*FEDPILOT, "run", path.name, "--run-id", run, "--json", *access, *options)
        return self._start(f"run {run}", self.hub, command)

    def events(self, run: str) -> list[dict[str, Any]]:
        """What the command that follows a run has printed so far."""
        lines = self._log(f"run {run}").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line[-1] == "\n"]

    def wait_for(self, run: str, event: str, within_s: float = 90, **fields: Any) -> dict[str, Any]:
        """Wait until a run has said something."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [
                each
                for each in self.events(run)
                if each["event"] == event and fields.items() <= each.items()
            ]
            return bool(found)

        try:
            eventually(there, within_s, f"{run} says {event} {fields}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None
        return found[0]

    def next_round(self, run: str, within_s: float = 120) -> int:
        """Wait until a run begins another round, or one anew; its number."""

        def begun() -> list[int]:
            return [e["round"] for e in self.events(run) if e["event"] == "round_started"]

        before = len(begun())
        eventually(lambda: len(begun()) > before, within_s, f"{run} begins a round")
        return begun()[-1]

    def finished(self, run: str, within_s: float = 120) -> dict[str, Any]:
        """Wait for the end of a run and of the command that follows it; its last event."""
        last = self.wait_for(run, "run_finished", within_s)
        self.running.pop(f"run {run}").wait(20)
        return last

    def left_at(self, site: str) -> list[str]:
        """Command lines of what runs leave at a site: runners, and the actors of their gangs."""
        return [
            " ".join(words)
            for _, words in _processes(self.sites[site])
            if RUNNER in words or (words[0].startswith("ray::") and words[0] not in OF_RAY)
        ]

    def held(self) -> dict[str, float]:
        """CPUs of each site that its Ray has given to somebody."""
        found = {}
        for site in self.ask("site", "list")["sites"]:
            there = site["capacity"]
            found[site["name"]] = there["total"].get("CPU", 0.0) - there["free"].get("CPU", 0.0)
        return found

    def left_at_hub(self) -> list[str]:
        """Command lines of what is on the mediator's host beside it and our own commands."""
        mine = {process.pid for process in self.running.values()}
        return [" ".join(words) for pid, words in self._at_hub() if pid not in mine]

    def _at_hub(self) -> list[tuple[int, list[str]]]:
        return _processes(self.hub)

    def logs(self) -> str:
        """The ends of all logs, for whoever reads a failure."""
        parts = []
        for path in sorted(set(self.folder.glob("*.log")) - set(self.folder.glob("ray-*.log"))):
            parts.append(f"-- {path.name}\n{path.read_text()[-1500:]}")
        for path in sorted(self.folder.glob("*/runs/*/*.log")):
            parts.append(f"-- {path.relative_to(self.folder)}\n{path.read_text()[-1500:]}")
        return "\n".join(parts)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def _start(self, name: str, host: Host, command: Sequence[str]) -> subprocess.Popen[str]:
        with self._log(name).open("a") as log:
            process = host.start(command, env=self.env, cwd=self.folder, out=log, err=log)
        self.running[name] = process
        return process


def _processes(host: Host) -> list[tuple[int, list[str]]]:
    """The live processes on a host, with the words of their command lines."""
    found = []
    for pid in host.pids():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE and (words := process.cmdline()):
                found.append((pid, [word.strip() for word in words]))
    return found


@contextlib.contextmanager
def fleet(*sites: str, cpus: int = 1) -> Iterator[Fleet]:
    """A mediator and Ray clusters, no site joined yet; all is ended and removed."""
    folder = Path(tempfile.mkdtemp(prefix="fp-"))
    try:
        with hosts("hub", *sites) as made:
            hub = made.pop("hub")
            here = Fleet(folder, hub, made, cpus)
            for site in sites:
                made[site].refuse_inbound()
            here.start_mediator()
            issue = ("certs", "issue", "--folder", "hub/certs", "--name", "ada", "--role", "admin")
            done = hub.run(
                (*FEDPILOT, *issue, "--out", "admin"), env=here.env, cwd=folder, timeout_s=30
            )
            assert done.returncode == 0, done.stderr
            for site in sites:
                here.start_ray(site)
            yield here
    finally:
        shutil.rmtree(folder, ignore_errors=True)
