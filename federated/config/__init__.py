"""A run's config: its schema, how it is loaded, and which of it decides the bits."""

from __future__ import annotations

from .loading import load_config, located, parse_config, read_config
from .resolved import as_before, differences, identity, to_yaml, with_execution
from .schema import RunConfig
from .starter import starter

__all__ = [
    "RunConfig",
    "as_before",
    "differences",
    "identity",
    "load_config",
    "located",
    "parse_config",
    "read_config",
    "starter",
    "to_yaml",
    "with_execution",
]
