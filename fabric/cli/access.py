"""Connects the fabric's commands to Ray, and reports on stderr while Ray is slow."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import click

from fedpilot.common.host.machine import load
from fedpilot.common.host.patience import FIRST_S, Patience
from fedpilot.common.terminal.console import spinner

from ..errors import ClusterUnreachable

if TYPE_CHECKING:
    from ..inside.virtual_clusters import VirtualClusters

LOOK_S = 1.0
"""The timeout for asking Ray's control plane while a slow connection is reported."""

Command: TypeAlias = Callable[..., None]
Client = TypeVar("Client")
Answer = TypeVar("Answer")
TIMEOUT = "fedpilot.timeout_s"
"""The key of the timeout in click's `meta`."""


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
    help="How long Ray may take to answer. If no Ray runs there, the command ends at once.",
)
"""Sets the timeout of `RayAccess.opened`."""

_ACCESS_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
    with_timeout,
    click.option(
        "--auth-mode",
        type=click.Choice(["disabled", "token"]),
        help="Authentication of Ray. Default: RAY_AUTH_MODE, or disabled. With token, "
        "RAY_AUTH_TOKEN_PATH is the file of the token.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        default="auto",
        show_default=True,
        help="Head of the Ray cluster; auto: RAY_ADDRESS, or the Ray that was started last in the "
        "usual temporary folder of this machine.",
    ),
)


@dataclass(frozen=True, slots=True)
class RayAccess(Generic[Client]):
    """The Ray cluster that `--address` and `--auth-mode` select."""

    client: Callable[[], Client]
    """Makes the client after this process has become a driver of the Ray cluster."""
    address: str
    auth_mode: str | None

    @property
    def is_chosen(self) -> bool:
        """Whether an option says which Ray cluster, or how to authenticate."""
        return (self.address, self.auth_mode) != ("auto", None)

    @property
    def place(self) -> str:
        """The Ray cluster's name in messages."""
        return _place_of(self.address)

    @contextmanager
    def opened(self) -> Iterator[Client]:
        """Attach to the Ray cluster; a test passes its own way to attach as click's `obj`."""
        context = click.get_current_context()
        attach, timeout_s = context.obj or self._attached, timeout_of(context)
        with ExitStack() as undo:
            with said_to_be_slow(self.address, timeout_s, self.auth_mode):
                client = undo.enter_context(attach(self.address, self.auth_mode, timeout_s))
            yield client

    @contextmanager
    def _attached(self, address: str, auth_mode: str | None, timeout_s: float) -> Iterator[Client]:
        from ..ray.cluster import RayCluster

        with RayCluster.connect(address, auth_mode, timeout_s):
            yield self.client()

    def ask(self, question: Callable[[Client], Answer]) -> Answer:
        """Attach, ask one question and detach."""
        with (
            spinner(f"asking {self.place}"),
            self.opened() as client,
            self.answer_said_to_be_slow(),
        ):
            return question(client)

    def answer_said_to_be_slow(self) -> AbstractContextManager[Any]:
        """Report on stderr while a joined cluster's manager or job server does not answer."""
        said = f"this command has joined {self.place}, but has no answer after"
        return Patience(lambda s: _say_slow(f"{said} {s:.0f} s"), first_s=FIRST_S)

    def command(self, *words: str) -> str:
        """A fedpilot command line with the options that select this Ray cluster."""
        address = [] if self.address == "auto" else ["--address", self.address]
        auth_mode = ["--auth-mode", self.auth_mode] if self.auth_mode else []
        return shlex.join(["fedpilot", *words, *address, *auth_mode])


def with_access(client: Callable[[], Any]) -> Callable[[Command], Command]:
    """Add `--json`, and the options that select a Ray cluster as the argument `ray`."""

    def add(command: Command) -> Command:
        @wraps(command)
        def with_ray(*, address: str, auth_mode: str | None, **options: Any) -> None:
            command(ray=RayAccess(client, address, auth_mode), **options)

        for option in _ACCESS_OPTIONS:
            option(with_ray)
        return with_ray

    return add


def _virtual_clusters() -> VirtualClusters:
    from ..inside.virtual_clusters import VirtualClusters

    return VirtualClusters()


with_clusters = with_access(_virtual_clusters)
"""For commands that ask the manager of virtual clusters."""


def timeout_of(context: click.Context) -> float:
    """The value of `--timeout`."""
    return float(context.meta[TIMEOUT])


def said_to_be_slow(
    address: str, timeout_s: float, auth_mode: str | None = None
) -> AbstractContextManager[Any]:
    """While joining a Ray cluster takes long, report on stderr which part does not answer."""

    def say(seconds: float) -> None:
        place = _place_of(address)
        said = f"{place} has not answered for {seconds:.0f} s"
        if _answers(address, auth_mode):
            said = f"{place} answers, but this command has not joined it after {seconds:.0f} s"
        _say_slow(said, f"; it may take {timeout_s:g} s (--timeout)")

    return Patience(say, first_s=FIRST_S)


def _say_slow(what: str, deadline: str = "") -> None:
    click.echo(f"fedpilot: {what} ({load()} here){deadline}", err=True)


def _answers(address: str, auth_mode: str | None) -> bool:
    """Whether the control plane answers; if so, a raylet or this process's Ray is slow."""
    from ..ray.connection import address_of_this_machine
    from ..ray.control_plane.probe import answers, auth_mode_of

    try:
        found = address_of_this_machine() if address == "auto" else address
    except ClusterUnreachable:
        return False
    return answers(found, auth_mode_of(auth_mode), LOOK_S)


def _place_of(address: str) -> str:
    return "the Ray of this machine" if address == "auto" else f"the Ray at {address}"
