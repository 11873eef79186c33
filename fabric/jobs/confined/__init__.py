"""What puts the Pythons of a confined job into its virtual cluster.

This folder is in their search path, so that they find `sitecustomize`, which wraps Ray when it is
imported. Where a script is started with a search path of its own, `ray.init` calls `hook`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from ...pickle_names import travels

HOOK_VARIABLE = "RAY_RUNTIME_ENV_HOOK"
"""Names what `ray.init` passes a runtime environment through, before it connects."""
OTHER_HOOK_VARIABLE = "FEDPILOT_RUNTIME_ENV_HOOK"
"""Names the user's own, which ours stands in the place of."""


@travels
def hook(runtime_env: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Wrap Ray, unless that has been done, and leave the runtime environment as it is."""
    from ...inside import hooks

    hooks.install()
    module, _, name = os.environ.get(OTHER_HOOK_VARIABLE, "").rpartition(".")
    if not name:
        return runtime_env
    changed: Mapping[str, Any] | None = getattr(importlib.import_module(module), name)(runtime_env)
    return changed
