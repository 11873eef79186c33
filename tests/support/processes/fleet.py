"""A federation as operators have it: a mediator and sites, each on a host of its own.

Every site is a real Ray cluster in a network namespace, with an agent beside it that dials out to
the mediator in another one. All are real processes; whatever is killed here is killed for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fedpilot.federated.core.execution.kernel import cache_folder
from fedpilot.mediator.cli.compiling import mark
from hosts import Host, hosts
from real_ray import ENVIRONMENT, eventually, session_of
from small_disks import SmallDisk, small_disk

FEDPILOT = (sys.executable, "-m", "fedpilot")
PORT, RAY_PORT = 7443, 6379
COORDINATOR, PROBE = (
    "fedpilot.mediator.coordinator.process",
    "fedpilot.mediator.agent.scans.ray_probe",
)
RUNNER = "fedpilot.mediator.agent.runner"
OF_RAY = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::ManagerActor")
"""The actors' processes that a Ray cluster has whether a run is there or not."""
ALWAYS_THERE = ("", "actor ManagerActor", "virtual cluster default")
"""What it knows of then."""
SAID = re.compile(r" site (\S+) is (\w+): ")
"""What a mediator's log says of a site."""
ASK_S = 0.5
"""Between two questions that take a process each."""
HOME_MB = 64
"""What the disk of a site's home folder has."""
RAY_STARTS = 4
"""How often a head may be started that gives up."""
BEGINS = "-- a head is started --"
"""What the log of a Ray is told."""
RAY = str(Path(sys.executable).parent / "ray")
CENSUS = str(Path(__file__).parent / "census.py")


@dataclass
class Told:
    """What has been read of a log; a wait for an event asks for it twenty times a second."""

    position: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Fleet:
    """The mediator's host, the sites' hosts, and what runs on them."""

    folder: Path
    hub: Host
    sites: dict[str, Host]
    cpus: int
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    """`mediator`, `agent <site>`, `ray <site>`, `run <run>`."""
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the agents of a site are told beside its name."""
    disks: dict[str, SmallDisk] = field(default_factory=dict)
    """Those of the sites' home folders."""
    told: dict[str, Told] = field(default_factory=dict)
    """By run, what the command that follows it has printed."""

    @property
    def address(self) -> str:
        """Where the mediator listens."""
        return f"{self.hub.address}:{PORT}"

    @property
    def env(self) -> dict[str, str]:
        """Of every process: folders of its own, and no Ray that is known from outside."""
        home = str(self.folder)
        own = {
            "HOME": home,
            "FEDPILOT_CONFIG_DIR": f"{home}/config",
            "TMPDIR": f"{home}/tmp",
            "XDG_CACHE_HOME": f"{home}/cache",
            "NUMBA_CACHE_DIR": str(cache_folder()),  # shared by all tests
        }
        return {**ENVIRONMENT, **own}

    # -- what runs ----------------------------------------------------------------------------

    def start_mediator(self) -> None:
        """Start it, and wait until it listens."""
        command = ("mediator", "start", "--folder", "hub", "--listen", self.address, "--json")
        before = self._mediators()
        self._start("mediator", self.hub, (*FEDPILOT, *command))
        eventually(lambda: len(self._mediators()) > len(before), 60, "the mediator is ready")

    def start_ray(self, site: str) -> None:
        """Start the head of a site's cluster, and do not wait for it."""
        host = self.sites[site]
        shutil.rmtree(self.folder / f"r-{site}", ignore_errors=True)
        command = (
            *(RAY, "start", "--head", "--block", f"--port={RAY_PORT}"),
            *(f"--node-ip-address={host.address}", f"--num-cpus={self.cpus}"),
            *(f"--temp-dir={self.folder}/r-{site}", "--include-dashboard=false"),
            *("--include-log-monitor=false", "--disable-usage-stats", "--no-monitor"),
            *("--dashboard-agent-listen-port=0", "--object-store-memory=104857600"),
            *("--min-worker-port=0", "--max-worker-port=0"),
        )
        with self._log(f"ray {site}").open("a") as log:
            print(BEGINS, file=log)
        self._start(f"ray {site}", host, command)

    def wait_for_ray(self, site: str) -> None:
        """Wait until a head that was started is there; one that gives up is started again.

        Ray itself waits for its own parts for 30 s, however little of the machine they get.
        """
        log, name = self._log(f"ray {site}"), f"ray {site}"
        for _ in range(RAY_STARTS):
            ray = self.running[name]
            what = f"the Ray of {site} is there, or has given up"
            eventually(partial(_settled, ray, log), 120, what)
            if ray.poll() is None:
                return
            self.kill(name)  # what is left of it
            self.start_ray(site)
        raise AssertionError(f"the Ray of {site} does not start: {log.read_text()[-2000:]}")

    def join(self, site: str, *options: str) -> None:
        """Join for the first time, with a token; its agents are given `options` ever after."""
        self.options[site] = options
        token = self.run("site", "token", site).stdout.split()[-1]
        (self.folder / f"{site}.token").write_text(token)
        self.start_agent(site, "--token-file", str(self.folder / f"{site}.token"))

    def start_agent(self, site: str, *options: str) -> None:
        """Start the agent of a site, and do not wait for it."""
        host = self.sites[site]
        command = (
            *("site", "join", "--mediator", self.address, "--name", site),
            *("--home", str(self.folder / site), "--json"),
            *("--ray-address", f"{host.address}:{RAY_PORT}", "--ray-auth-mode", "disabled"),
        )
        told = (*self.options.get(site, ()), *options)
        self._start(f"agent {site}", host, (*FEDPILOT, *command, *told))

    def kill(self, name: str) -> None:
        """SIGKILL: of the mediator and an agent the one process, of a Ray all its processes."""
        process = self.running.pop(name)
        if name.startswith("ray "):
            for each in session_of(process.pid):
                with contextlib.suppress(psutil.Error):
                    each.kill()
        else:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(60)

    def kill_coordinator(self, run: str) -> None:
        """SIGKILL of the one that a run has now."""
        of = [pid for pid, words in self._at_hub() if COORDINATOR in words and words[-1] == run]
        assert len(of) == 1, f"run {run} has one coordinator: {of}"
        os.kill(of[0], signal.SIGKILL)

    def kill_runner(self, site: str, run: str) -> None:
        """SIGKILL of the one that a run has at a site now, as soon as it has one."""
        of: list[int] = []

        def there() -> bool:
            of[:] = [
                pid
                for pid, words in _processes(self.sites[site])
                if RUNNER in words and Path(words[-2]).name == run
            ]
            return bool(of)

        eventually(there, 60, f"{run} has a runner at {site}")
        for pid in of:
            os.kill(pid, signal.SIGKILL)

    def end(self, name: str) -> int:
        """SIGTERM; its exit code."""
        process = self.running.pop(name)
        process.terminate()
        return process.wait(60)

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
        """Wait until the sites stand so; they are asked about once the mediator has said it."""

        def so() -> bool:
            said = dict(SAID.findall(self._mediators()[-1]))
            return states.items() <= said.items() and states.items() <= self.states().items()

        eventually(so, within_s, f"{states}", every_s=ASK_S)

    def submit(self, config: str, run: str, *options: str) -> subprocess.Popen[str]:
        """`fedpilot run` with a config, following it."""
        path = self.folder / f"{run}.yaml"
        path.write_text(config)
        access = ("--mediator", self.address, "--credentials", str(self.folder / "admin"))
        command = (*FEDPILOT, "run", path.name, "--run-id", run, "--json", *access, *options)
        return self._start(f"run {run}", self.hub, command)

    def events(self, run: str) -> list[dict[str, Any]]:
        """What the command that follows a run has printed so far."""
        told = self.told.setdefault(run, Told())
        with self._log(f"run {run}").open("rb") as log:
            log.seek(told.position)
            whole, newline, _ = log.read().rpartition(b"\n")
        told.position += len(whole + newline)
        told.events += [json.loads(line) for line in whole.split(b"\n") if line[:1] == b"{"]
        return list(told.events)

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

    def next_round(self, run: str, within_s: float = 300) -> int:
        """Wait until a run begins another round, or one anew; its number."""

        def begun() -> list[int]:
            events = self.events(run)
            assert events[-1]["event"] != "run_finished", f"{run} has no more rounds: {events[-1]}"
            return [e["round"] for e in events if e["event"] == "round_started"]

        before = len(begun())
        eventually(lambda: len(begun()) > before, within_s, f"{run} begins a round")
        return begun()[-1]

    def finished(self, run: str, within_s: float = 300) -> dict[str, Any]:
        """Wait for the end of a run and of the command that follows it; its last event."""
        last = self.wait_for(run, "run_finished", within_s)
        self.running.pop(f"run {run}").wait(60)
        return last

    def left_at(self, site: str) -> list[str]:
        """Command lines at a site of what is neither its Ray, nor its agent, nor the probe of that.

        Runners are among them, and the actors of gangs.
        """
        agent, ray = (self.running.get(f"{each} {site}") for each in ("agent", "ray"))
        return [
            " ".join(words)
            for pid, words in _processes(self.sites[site])
            if not (agent is not None and _is_of_agent(agent.pid, pid, words))
            and not (ray is not None and _is_of_ray(ray.pid, pid, words))
        ]

    def left_in_ray(self, site: str) -> list[str]:
        """Actors, placement groups and virtual clusters that a site's Ray knows of.

        Those that it always has are left out. A Ray that did not answer may know of anything.
        """
        address = f"{self.sites[site].address}:{RAY_PORT}"
        listed = ("cluster", "list", "--address", address, "--auth-mode", "disabled", "--json")
        found = []
        for command in ((sys.executable, CENSUS, address), (*FEDPILOT, *listed)):
            done = self.sites[site].run(command, env=self.env, cwd=self.folder, timeout_s=180)
            if done.returncode != 0:
                found.append(f"no answer to {' '.join(command)}: {done.stderr}")
            elif command[1] == CENSUS:
                found += done.stdout.splitlines()
            else:
                clusters = json.loads(done.stdout)["clusters"]
                found += [f"virtual cluster {each['id']}" for each in clusters]
        return [each for each in found if each not in ALWAYS_THERE]

    def left_in_folders(self) -> list[str]:
        """Sockets in the folders of the sites and of the runs, and temporary files of anybody."""
        places = [self.folder / site for site in self.sites] + [self.folder / "hub" / "runs"]
        sockets = [path for place in places for path in place.rglob("*") if path.is_socket()]
        temporary = [path for path in (self.folder / "tmp").iterdir() if path.name != "ray"]
        return [str(path.relative_to(self.folder)) for path in (*sockets, *temporary)]

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

    def _mediators(self) -> list[str]:
        """What each mediator has said since it was ready, the last one last."""
        log = self._log("mediator")
        return log.read_text().split('"mediator_ready"')[1:] if log.exists() else []

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


def _settled(ray: subprocess.Popen[str], log: Path) -> bool:
    """Whether the head that was started last is there, as its log has it, or has given up."""
    return "Ray runtime started" in log.read_text().rpartition(BEGINS)[2] or ray.poll() is not None


def _is_of_agent(agent: int, pid: int, words: Sequence[str]) -> bool:
    """Whether a process is an agent, or a probe of that."""
    with contextlib.suppress(psutil.Error):
        return pid == agent or (PROBE in words and psutil.Process(pid).ppid() == agent)
    return False


def _is_of_ray(ray: int, pid: int, words: Sequence[str]) -> bool:
    """Whether a process belongs to a Ray cluster, and is not there for a run."""
    with contextlib.suppress(ProcessLookupError):
        works = words[0].startswith("ray::") and words[0] not in OF_RAY
        return os.getsid(pid) == ray and not works
    return False


def _compiled(cache: Path) -> None:
    """Tell the agents that all is compiled: three of them would compile what no run here uses."""
    path = cache / "fedpilot" / mark().name
    path.parent.mkdir(parents=True)
    path.touch()


@contextlib.contextmanager
def fleet(*sites: str, cpus: int = 1, home_mb: int = HOME_MB) -> Iterator[Fleet]:
    """A mediator and Ray clusters, no site joined yet; all is ended and removed.

    `home_mb` is the size of the disk of each site's home folder, in MiB.
    """
    folder = Path(tempfile.mkdtemp(prefix="fp-"))
    try:
        with contextlib.ExitStack() as undo:
            disks = {site: undo.enter_context(small_disk(folder / site, home_mb)) for site in sites}
            made = undo.enter_context(hosts("hub", *sites))
            hub = made.pop("hub")
            here = Fleet(folder, hub, made, cpus, disks=disks)
            (folder / "tmp").mkdir()
            _compiled(folder / "cache")
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
            for site in sites:
                here.wait_for_ray(site)
            yield here
    finally:
        shutil.rmtree(folder, ignore_errors=True)
