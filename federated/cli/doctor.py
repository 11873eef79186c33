"""Decides whether this host, and the named Ray cluster if any, is fit for a run.

Each check is a function of facts that returns a finding; `examine` gathers the facts. A `fail`
stops a run; a `warn` slows it down or surprises; an `ok` is worth knowing. Nothing is started or
imported that a run would use; a named Ray cluster is attached to as by a run.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fedpilot.common.host.machine import Load, load
from fedpilot.common.text.amounts import counted, in_bytes
from fedpilot.fabric.ray.starting.embedded import niceness

if TYPE_CHECKING:
    from fedpilot.fabric.ray.machine_check import ClusterReport, MachineReport

Status = Literal["ok", "warn", "fail"]

GIB = 2**30
LEAST_MEMORY = 2 * GIB
"""A private Ray takes about 600 MB, a worker with torch about 300 MB."""
LEAST_SHARED_MEMORY = GIB // 2
LEAST_DISK = GIB
FULLEST_DISK = 0.95
"""Share of the disk beyond which Ray refuses to spill objects."""

AGENT_PORT = 52365
"""Default port of every raylet's dashboard agent."""

LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path on Linux."""
SOCKET_BELOW_TMP = "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store"

BUSY = 2.0
"""Processes per CPU beyond which starts take minutes."""
NEEDED_THERE = ("fedpilot.federated.site.workers.node",)
"""Modules that a machine of a Ray cluster must import: those of a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The finding of one check."""

    name: str
    status: Status
    found: str
    advice: str = ""


def _judged(name: str, found: str, *, warn: str = "", fail: str = "") -> CheckResult:
    """A finding that fails or warns if it has advice for that, and is fine otherwise."""
    status: Status = "fail" if fail else "warn" if warn else "ok"
    return CheckResult(name=name, status=status, found=found, advice=fail or warn)


def examine(
    ray_address: str | None = None, auth_mode: str | None = None, timeout_s: float = 120.0
) -> tuple[CheckResult, ...]:
    """Check this host, and with an address that Ray cluster, as a run would find it."""
    environment = os.environ
    findings = [
        *_installation(),
        cpus(_visible_cpus(), _cpu_quota()),
        busyness(load(niceness())),
        memory(_available_memory()),
        shared_memory(_free("/dev/shm")),
        disk(Path.cwd(), shutil.disk_usage(Path.cwd())),
        gpus(sorted(Path("/dev").glob("nvidia[0-9]*")), shutil.which("nvidia-smi") is not None),
        authentication(environment, (Path.home() / ".ray" / "auth_token").exists()),
        other_ray(_process_names()),
        agent_port(_is_taken(AGENT_PORT)),
        ray_address_variable(environment.get("RAY_ADDRESS"), ray_address),
        temporary_folder(environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp"),
    ]
    if ray_address is not None:
        findings += ray_cluster(ray_address, auth_mode, timeout_s)
    return tuple(findings)


def ray_cluster(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[CheckResult]:
    """Whether a run could use a Ray cluster, and each of its machines."""
    from fedpilot.fabric import ClusterUnreachable, RayCluster
    from fedpilot.fabric.ray.machine_check import check_cluster

    try:
        with RayCluster.connect(address, auth_mode, timeout_s):
            report = check_cluster(NEEDED_THERE, timeout_s)
    except ClusterUnreachable as error:
        yield unreachable(error.address, error.reason)
        return
    mode = auth_mode or os.environ.get("RAY_AUTH_MODE") or "disabled"
    yield reached(address, mode, report)
    here = _installed("fedpilot")
    for each in report.machines:
        yield machine(each, here or "")


def unreachable(address: str, reason: str) -> CheckResult:
    """The reason why a run could not attach to a Ray cluster."""
    advice = "check that Ray's head runs there (`ray status`), and that no firewall blocks the port"
    return _judged("ray cluster", f"{address}: {reason}", fail=advice)


def reached(address: str, mode: str, report: ClusterReport) -> CheckResult:
    """What a Ray cluster offers, and how it authenticates."""
    machines = counted(len(report.machines), "machine")
    python = next((each.python for each in report.machines if each.python), "?")
    found = (
        f"{address}: {machines} with {report.cpus:g} CPU, {report.free_cpus:g} of them free; Ray "
        f"{report.ray}, Python {python}, authentication {mode}"
    )
    advice = "all CPUs are in use: a run waits for `resources.reserve_timeout`"
    return _judged("ray cluster", found, warn="" if report.free_cpus else advice)


def machine(report: MachineReport, here: str) -> CheckResult:
    """Whether workers can run on a machine of a Ray cluster; `here` is our version of fedpilot."""
    name = f"machine {report.hostname}"
    if report.problem:
        found = f"fedpilot cannot work there: {report.problem}"
        advice = f"install fedpilot {here} there, in the environment that Ray runs in"
        if not report.python:
            advice = "check its load, and that Ray's raylet runs there (`ray status`)"
        return _judged(name, found, fail=advice)
    found = (
        f"{report.cpus:g} CPU, fedpilot {report.fedpilot}, load {report.load:.1f}, workers at "
        f"niceness {report.niceness}"
    )
    advice = ""
    if report.fedpilot != here:
        advice = f"this machine has fedpilot {here}: install the same version on both"
    elif (report.niceness or 0) > 0:
        advice = (
            "busy processes starve such workers: set RAY_worker_niceness=0 when you start its "
            "raylet"
        )
    return _judged(name, found, warn=advice)


def busyness(busy: Load) -> CheckResult:
    """How busy this host is, and the niceness of a private Ray's workers."""
    if busy.average <= BUSY * busy.cpus:
        return _judged("load", str(busy))
    advice = "other processes are busy: starts take minutes, and rounds take longer"
    if (busy.niceness or 0) > 0:
        advice += "; unset RAY_worker_niceness, or workers get almost no CPU time"
    return _judged("load", str(busy), warn=advice)


def kernels() -> CheckResult:
    """Compile the training code that a first run here would compile."""
    from ..prepare.execution.warming import warm

    try:
        found = warm()
    except Exception as error:
        found = f"training code of dense layers cannot be compiled: {type(error).__name__}: {error}"
        advice = "set `training.execution: folded`, and report Numba's message to us"
        return _judged("kernels", found, warn=advice)
    return _judged("kernels", f"training code of dense layers: {found}")


def python(version: tuple[int, int, int], required: str) -> CheckResult:
    """Whether fedpilot runs on this Python."""
    text = ".".join(map(str, version))
    advice = f"install Python {required} and make a new virtual environment with it"
    return _judged("python", text, fail="" if SpecifierSet(required).contains(text) else advice)


def package(requirement: Requirement, installed: str | None) -> CheckResult:
    """Whether a needed package is installed, in a suitable version."""
    wanted = f'pip install "{requirement.name}{requirement.specifier}"'
    if installed is None:
        return _judged(requirement.name, "not installed", fail=wanted)
    if not requirement.specifier.contains(installed, prereleases=True):
        found = f"{installed}, and fedpilot needs {requirement.specifier}"
        return _judged(requirement.name, found, fail=wanted)
    return _judged(requirement.name, installed)


def cpus(visible: int, quota: float | None) -> CheckResult:
    """How many CPUs workers can share; a container's quota may be below the visible number."""
    usable = visible if quota is None else min(float(visible), quota)
    found = f"{usable:g}" if usable == visible else f"{usable:g} of {visible} (cgroup quota)"
    advice = f"Ray counts {visible}; set `resources.ray.num_cpus: {max(1, int(usable))}`"
    return _judged("cpus", found, warn=advice if usable < visible else "")


def memory(available: int | None) -> CheckResult:
    """Whether a private Ray and two workers fit."""
    if available is None:
        return _judged("memory", "unknown (no /proc/meminfo)")
    found = f"{in_bytes(available)} available"
    advice = "end other programs, or use fewer workers: Ray takes 600 MB, each worker 300 MB"
    return _judged("memory", found, warn=advice if available < LEAST_MEMORY else "")


def shared_memory(free: int | None) -> CheckResult:
    """Whether Ray's object store can live in memory."""
    found = "no /dev/shm" if free is None else f"{in_bytes(free)} free in /dev/shm"
    advice = "Ray falls back to files in /tmp, which is slow; for Docker use `--shm-size=2g`"
    return _judged("shared memory", found, warn=advice if (free or 0) < LEAST_SHARED_MEMORY else "")


def disk(folder: Path, usage: tuple[int, int, int]) -> CheckResult:
    """Whether run folders and Ray's spilled objects have room."""
    total, _, free = usage
    found = f"{in_bytes(free)} free in {folder}"
    if free < LEAST_DISK:
        advice = "free disk space, or set `outputs.folder` to a folder on another disk"
        return _judged("disk", found, warn=advice)
    if free < (1 - FULLEST_DISK) * total:
        found = f"{found}, over {FULLEST_DISK:.0%} full"
        advice = "Ray spills no objects to a disk this full; free space if Ray's folder is on it"
        return _judged("disk", found, warn=advice)
    return _judged("disk", found)


def gpus(devices: Iterable[Path], has_driver_tools: bool) -> CheckResult:
    """Which GPUs this host shows."""
    names = [device.name for device in devices]
    if names and not has_driver_tools:
        advice = "`nvidia-smi` is missing: install the driver, or the container toolkit"
        return _judged("gpus", ", ".join(names), warn=advice)
    return _judged("gpus", ", ".join(names) or "none (runs train on CPUs)")


def authentication(environment: Mapping[str, str], token_exists: bool) -> CheckResult:
    """Whether Ray's processes will agree on token authentication."""
    mode = environment.get("RAY_AUTH_MODE")
    has_token = token_exists or bool(
        environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_TOKEN_PATH")
    )
    if mode == "token" and not has_token:
        advice = "set RAY_AUTH_TOKEN_PATH to the cluster's token file"
        return _judged("ray authentication", "RAY_AUTH_MODE=token, and no token", warn=advice)
    if mode is None and token_exists:
        found = "RAY_AUTH_MODE is unset, and ~/.ray/auth_token exists"
        advice = (
            "`ray start --head` then asks for tokens that `ray start --address` does not send; "
            "set RAY_AUTH_MODE to `token` or `disabled` wherever Ray is started"
        )
        return _judged("ray authentication", found, warn=advice)
    found = f"RAY_AUTH_MODE={mode}" if mode else "unset, and no token in ~/.ray"
    return _judged("ray authentication", found)


def other_ray(process_names: Iterable[str]) -> CheckResult:
    """Which Ray clusters run here already."""
    counts = Counter(name for name in process_names if name in ("gcs_server", "raylet"))
    if not counts:
        return _judged("other ray", "none on this host")
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    advice = "a private Ray runs beside them; `ray stop` would end them all"
    return CheckResult(name="other ray", status="ok", found=found, advice=advice)


def agent_port(taken: bool) -> CheckResult:
    """Whether the fixed port of Ray's dashboard agent is free."""
    if not taken:
        return _judged("ray agent port", f"{AGENT_PORT} is free")
    found = f"{AGENT_PORT} is in use, most likely by another Ray"
    advice = "a private Ray starts some seconds later, since it tries that port first"
    return _judged("ray agent port", found, warn=advice)


def ray_address_variable(variable: str | None, address: str | None) -> CheckResult:
    """Whether RAY_ADDRESS contradicts the config."""
    if not variable:
        return _judged("RAY_ADDRESS", "unset")
    found = f"RAY_ADDRESS={variable}"
    if address == "auto":
        return _judged("RAY_ADDRESS", f"{found}, used by `address: auto`")
    advice = "fedpilot ignores it; set `resources.ray.address: auto` to use that cluster"
    return _judged("RAY_ADDRESS", found, warn=advice)


def temporary_folder(folder: str) -> CheckResult:
    """Whether the paths of Ray's sockets below the temporary folder are short enough."""
    length = len(os.fsencode(folder.rstrip("/") + SOCKET_BELOW_TMP))
    if length <= LONGEST_SOCKET:
        return _judged("temporary folder", folder)
    longest = LONGEST_SOCKET - len(SOCKET_BELOW_TMP)
    found = f"{folder}, too long for Ray's sockets ({length} bytes of at most {LONGEST_SOCKET})"
    advice = f"set RAY_TMPDIR to a folder whose path has at most {longest} bytes, such as /tmp"
    return _judged("temporary folder", found, fail=advice)


def _installation() -> Iterator[CheckResult]:
    try:
        fedpilot = metadata.distribution("fedpilot")
    except metadata.PackageNotFoundError:
        found = "not installed: it runs from its sources"
        advice = "`pip install -e .` in the checkout, so that versions can be checked"
        yield _judged("fedpilot", found, warn=advice)
        return
    yield _judged("fedpilot", fedpilot.version)
    yield python(sys.version_info[:3], fedpilot.metadata["Requires-Python"] or "")
    for line in fedpilot.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield package(requirement, _installed(requirement.name))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _visible_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_quota() -> float | None:
    quota = re.match(r"(\d+) (\d+)", _read("/sys/fs/cgroup/cpu.max"))
    return int(quota[1]) / int(quota[2]) if quota else None


def _available_memory() -> int | None:
    host = re.search(r"MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"))
    limit = re.match(r"\d+", _read("/sys/fs/cgroup/memory.max"))
    used = re.match(r"\d+", _read("/sys/fs/cgroup/memory.current"))
    sizes = [int(host[1]) * 1024] if host else []
    if limit and used:
        sizes.append(max(0, int(limit[0]) - int(used[0])))
    return min(sizes, default=None)


def _free(folder: str) -> int | None:
    return shutil.disk_usage(folder).free if Path(folder).is_dir() else None


def _process_names() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*/comm"):
        yield _read(str(process)).strip()


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False
