"""The configuration of a run: what it may say, how it is loaded, what of it decides the bits."""

from __future__ import annotations

from .loading import load_config, located, parse_config
from .resolved import differences, identity, to_yaml
from .schema import RunConfig
from .starter import starter

__all__ = [
    "RunConfig",
    "differences",
    "identity",
    "load_config",
    "located",
    "parse_config",
    "starter",
    "to_yaml",
]
