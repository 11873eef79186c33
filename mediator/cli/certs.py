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

from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.common.terminal.commands import CommandGroup, exit_codes, fail
from fedpilot.common.terminal.console import display, print_json

from ..core.rules.roles import Role

if TYPE_CHECKING:
    from ..identity import Credentials, Issued

Command = TypeVar("Command", bound=Callable[..., Any])
MEDIATOR = "mediator"
"""The name in the mediator's own certificate."""
DAY_S = 86_400.0


def _with_folder(command: Command) -> Command:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
        click.option(
            "--folder",
            metavar="DIR",
            envvar="FEDPILOT_CERTS",
            default="certs",
            show_default=True,
            show_envvar=True,
            type=click.Path(path_type=Path, file_okay=False),
            help="Folder of the authority. Keep it secret: its key can sign any certificate.",
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
    help="DNS name or IP address of the mediator. May be given several times.",
)
_DAYS = click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    default=365.0,
    show_default=True,
    help="Days until the certificate expires; at most until the authority's own does.",
)


@click.group(cls=CommandGroup)
def certs() -> None:
    """Issue, list, rotate and revoke the certificates of a federation.

    The mediator, every user and every site has a certificate with its name and role. A small
    certificate authority in a folder issues them. Sites get theirs with a token (`fedpilot site
    token`, `fedpilot site join`) and renew them automatically. These commands issue the others.

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
    """Create the authority and the certificate of the mediator.

    The authority expires after ten years. The mediator's certificate goes to the authority's folder
    `server`, and expires after --days.

    \b
    Examples:
      fedpilot certs init --host localhost --host 127.0.0.1
      fedpilot certs init --folder /srv/fedpilot/certs --host mediator.example.org --json

    \b
    Exit codes: 0 created; 1 cannot write the folder; 2 bad input, or the authority exists already.
    """
    if not hosts:
        raise click.UsageError("give the host name of the mediator: --host NAME.")
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
        click.echo(f"made an authority in {folder}; keep {folder / 'ca.key'} secret")
        _tell(made, authority.server_folder)
        click.echo("next, a certificate for the first user:")
        click.echo(f"  fedpilot certs issue --folder {folder} --name NAME --role admin --out DIR")


@certs.command()
@_with_folder
@click.option("--name", metavar="NAME", required=True, help="Name of its holder.")
@click.option(
    "--role",
    type=click.Choice([str(role) for role in Role]),
    required=True,
    help="Role of its holder, which decides what the mediator permits.",
)
@_HOSTS
@_DAYS
@click.option(
    "--out",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for ca.pem, cert.pem and key.pem.",
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
    """Issue a key and a certificate for a user, a site or a mediator.

    An admin may do everything. An operator submits, stops and resumes runs, and cordons and drains
    sites; a viewer reads. Send the three files over a safe channel: the holder of key.pem acts as
    NAME.

    \b
    Examples:
      fedpilot certs issue --name alice --role operator --out ~/alice
      fedpilot certs issue --name ci --role viewer --days 30 --out /run/secrets/fedpilot --json

    \b
    Exit codes: 0 issued; 1 cannot write a folder; 2 bad input, no authority there, or --out has
    credentials already.
    """
    with exit_codes(), _audited(folder, "issue", name=name, role=role):
        from ..identity import Authority, has_credentials

        authority = Authority.open(folder)
        if has_credentials(out):
            fail(
                f"{out} holds credentials already; choose another folder, or replace them with "
                "`fedpilot certs rotate`",
                BAD_INPUT,
            )
        out.mkdir(mode=0o700, parents=True, exist_ok=True)  # before anything is issued
        made = authority.issue(name, Role(role), hosts, now=time.time(), valid_s=days * DAY_S)
        made.write(out)
        _tell(made, out, as_json)


@certs.command("list")
@_with_folder
def list_(folder: Path, as_json: bool) -> None:
    """List all issued certificates, oldest first.

    The last line says when the authority itself expires.

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
    """Revoke a certificate, or all certificates of a name.

    A mediator that uses this folder refuses them at once. Repeating the command changes nothing.

    \b
    Examples:
      fedpilot certs revoke alice
      fedpilot certs revoke 3f2a6c0d4b1e5f708192a3b4c5d6e7f801234567 --json

    \b
    Exit codes: 0 all are revoked; 1 cannot write the folder; 2 no such certificate.
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
    help="Folder for the new files, which replace old ones. Default for the mediator: the folder "
    "`server` of the authority.",
)
@click.option(
    "--overlap",
    "overlap_days",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    default=7.0,
    show_default=True,
    help="Days for which the old certificates stay valid, so that you can install the new one.",
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
    """Replace the key and certificate of a name or a serial number.

    The new certificate has the same name and role and, without --host, the same hosts. A mediator
    uses its new certificate after a restart.

    \b
    Examples:
      fedpilot certs rotate mediator
      fedpilot certs rotate alice --out ~/alice --overlap 0

    \b
    Exit codes: 0 replaced; 1 cannot write a folder; 2 bad input, or nothing to rotate.
    """
    with exit_codes(), _audited(folder, "rotate", which=which):
        from ..identity import Authority

        authority = Authority.open(folder)
        if out is None and which == MEDIATOR:
            out = authority.server_folder
        if out is None:
            raise click.UsageError("give the folder for the new files: --out DIR.")
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
            click.echo(f"its earlier certificates stay good for {overlap_days:g} days")


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
    from fedpilot.common.terminal.layout import ruled
    from fedpilot.common.terminal.statuses import marked

    from ..identity.certificates import day
    from .statuses import CERTIFICATES

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
