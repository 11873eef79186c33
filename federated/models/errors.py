"""Errors of models."""

from __future__ import annotations

from fedpilot.federated.errors import FederatedError


class ModelError(FederatedError):
    """A model cannot be built for these data or with these options."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"model {self.name!r}: {self.problem}"
