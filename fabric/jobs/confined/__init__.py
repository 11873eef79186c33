"""Puts the Python processes of a confined job into its virtual cluster.

`sitecustomize`, on their search path, wraps Ray; without that path, `ray.init` calls `hook`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from ...core.pickle_names import travels

HOOK_VARIABLE = "RAY_RUNTIME_ENV_HOOK"
"""Names the function through which `ray.init` passes a runtime environment before connecting."""
OTHER_HOOK_VARIABLE = "FEDPILOT_RUNTIME_ENV_HOOK"
"""Names the user's own hook, which ours replaces and calls."""


@travels
def hook(runtime_env: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Wrap Ray, unless that has been done, and then call the user's own hook, if any."""
    from ...inside import hooks

    hooks.install()
    module, _, name = os.environ.get(OTHER_HOOK_VARIABLE, "").rpartition(".")
    if not name:
        return runtime_env
    changed: Mapping[str, Any] | None = getattr(importlib.import_module(module), name)(runtime_env)
    return changed
