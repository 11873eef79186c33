"""The commands about connection profiles: `fedpilot profile`. They ask no mediator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.terminal.commands import CommandGroup, exit_codes
from fedpilot.common.terminal.console import display, print_json

from .access import JSON

if TYPE_CHECKING:
    from ..client.profiles import Profile, Profiles


@click.group(cls=CommandGroup)
def profile() -> None:
    """Save mediators under names, so that no command needs an address.

    A profile is an address and a folder of credentials (ca.pem, cert.pem and key.pem, as `fedpilot
    certs issue` writes them). The file profiles.yaml holds the profiles. It is in the folder
    FEDPILOT_CONFIG_DIR, by default the user's settings folder. A command uses the first of
    --mediator, --profile, FEDPILOT_PROFILE and the default profile.

    \b
    Examples:
      fedpilot profile add hospitals --mediator fl.example.org:7461 --credentials ~/alice
      fedpilot profile list
      fedpilot profile use hospitals
      fedpilot site list --profile hospitals
    """


@profile.command()
@click.argument("name")
@click.option("--mediator", metavar="HOST:PORT", required=True, help="Address of the mediator.")
@click.option(
    "--credentials",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder with your ca.pem, cert.pem and key.pem. The command does not copy it.",
)
@click.option("--default", "as_default", is_flag=True, help="Make it the default profile.")
@click.option("--force", is_flag=True, help="Replace the profile of that name.")
@JSON
def add(
    name: str, mediator: str, credentials: Path, as_default: bool, force: bool, as_json: bool
) -> None:
    """Add profile NAME; the first profile becomes the default.

    The command checks that the credentials belong together and have not expired.

    \b
    Examples:
      fedpilot profile add hospitals --mediator fl.example.org:7461 --credentials ~/alice
      fedpilot profile add test --mediator 127.0.0.1:7461 --credentials certs/alice --default

    \b
    Exit codes: 0 added; 2 the name, the address or the credentials are wrong.
    """
    with exit_codes():
        from ..client import profile_file
        from ..client.profiles import Profile
        from ..errors import ProfileError
        from ..identity import Credentials

        folder = profile_file.config_folder()
        profiles = profile_file.read(folder)
        if name in profiles.by_name and not force:
            raise ProfileError(f"there is a profile {name!r} already; --force replaces it")
        made = Profile(name=name, address=mediator, credentials=credentials.absolute())
        changed = profiles.with_profile(made, default=as_default)
        Credentials.read(made.credentials).identity.check(time.time())
        path = profile_file.write(folder, changed)
        if as_json:
            print_json(_document(changed, made))
            return
        click.echo(f"added {name} to {path}{_said_default(changed, name)}")


@profile.command("list")
@JSON
def list_(as_json: bool) -> None:
    """List the profiles, and mark the default one.

    \b
    Examples:
      fedpilot profile list
      fedpilot profile list --json | jq -r '.profiles[] | select(.default) | .address'
    """
    with exit_codes():
        profiles = _profiles()
        ordered = [profiles.by_name[name] for name in sorted(profiles.by_name)]
        if as_json:
            print_json({"profiles": [_document(profiles, each) for each in ordered]})
            return
        if not ordered:
            click.echo("no profiles; `fedpilot profile add` adds one")
            return
        from fedpilot.common.terminal.layout import ruled

        table = ruled("name", "mediator", "credentials", fold=True)
        for each in ordered:
            mark = " (default)" if each.name == profiles.default else ""
            table.add_row(f"{each.name}{mark}", each.address, str(each.credentials))
        display(table)


@profile.command()
@click.argument("name")
@JSON
def show(name: str, as_json: bool) -> None:
    """Show profile NAME: mediator, credentials, user and role.

    \b
    Examples:
      fedpilot profile show hospitals
      fedpilot profile show hospitals --json | jq -r .role
    """
    with exit_codes():
        from fedpilot.common.terminal.layout import named, timestamp
        from fedpilot.common.text.amounts import duration

        from ..identity import Credentials

        profiles = _profiles()
        found = profiles.named(name)
        identity = Credentials.read(found.credentials).identity
        document = {
            **_document(profiles, found),
            "user": identity.name,
            "role": str(identity.role),
            "expires_at": identity.expires_at,
        }
        if as_json:
            print_json(document)
            return
        left = identity.expires_at - time.time()
        facts = named()
        facts.add_row("name", f"{name}{_said_default(profiles, name)}")
        facts.add_row("mediator", found.address)
        facts.add_row("credentials", str(found.credentials))
        facts.add_row("user", f"{identity.name}, with the role {identity.role}")
        ends = f"expires in {duration(left)}" if left > 0 else "expired"
        facts.add_row("certificate", f"{ends}: {timestamp(identity.expires_at)}")
        display(facts)


@profile.command()
@click.argument("name")
@JSON
def use(name: str, as_json: bool) -> None:
    """Make profile NAME the default.

    Commands about sites, events and nodes then use its mediator, and `fedpilot runs` shows the
    mediator's runs. `fedpilot run` still trains here, unless you name a mediator.

    \b
    Examples:
      fedpilot profile use hospitals
      fedpilot profile use hospitals --json
    """
    with exit_codes():
        from ..client import profile_file

        folder = profile_file.config_folder()
        changed = profile_file.read(folder).with_default(name)
        profile_file.write(folder, changed)
        if as_json:
            print_json(_document(changed, changed.by_name[name]))
            return
        click.echo(f"{name} is now the default: {changed.by_name[name].address}")


@profile.command()
@click.argument("name")
@JSON
def remove(name: str, as_json: bool) -> None:
    """Remove profile NAME, but not its credentials.

    \b
    Examples:
      fedpilot profile remove hospitals
      fedpilot profile remove hospitals --json
    """
    with exit_codes():
        from ..client import profile_file

        folder = profile_file.config_folder()
        profiles = profile_file.read(folder)
        gone = profiles.named(name)
        profile_file.write(folder, profiles.without(name))
        if as_json:
            print_json({"removed": name, "credentials": str(gone.credentials)})
            return
        click.echo(f"removed {name}; its credentials are still in {gone.credentials}")
        if profiles.default == name:
            click.echo("there is no default now; `fedpilot profile use NAME` sets one")


def _profiles() -> Profiles:
    from ..client import profile_file

    return profile_file.read(profile_file.config_folder())


def _document(profiles: Profiles, profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "address": profile.address,
        "credentials": str(profile.credentials),
        "default": profile.name == profiles.default,
    }


def _said_default(profiles: Profiles, name: str) -> str:
    return ", the default" if profiles.default == name else ""
