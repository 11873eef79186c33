"""The strategy that assigns a run's clients to sites: by its name, or a function of the user."""

from __future__ import annotations

from fedpilot.mediator.core.assignment import (
    AssignmentProblem,
    ChosenStrategy,
    Division,
    NotAssignable,
    OwnStrategy,
)
from fedpilot.mediator.core.assignment.divisions import checked

from ..config.schema import RunConfig
from ..core.user_code.registry import RegistryError, load_dotted
from ..errors import ConfigError
from .inputs.blame import blaming, blaming_users_code

KEY = "federation.assignment"
ALLOWED = (
    "a function of an AssignmentProblem that returns a Division, which gives each client that may "
    "move to one of the sites"
)


def strategy_of(config: RunConfig) -> ChosenStrategy:
    """The strategy; raises ConfigError if its function cannot be loaded.

    An own one raises ConfigError if it raises, or if what it returns is no division.
    """
    path = config.federation.assigned_by
    if not config.federation.has_own_assignment:
        return path
    with blaming(KEY, ALLOWED, RegistryError):
        function = load_dotted(path)

    def divide(problem: AssignmentProblem) -> Division:
        with blaming_users_code(KEY, ALLOWED), blaming(KEY, ALLOWED, TypeError):
            made = function(problem)
        try:
            return checked(made, problem)
        except NotAssignable as error:
            raise ConfigError.about(KEY, f"`{path}`: {error}", ALLOWED) from error

    return OwnStrategy(path, divide)
