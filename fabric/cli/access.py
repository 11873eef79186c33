"""How the commands of the fabric reach Ray, and what they say while Ray is slow."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from ..errors import ClusterUnreachable
from ..host.exit_codes import (
    BAD_INPUT as BAD_INPUT,
    FAILED as FAILED,
    INTERRUPTED as INTERRUPTED,
    REFUSED as REFUSED,
    UNREACHABLE as UNREACHABLE,
)
from ..host.machine import load
from ..host.patience import FIRST_S, Patience
from ..terminal.console import Spinner

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters

LOOK_S = 1.0
"""How long a control plane may take to answer for a line that says what is waited for."""

Command = TypeVar("Command", bound=Callable[..., Any])
Client = TypeVar("Client")
Answer = TypeVar("Answer")
Attach: TypeAlias = Callable[[str, str | None, float], AbstractContextManager[Client]]
"""Makes this process a driver of the Ray cluster that `--address` and `--auth-mode` lead to, within
`--timeout` seconds."""
TIMEOUT = "fedpilot.timeout_s"
"""Where click keeps the last."""


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
