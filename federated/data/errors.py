"""Errors of data sets."""

from __future__ import annotations

from fedpilot.federated.errors import FederatedError


class DataError(FederatedError):
    """A data set is missing, damaged or invalid."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"data set {self.name!r}: {self.problem}"
