"""Lets the control plane of a head keep its state in Redis, so that the next head goes on with it.

`ray start` would put the password on the command lines of the processes that it starts, and the
address into their environments, where a driver on the head would take it for its own. Here the
control plane alone has them, and the password in its environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import private_ray
from ..control_plane.redis_login import RedisLogin

ADDRESS, NAMESPACE = "RAY_REDIS_ADDRESS", "RAY_external_storage_namespace"
CONTROL_PLANE = "gcs_server"
ADDRESS_FILE = "ray_current_cluster"
"""The file in a folder of sessions with the address of the head that started there last."""
SECRETS = ("redis_username", "redis_password")
"""The flags that the control plane reads from its environment."""


def keep_state_in(login: RedisLogin, sessions: Path) -> None:
    """Let the `ray start` of this process use a Redis. To be called before Ray is imported.

    `ray start` takes raylets of this computer that wait for the new head for a Ray that serves at
    its address, unless the folder of sessions has that address no more.
    """
    (sessions / ADDRESS_FILE).unlink(missing_ok=True)
    os.environ.update({ADDRESS: login.address, NAMESPACE: login.namespace})
    node, services, _, _ = private_ray.starting()
    finds, starts = node.get_session_key_from_storage, services.start_ray_process

    def found(host: str, port: int, username: str, password: str, *others: Any) -> Any:
        """The name of the session that an earlier head has begun."""
        return finds(host, port, login.username, login.password, *others)

    def started(command: Sequence[str], process_type: str, **others: Any) -> Any:
        if process_type == CONTROL_PLANE:
            return _started(login, starts, command, **others)
        return starts(command, process_type, **others)

    vars(node)["get_session_key_from_storage"] = found
    vars(services)["start_ray_process"] = started


def _started(
    login: RedisLogin, starts: Callable[..., Any], command: Sequence[str], **others: Any
) -> Any:
    """Start the control plane with its secrets, and keep the address from what starts later."""
    values = (login.username, login.password)
    secrets = {f"FLAGS_{name}": each for name, each in zip(SECRETS, values, strict=True)}
    others["env_updates"] = {**(others.get("env_updates") or {}), **secrets}
    started = starts([*command, f"--fromenv={','.join(SECRETS)}"], CONTROL_PLANE, **others)
    for name in (ADDRESS, NAMESPACE):
        del os.environ[name]
    return started
