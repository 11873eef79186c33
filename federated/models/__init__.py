"""The models; building one imports PyTorch."""

from .errors import ModelError
from .registry import available, bring, build, check, options, register_model, registered, resolve

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
