"""What commands share: how those of the fabric reach Ray, and how all print and end.

What is asked for goes to stdout, as text or as one JSON document; everything else to stderr.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import click

from ..core.text.plain_text import plain_lines
from ..errors import ClusterUnreachable, NeverFits
from ..host.exit_codes import (
    BAD_INPUT as BAD_INPUT,
    FAILED as FAILED,
    INTERRUPTED as INTERRUPTED,
    REFUSED as REFUSED,
    UNREACHABLE as UNREACHABLE,
    exit_code_of,
)
from ..host.interruptions import Interruptions
from ..host.machine import load
from ..host.patience import FIRST_S, Patience

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ..inside.virtual_clusters import VirtualClusters

LONGEST_SENTENCE = 1_000
LOOK_S = 1.0
"""How long a control plane may take to answer for a line that says what is waited for."""
PLAIN_WIDTH = 120
"""Columns where there is no terminal to ask."""

Command = TypeVar("Command", bound=Callable[..., Any])
Client = TypeVar("Client")
Answer = TypeVar("Answer")
Attach: TypeAlias = Callable[[str, str | None, float], AbstractContextManager[Client]]
"""Makes this process a driver of the Ray cluster that `--address` and `--auth-mode` lead to, within
`--timeout` seconds."""
TIMEOUT = "fedpilot.timeout_s"
"""Where click keeps the last."""


class CommandGroup(click.Group):
    """A group whose help says in a whole sentence what each of its commands does."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; click itself cuts each to one line."""
        rows = [
            (name, command.get_short_help_str(LONGEST_SENTENCE))
            for name, command in sorted(self.commands.items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


# -- reaching Ray ---------------------------------------------------------------------------------


def _keep_timeout(context: click.Context, _: click.Parameter, value: float) -> None:
    context.meta[TIMEOUT] = value


with_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=120.0,
    show_default=True,
    expose_value=False,
    callback=_keep_timeout,
    help="How long the Ray cluster may take to answer; where there is none, the command ends at "
    "once.",
)
"""How long `opened` waits."""


def with_access(command: Command) -> Command:
    """Add what every command needs to reach a Ray cluster, and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, no text."),
        with_timeout,
        click.option(
            "--auth-mode",
            type=click.Choice(["disabled", "token"]),
            help="How Ray authenticates; by default RAY_AUTH_MODE, or else disabled. For token, "
            "RAY_AUTH_TOKEN_PATH names the file of the token.",
        ),
        click.option(
            "--address",
            metavar="HOST:PORT",
            default="auto",
            show_default=True,
            help="The head of the Ray cluster; auto is RAY_ADDRESS, or the Ray that was started "
            "last on this machine.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def opened(attach: Attach[Client], address: str, auth_mode: str | None) -> Iterator[Client]:
    """Attach to the Ray cluster at an address; tests put a way of theirs into click's context."""
    context = click.get_current_context()
    chosen: Attach[Client] = context.obj or attach
    timeout_s = timeout_of(context)
    with ExitStack() as undo:
        with said_to_be_slow(address, timeout_s, auth_mode):
            client = undo.enter_context(chosen(address, auth_mode, timeout_s))
        yield client


@contextmanager
def attached(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[VirtualClusters]:
    """Be a driver of the Ray cluster at an address, and reach its manager."""
    from ..inside.virtual_clusters import VirtualClusters
    from ..ray.cluster import RayCluster

    with RayCluster.connect(address, auth_mode, timeout_s):
        yield VirtualClusters()


def timeout_of(context: click.Context) -> float:
    """What `--timeout` says."""
    return float(context.meta[TIMEOUT])


def said_to_be_slow(
    address: str, timeout_s: float, auth_mode: str | None = None
) -> AbstractContextManager[Any]:
    """Say on stderr while a Ray cluster does not let us in which part of it does not answer."""

    def say(seconds: float) -> None:
        place = place_of(address)
        said = f"{place} has not answered for {seconds:.0f} s"
        if _answers(address, auth_mode):
            said = f"{place} answers, but this command has not joined it after {seconds:.0f} s"
        _say_slow(said, f"; it may take {timeout_s:g} s (--timeout)")

    return Patience(say, first_s=FIRST_S)


def answer_said_to_be_slow(address: str) -> AbstractContextManager[Any]:
    """Say on stderr while a Ray cluster that let us in does not answer: its manager, its jobs."""
    who = f"this command has joined {place_of(address)}, but has no answer after"
    return Patience(lambda s: _say_slow(f"{who} {s:.0f} s"), first_s=FIRST_S)


def _say_slow(what: str, deadline: str = "") -> None:
    click.echo(f"fedpilot: {what} ({load()} here){deadline}", err=True)


def _answers(address: str, auth_mode: str | None) -> bool:
    """Whether the control plane answers, so that what is missing is a raylet, or Ray in here."""
    from ..ray.connection import address_of_this_machine
    from ..ray.control_plane.probe import answers, auth_mode_of

    try:
        found = address_of_this_machine() if address == "auto" else address
    except ClusterUnreachable:
        return False
    return answers(found, auth_mode_of(auth_mode), LOOK_S)


def ask(
    attach: Attach[Client],
    address: str,
    auth_mode: str | None,
    question: Callable[[Client], Answer],
) -> Answer:
    """Attach for one question."""
    with (
        Spinner(f"asking {place_of(address)}"),
        opened(attach, address, auth_mode) as client,
        answer_said_to_be_slow(address),
    ):
        return question(client)


class NextSteps:
    """Writes the commands that lead on, with the options that lead here."""

    def __init__(self, group: str, address: str, auth_mode: str | None) -> None:
        self._group = group
        self._options = [] if address == "auto" else ["--address", address]
        self._options += ["--auth-mode", auth_mode] if auth_mode else []

    def __call__(self, command: str, *arguments: str) -> str:
        return shlex.join(["fedpilot", self._group, command, *arguments, *self._options])


def place_of(address: str) -> str:
    """What a Ray cluster is called."""
    return "the Ray of this machine" if address == "auto" else f"the Ray at {address}"


# -- printing, waiting, ending --------------------------------------------------------------------


class Spinner:
    """Says on a terminal what is waited for; nothing elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: AbstractContextManager[Any] = nullcontext()

    def say(self, text: str) -> None:
        """Something else is waited for now."""
        from rich.text import Text

        if not isinstance(self._status, nullcontext):
            self._status.update(Text(text))  # type: ignore[attr-defined]

    def __enter__(self) -> Spinner:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.text import Text

            self._status = Console(stderr=True).status(Text(self._text))
        self._status.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._status.__exit__(*error)


def stdout_console() -> Console:
    from rich.console import Console

    plain = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(file=sys.stdout, width=plain, highlight=False, markup=False, emoji=False)


def display(what: RenderableType) -> None:
    stdout_console().print(what)


def print_json(document: Mapping[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))


UNDISTURBED_S = 5.0
"""After an interruption, so that what is under way can end: leaving Ray takes a second."""


def interruptions() -> Interruptions:
    """Let a signal interrupt once; who asks again after a while is heard again."""
    return Interruptions(again_after_s=UNDISTURBED_S)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what went wrong into a message on stderr and the exit code that docs promise."""
    try:
        yield
    except NeverFits as error:
        most = f"; at most {error.most} of its fixed-size nodes fit together" if error.most else ""
        fail(f"{error}{most}", error.exits_with)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        fail(f"{name}{error.strerror or error}", FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        fail(str(error), code)


def fail(message: str, code: int) -> NoReturn:
    click.echo(f"fedpilot: {plain_lines(message)}", err=True)
    sys.exit(code)
