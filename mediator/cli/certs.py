"""The commands about certificates: `fedpilot certs`. Thin: parse, ask the authority, print.

They work on the authority's folder, whether or not a mediator runs, and record each act there for
the mediator's audit log. A running mediator sees changes at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedpilot.fabric.host.exit_codes import BAD_INPUT
from fedpilot.fabric.terminal.commands import CommandGroup, exit_codes, fail
from fedpilot.fabric.terminal.console import display, print_json

from ..core.rules.roles import Role

if TYPE_CHECKING:
    from ..identity import Credentials, Issued

Command = TypeVar("Command", bound=Callable[..., Any])
MEDIATOR = "mediator"
"""The name in the mediator's own certificate."""
DAY_S = 86_400.0


def _with_folder(command: Command) -> Command:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, no text."),
        click.option(
            "--folder",
            metavar="DIR",
            envvar="FEDPILOT_CERTS",
            default="certs",
            show_default=True,
            show_envvar=True,
            type=click.Path(path_type=Path, file_okay=False),
            help="The authority's folder. Whoever can read it can make any certificate.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def _audited(folder: Path, command: str, **facts: str) -> Iterator[None]:
    """Record the account, the act and its outcome, if the folder holds an authority."""
    from ..identity.acts import LocalAct, account, record
    from ..identity.authority import AUTHORITY

    outcome = "interrupted"
    try:
        yield
        outcome = "done"
    except SystemExit as end:
        outcome = f"refused with exit code {end.code}"
        raise
    except Exception as error:
        outcome = f"refused: {error}"
        raise
    finally:
        if (folder / AUTHORITY).is_file():
            what = ", ".join(f"{name}={value}" for name, value in facts.items())
            act = LocalAct(
                at=time.time(), who=account(), act=f"certs {command}", what=what, outcome=outcome
            )
            record(folder, act)


_HOSTS = click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A DNS name or IP address that the mediator is reached at. May be given several times.",
)
_DAYS = click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    default=365.0,
    show_default=True,
    help="How long the certificate is good; never longer than the authority's own.",
)


@click.group(cls=CommandGroup)
def certs() -> None:
    """Make, list and revoke the certificates of a federation: a small authority in a folder.

    The mediator, every user and every site has a certificate that says its name and role. Sites
    get theirs with a token (`fedpilot site token`, `fedpilot site join`) and renew them by
    themselves; others get theirs from here.

    \b
    Examples:
      fedpilot certs init --folder /srv/fedpilot/certs --host mediator.example.org
      fedpilot certs issue --name alice --role operator --out ~/alice
      fedpilot certs list
      fedpilot certs revoke alice
      fedpilot certs rotate mediator
    """


@certs.command()
@_with_folder
@_HOSTS
@_DAYS
def init(folder: Path, hosts: Sequence[str], days: float, as_json: bool) -> None:
    """Make the authority, and the certificate of the mediator.

    The authority is good for ten years. The mediator's certificate goes to the folder `server`
    inside; --days is how long that one is good.

    \b
    Examples:
      fedpilot certs init --host localhost --host 127.0.0.1
      fedpilot certs init --folder /srv/fedpilot/certs --host mediator.example.org --json

    \b
    Exit codes: 0 made; 1 the folder cannot be written; 2 bad input, or there is one already.
    """
    if not hosts:
        raise click.UsageError("name the host that the mediator is reached at: --host NAME.")
    with exit_codes(), _audited(folder, "init", hosts=" ".join(hosts)):
        from ..identity import Authority
        from ..identity.certificates import check_hosts

        check_hosts(hosts, Role.MEDIATOR)
        now = time.time()
        authority = Authority.create(folder, now=now)
        made = authority.issue(MEDIATOR, Role.MEDIATOR, hosts, now=now, valid_s=days * DAY_S)
        made.write(authority.server_folder)
        if as_json:
            print_json({"folder": str(folder), **_document(made, authority.server_folder)})
            return
        click.echo(f"made an authority in {folder}; keep {folder / 'ca.key'} to yourself")
        _tell(made, authority.server_folder)
        click.echo("next, somebody who may use the mediator:")
        click.echo(f"  fedpilot certs issue --folder {folder} --name NAME --role admin --out DIR")


@certs.command()
@_with_folder
@click.option("--name", metavar="NAME", required=True, help="Who it is for.")
@click.option(
    "--role",
    type=click.Choice([str(role) for role in Role]),
    required=True,
    help="What its holder may do.",
)
@_HOSTS
@_DAYS
@click.option(
    "--out",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where ca.pem, cert.pem and key.pem go.",
)
def issue(
    folder: Path,
    name: str,
    role: str,
    hosts: Sequence[str],
    days: float,
    out: Path,
    as_json: bool,
) -> None:
    """Make a key and a certificate for a user, a site or a mediator.

    An admin may do all that users may; an operator begins and ends runs, and cordons and drains
    sites; a viewer reads. Hand the three files over in a safe way: whoever has key.pem is NAME.

    \b
    Examples:
      fedpilot certs issue --name alice --role operator --out ~/alice
      fedpilot certs issue --name ci --role viewer --days 30 --out /run/secrets/fedpilot --json

    \b
    Exit codes: 0 made; 1 a folder cannot be written; 2 bad input, no authority there, or --out
    holds credentials already.
    """
    with exit_codes(), _audited(folder, "issue", name=name, role=role):
        from ..identity import Authority, has_credentials

        authority = Authority.open(folder)
        if has_credentials(out):
            fail(
                f"{out} holds credentials already; name another folder, or use "
                "`fedpilot certs rotate` to put new ones in their place",
                BAD_INPUT,
            )
        out.mkdir(mode=0o700, parents=True, exist_ok=True)  # before anything is issued
        made = authority.issue(name, Role(role), hosts, now=time.time(), valid_s=days * DAY_S)
        made.write(out)
        _tell(made, out, as_json)


@certs.command("list")
@_with_folder
def list_(folder: Path, as_json: bool) -> None:
    """List the certificates that were ever issued, the first first, and when the authority ends.

    \b
    Examples:
      fedpilot certs list
      fedpilot certs list --json | jq -r '.certificates[] | select(.state == "valid") | .name'
    """
    with exit_codes():
        from ..identity import Authority

        authority = Authority.open(folder)
        now, issued = time.time(), authority.issued()
        if as_json:
            entries = [{**asdict(each), "state": each.state(now)} for each in issued]
            ends = {"expires_at": authority.expires_at}
            print_json({"authority": ends, "certificates": entries})
            return
        from ..identity.certificates import day

        _print_table(issued, now)
        click.echo(f"the authority itself is good until {day(authority.expires_at)}")


@certs.command()
@click.argument("which", metavar="NAME|SERIAL")
@_with_folder
def revoke(which: str, folder: Path, as_json: bool) -> None:
    """Refuse a certificate, or all of a name, from now on.

    A mediator that uses this folder sees it at once. Revoking again changes nothing.

    \b
    Examples:
      fedpilot certs revoke alice
      fedpilot certs revoke 3f2a6c0d4b1e5f708192a3b4c5d6e7f801234567 --json

    \b
    Exit codes: 0 none of them is good any more; 1 the folder cannot be written; 2 there is no
    such certificate.
    """
    with exit_codes(), _audited(folder, "revoke", which=which):
        from ..identity import Authority

        revoked = Authority.open(folder).revoke(which, now=time.time())
        if as_json:
            print_json({"revoked": list(revoked)})
            return
        for serial in revoked:
            click.echo(f"revoked {serial}")
        if not revoked:
            click.echo(f"{which} was revoked already")


@certs.command()
@click.argument("which", metavar="NAME|SERIAL")
@_with_folder
@_HOSTS
@_DAYS
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the new files go, in the place of old ones; for the mediator's, by default, to "
    "the folder `server` of the authority.",
)
@click.option(
    "--overlap",
    "overlap_days",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    default=7.0,
    show_default=True,
    help="How long the old certificates stay good, so that the new one can be brought to its "
    "place.",
)
def rotate(
    which: str,
    folder: Path,
    hosts: Sequence[str],
    days: float,
    out: Path | None,
    overlap_days: float,
    as_json: bool,
) -> None:
    """Make a new key and certificate in the place of those of a name, or of a serial number.

    They have the same name and role and, without --host, the same hosts. A mediator uses its new
    ones once it is started again.

    \b
    Examples:
      fedpilot certs rotate mediator
      fedpilot certs rotate alice --out ~/alice --overlap 0

    \b
    Exit codes: 0 made; 1 a folder cannot be written; 2 bad input, or there is nothing to rotate.
    """
    with exit_codes(), _audited(folder, "rotate", which=which):
        from ..identity import Authority

        authority = Authority.open(folder)
        if out is None and which == MEDIATOR:
            out = authority.server_folder
        if out is None:
            raise click.UsageError("say where the new files go: --out DIR.")
        out.mkdir(mode=0o700, parents=True, exist_ok=True)  # before anything is issued
        made = authority.rotate(
            which,
            now=time.time(),
            overlap_s=overlap_days * DAY_S,
            valid_s=days * DAY_S,
            hosts=hosts or None,
        )
        made.write(out)
        _tell(made, out, as_json)
        if overlap_days and not as_json:
            click.echo(f"those before it stay good for {overlap_days:g} days")


def _document(made: Credentials, where: Path) -> dict[str, Any]:
    found = made.identity
    return {
        "name": found.name,
        "role": found.role,
        "serial": found.serial,
        "hosts": list(found.hosts),
        "expires_at": found.expires_at,
        "credentials": str(where),
    }


def _tell(made: Credentials, where: Path, as_json: bool = False) -> None:
    from ..identity.certificates import day

    if as_json:
        print_json(_document(made, where))
        return
    found = made.identity
    hosts = f", at {', '.join(found.hosts)}" if found.hosts else ""
    click.echo(f"made the certificate of {found.name} ({found.role}{hosts}) in {where}")
    click.echo(f"  serial {found.serial}, good until {day(found.expires_at)}")


def _print_table(issued: Sequence[Issued], now: float) -> None:
    from fedpilot.fabric.terminal.layout import ruled
    from fedpilot.fabric.terminal.statuses import CERTIFICATES, marked

    from ..identity.certificates import day

    table = ruled("name", "role", "state", "until", "hosts", "serial", wraps="hosts")
    for each in issued:
        state = each.state(now)
        ends = [each.expires_at] if each.revoked_at is None else [each.expires_at, each.revoked_at]
        table.add_row(
            each.name,
            each.role,
            marked(CERTIFICATES, state),
            day(min(ends)),
            ", ".join(each.hosts),
            each.serial,
        )
    display(table)
