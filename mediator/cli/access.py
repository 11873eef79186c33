"""Shared by commands that ask a mediator: the options that name it, and how answers print.

Answers go to stdout, as text or as one JSON document; everything else goes to stderr.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedpilot.common.text.plain_text import plain_line

from ..client.profiles import ConnectionOptions, Profile, choose
from ..errors import ProfileError

if TYPE_CHECKING:
    from ..client.client import MediatorClient

Command = TypeVar("Command", bound=Callable[..., Any])
Answer = TypeVar("Answer")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access(ConnectionOptions):
    """The mediator of a command line."""

    def chosen_or_none(self) -> Profile | None:
        """The profile to use, if there is one. ProfileError, BadFile."""
        from ..client import profile_file

        return choose(profile_file.read(profile_file.config_folder()), self)

    def chosen(self) -> Profile:
        """The profile to use; ProfileError says how to give one."""
        found = self.chosen_or_none()
        if found is None:
            raise ProfileError(
                "no mediator is named: give --mediator HOST:PORT and --credentials DIR, or save "
                "them with `fedpilot profile add NAME --mediator HOST:PORT --credentials DIR`"
            )
        return found

    def open(self) -> MediatorClient:
        """Make a client. ProfileError, BadFile, IdentityError, CertificateExpired."""
        from ..client.client import MediatorClient
        from ..identity import Credentials

        profile = self.chosen()
        return MediatorClient(
            profile.address, Credentials.read(profile.credentials), on_cut=_tell_cut
        )

    def step(self, *words: str) -> str:
        """The next command for the user, with the options that name the same mediator."""
        options: list[str] = []
        for name in ("mediator", "credentials", "profile"):
            if value := getattr(self, name):
                options += [f"--{name}", value]
        return shlex.join(["fedpilot", *words, *options])


def with_mediator(command: Command) -> Command:
    """Add the options that name a mediator; the command gets them as `access`."""

    @wraps(command)
    def wrapped(
        *arguments: Any,
        mediator: str | None,
        credentials: str | None,
        profile: str | None,
        **options: Any,
    ) -> Any:
        return command(*arguments, access=access_of(mediator, credentials, profile), **options)

    made: Any = wrapped
    for option in (
        click.option(
            "--profile",
            metavar="NAME",
            help="Use the mediator of this profile. Default: FEDPILOT_PROFILE, or the default "
            "profile (see `fedpilot profile`).",
        ),
        click.option(
            "--credentials",
            metavar="DIR",
            help="Folder with your ca.pem, cert.pem and key.pem.",
        ),
        click.option("--mediator", metavar="HOST:PORT", help="Use the mediator at this address."),
    ):
        made = option(made)
    command_with_options: Command = made
    return command_with_options


def access_of(mediator: str | None, credentials: str | None, profile: str | None) -> Access:
    """Combine the options with the environment."""
    return Access(
        mediator=mediator or "",
        credentials=credentials or "",
        profile=profile or "",
        variable="" if mediator or profile else os.environ.get("FEDPILOT_PROFILE", ""),
    )


def ask(access: Access, question: Callable[[MediatorClient], Answer]) -> Answer:
    """Connect for one question."""
    with asking(access) as client:
        return question(client)


@contextmanager
def asking(access: Access) -> Iterator[MediatorClient]:
    """A client; the terminal shows meanwhile which mediator it asks."""
    from fedpilot.common.terminal.console import spinner

    with access.open() as client, spinner(f"asking the mediator at {client.address}"):
        yield client


def event_line(event: Mapping[str, Any]) -> str:
    """Format an event on one line: time, name and fields."""
    fields = " ".join(
        f"{name}={plain_line(value)}"
        for name, value in event.items()
        if name not in ("event", "time") and value not in ("", None)
    )
    when = plain_line(event.get("time", ""))[:19].replace("T", " ")
    return f"{when}  {plain_line(event.get('event', '?')):<18} {fields}".rstrip()


def _tell_cut(reason: str) -> None:
    click.echo(f"fedpilot: the connection is lost ({reason}); reconnecting", err=True)
