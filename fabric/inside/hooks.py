"""Makes a Ray process work inside a virtual cluster, without a change to its code.

`install` wraps the functions that submit work (`submission`), make placement groups
(`nested_groups`) or report the cluster's size. In a virtual cluster they ask its manager first.
Workers install them on start. Code can bypass them (docs/reference/confinement.md).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedpilot.common.host.users import USER_VARIABLE, current_user

from ..core.cluster_state import JobId
from ..core.records import ClusterId
from ..errors import SpecError
from ..ray import private_ray
from .context import JOB_VARIABLE, current_id, start_inside, submit_inside
from .introspection import nodes_of
from .manager_client import ask, clusters, shut_down
from .nested_groups import make_group, remove_group
from .patching import originals, reroute, wrap
from .submission import submission, with_labels

SETUP_HOOK = "fedpilot.fabric.inside.install"
"""The function that workers call on start."""
HOOK = "worker_process_setup_hook"
"""The key in a runtime environment that names the function."""

_lock = threading.Lock()


def install() -> None:
    """Wrap Ray once. Raises UnsupportedRay, before anything is wrapped, if Ray lacks a part."""
    with _lock:
        if originals:
            return
        private_ray.require(private_ray.INSIDE)
        import ray
        from ray.actor import ActorClass
        from ray.remote_function import RemoteFunction

        groups = private_ray.module("ray.util.placement_group")
        state = private_ray.state()
        for cls, actor in ((RemoteFunction, False), (ActorClass, True)):
            wrap(cls, "_remote", submission(actor))
            wrap(cls, "options", with_labels)
        wrap(threading.Thread, "start", start_inside)
        wrap(ThreadPoolExecutor, "submit", submit_inside)
        # Other modules hold references to these, so their code is replaced, not their names.
        reroute(groups.placement_group, "placement_group", make_group)
        reroute(groups.remove_placement_group, "remove_placement_group", remove_group)
        reroute(ray.shutdown, "shutdown", shut_down)
        for name, answer in (
            ("cluster_resources", lambda document, _: dict(document["total"])),
            ("available_resources", lambda document, _: dict(document["available"])),
            ("nodes", lambda document, machines: nodes_of(document, machines())),
        ):
            reroute(getattr(state, name), name, _introspection(answer))
        if cluster := os.environ.get(JOB_VARIABLE):
            originals["init"] = ray.init
            ray.init = _announced(ray.init, cluster)


def environment_inside(cluster: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A job's runtime environment; None: in no virtual cluster. SpecError."""
    env = dict(given or {})
    if env.setdefault(HOOK, SETUP_HOOK) != SETUP_HOOK:
        raise SpecError(f"runtime_env.{HOOK}: virtual clusters need it for themselves")
    if cluster is not None:
        ours = {USER_VARIABLE: current_user()}
        env["env_vars"] = {**ours, **env.get("env_vars", {}), JOB_VARIABLE: cluster}
    return env


def announce(cluster: str) -> None:
    """Report to the manager that this process's job works in a virtual cluster."""
    import ray

    job = JobId(ray.get_runtime_context().get_job_id())
    ask("attach", ClusterId(cluster), job)


def _announced(original: Callable[..., Any], cluster: str) -> Callable[..., Any]:
    """`ray.init` for a script that was started inside a virtual cluster.

    It reports the job even if the script removed the variable, so that the audit sees its escapes.
    """

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        announce(cluster)
        return made

    return init


def _introspection(answer: Callable[[Any, Callable[[], Any]], Any]) -> Callable[..., Any]:

    def asked(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        cluster = current_id()
        if cluster is None:
            return original(*args, **kwargs)
        return answer(clusters().show(cluster), original)

    return asked
