"""What the exit code of a command means; docs/reference/exit-codes.md tells it to users.

An error of any of the three packages has its code as `exits_with`.
"""

FAILED = 1
"""It ran and failed."""
BAD_INPUT = 2
"""Bad usage or bad input, found before anything was started."""
REFUSED = 3
"""Infeasible, or refused: capacity, policy, roles."""
UNREACHABLE = 4
"""A Ray cluster, a site or a mediator does not answer."""
INTERRUPTED = 130
"""State is kept, and the command that goes on is printed."""


def exit_code_of(error: BaseException | type[BaseException]) -> int | None:
    """The code of an error, or a class of them, of our packages; None for any other."""
    code = getattr(error, "exits_with", None)
    return code if isinstance(code, int) else None
