"""The exit codes of commands (docs/reference/exit-codes.md); errors have theirs as `exits_with`."""

FAILED = 1
"""The command ran and failed."""
BAD_INPUT = 2
"""Bad usage or bad input, found before anything was started."""
REFUSED = 3
"""Infeasible, or refused: capacity, policy, roles."""
UNREACHABLE = 4
"""A Ray cluster, a site or a mediator does not answer."""
PREEMPTED = 75
"""Stopped to make room for others, and not run again; EX_TEMPFAIL in sysexits.h: try again."""
INTERRUPTED = 130
"""State is kept, and the command to continue is printed."""


def exit_code_of(error: BaseException | type[BaseException]) -> int | None:
    """The code of an error of our packages, or of its class; None for any other error."""
    code = getattr(error, "exits_with", None)
    return code if isinstance(code, int) else None
