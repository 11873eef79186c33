"""Own the models that are trained; PyTorch is imported when one of them is built."""

from .errors import ModelError
from .registry import (
    available,
    bring,
    build,
    check,
    options,
    register_model,
    registered,
    resolve,
)

__all__ = [
    "ModelError",
    "available",
    "bring",
    "build",
    "check",
    "options",
    "register_model",
    "registered",
    "resolve",
]
