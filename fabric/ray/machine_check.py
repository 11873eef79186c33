"""Asks every machine of a Ray cluster whether fedpilot can work there, in a task without CPU."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import NotInstalled

NEEDED = ("fedpilot", "torch")
"""Modules that every machine needs for fedpilot; others are the user's own."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_MACHINE = re.compile(r"\bip=([0-9A-Fa-f.:]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """One machine's report about itself."""

    hostname: str
    cpus: float
    """The CPUs that Ray counts there."""
    problem: str = ""
    """Why fedpilot cannot work there; empty if it can."""
    python: str = ""
    fedpilot: str = ""
    """Its version; empty if it could not be imported."""
    niceness: int | None = None
    """The niceness of Ray's workers."""
    load: float | None = None
    """The load average: processes that ran or were ready to run in the last minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """What a Ray cluster offers."""

    ray: str
    """Its version."""
    cpus: float
    free_cpus: float
    machines: tuple[MachineReport, ...]


def check_cluster(modules: Sequence[str], timeout_s: float) -> ClusterReport:
    """Ask all live machines of this process's Ray at once; each tries to import `modules`."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + timeout_s
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeID"]))
    ask: Any = ray.remote(_question())
    asked = [
        ask.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(list(modules))
        for node in alive
    ]
    return ClusterReport(
        ray=ray.__version__,
        cpus=total.get("CPU", 0.0),
        free_cpus=free.get("CPU", 0.0),
        machines=tuple(
            MachineReport(
                hostname=node["NodeManagerHostname"],
                cpus=node["Resources"].get("CPU", 0.0),
                **_answer(answer, deadline, timeout_s),
            )
            for node, answer in zip(alive, asked, strict=True)
        ),
    )


def _answer(asked: Any, deadline: float, timeout_s: float) -> Mapping[str, Any]:
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        found: Mapping[str, Any] = ray.get(asked, timeout=max(0.0, deadline - time.monotonic()))
    except GetTimeoutError:
        ray.cancel(asked, force=True)
        return {"problem": f"it has not run a task of 0 CPU within {timeout_s:g} s"}
    except RayError as error:
        return {"problem": str(error).strip().rpartition("\n")[2]}
    return found


def _question() -> Callable[[list[str]], dict[str, Any]]:
    """Make the task's function; a nested function is pickled by value."""

    def question(modules: list[str]) -> dict[str, Any]:
        import importlib
        import importlib.metadata
        import os
        import platform

        found: dict[str, Any] = {
            "python": platform.python_version(),
            "niceness": os.nice(0),
            "load": round(os.getloadavg()[0], 1),
        }
        try:
            for module in modules:
                importlib.import_module(module)
            found["fedpilot"] = importlib.metadata.version("fedpilot")
        except Exception as error:
            found["problem"] = f"{type(error).__name__}: {error}"
        return found

    return question


def not_installed(text: str) -> NotInstalled | None:
    """Recognize, in Ray's message about a failed actor, a machine without fedpilot."""
    for module in _MISSING.findall(text):
        if module.partition(".")[0] in NEEDED:
            machine = _MACHINE.search(text)
            return NotInstalled(machine[1] if machine else "?", module)
    return None
