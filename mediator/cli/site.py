"""The commands about sites: `fedpilot site`. Thin: parse, ask the mediator, print.

`join` and `policy` are a site's own: they run at its Ray cluster.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.host.exit_codes import BAD_INPUT, INTERRUPTED, REFUSED
from fedpilot.common.terminal.commands import CommandGroup, exit_codes, fail, interruptions
from fedpilot.common.terminal.console import display, print_json, spinner
from fedpilot.common.text.plain_text import plain_line

from .access import JSON, Access, ask, asking, with_mediator
from .join import join, policy

if TYPE_CHECKING:
    from ..client.client import Document, MediatorClient

FIRST_POLL_S, LAST_POLL_S = 0.5, 5.0
"""Seconds between looks at a draining site: at first, and later."""
LOOK_S = 2.0
HOUR_S = 3600.0


@click.group(cls=CommandGroup)
def site() -> None:
    """Join, list, cordon, drain and remove the sites of a federation.

    A site is a Ray cluster that joined a mediator with a one-time token from an admin. It keeps a
    connection to the mediator. A cordoned site keeps its work and gets no new work. A draining site
    hands its work over to other sites.

    \b
    Examples:
      fedpilot site token paris
      fedpilot site list
      fedpilot site show paris
      fedpilot site drain paris --timeout 600
      fedpilot site uncordon paris
      fedpilot site remove paris
    """


site.add_command(join)
site.add_command(policy)


@site.command("list")
@JSON
@with_mediator
def list_(access: Access, as_json: bool) -> None:
    """List the sites with their states and free resources.

    \b
    Examples:
      fedpilot site list
      fedpilot site list --json | jq -r '.sites[] | select(.state == "lost") | .name'
    """
    with exit_codes():
        sites = ask(access, lambda client: client.list_sites())
        if as_json:
            print_json({"sites": sites})
            return
        from .tables import site_table

        display(site_table(sites, time.time()))


@site.command()
@click.argument("name")
@JSON
@with_mediator
def show(name: str, access: Access, as_json: bool) -> None:
    """Show site NAME: state and reason, resources, runs and data sets.

    \b
    Examples:
      fedpilot site show paris
      fedpilot site show paris --json | jq .data
    """
    with exit_codes():
        found = ask(access, lambda client: client.show_site(name))
        if as_json:
            print_json(found)
            return
        from .tables import site_details

        display(site_details(found, time.time()))


@site.command()
@click.argument("name")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True, max=24 * 30),
    default=24.0,
    show_default=True,
    help="Hours until the token expires.",
)
@JSON
@with_mediator
def token(name: str, hours: float, access: Access, as_json: bool) -> None:
    """Create a token with which a site may join once, as NAME.

    Needs the role admin. The token goes to stdout. Its holder can join in the site's place: treat
    it like a password.

    \b
    Examples:
      fedpilot site token paris > paris.token
      fedpilot site token paris --hours 1 --json | jq -r .token
    """
    with exit_codes():
        with asking(access) as client:
            made, expires_at = client.make_token(name, valid_s=hours * HOUR_S)
            address = client.address
        if as_json:
            print_json({"site": name, "token": made, "expires_at": expires_at})
            return
        from fedpilot.common.terminal.layout import timestamp

        click.echo(made)
        click.echo(
            f"good once, until {timestamp(expires_at)}; save it at the site as {name}.token, and:\n"
            f"  fedpilot site join --mediator {address} --name {name} --token-file {name}.token",
            err=True,
        )


@site.command()
@click.argument("name")
@JSON
@with_mediator
def cordon(name: str, access: Access, as_json: bool) -> None:
    """Give site NAME no new work; its present work goes on.

    \b
    Examples:
      fedpilot site cordon paris
      fedpilot site cordon paris --json
    """
    _changed(access, name, "cordon", as_json)


@site.command()
@click.argument("name")
@JSON
@with_mediator
def uncordon(name: str, access: Access, as_json: bool) -> None:
    """Give site NAME work again, after cordon or drain.

    \b
    Examples:
      fedpilot site uncordon paris
      fedpilot site uncordon paris --json
    """
    _changed(access, name, "uncordon", as_json)


def _changed(access: Access, name: str, change: str, as_json: bool) -> None:
    with exit_codes():
        found = ask(access, lambda client: client.change_site(name, change))
        if as_json:
            print_json(found)
            return
        _print_standing(found)


def _print_standing(found: Document) -> None:
    why = f": {plain_line(found['reason'])}" if found.get("reason") else ""
    click.echo(f"{plain_line(found.get('name'))} is {plain_line(found.get('state'))}{why}")


@site.command()
@click.argument("name")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="How long to wait until the site is empty; 0 does not wait.",
)
@JSON
@with_mediator
def drain(name: str, timeout_s: float, access: Access, as_json: bool) -> None:
    """Move the work of site NAME away, and wait until it is empty.

    From the next round on, its movable clients train at other sites. The run's config decides
    whether rounds continue without its pinned clients. The empty site is cordoned. If this command
    ends before that, the drain goes on; `site uncordon` cancels it.

    \b
    Examples:
      fedpilot site drain paris --timeout 600 && ssh paris reboot
      fedpilot site drain paris --timeout 0

    \b
    Exit codes: 0 drained (or begun, with --timeout 0); 2 no such site; 3 not empty after --timeout,
    or not permitted; 4 mediator unreachable; 130 interrupted, the drain goes on.
    """
    with exit_codes():
        try:
            with interruptions(), access.open() as client:
                found = client.change_site(name, "drain")
                if timeout_s > 0:
                    found = _drained(client, found, name, timeout_s)
        except KeyboardInterrupt:
            fail(
                f"interrupted; if the drain of {name} has begun, it goes on\n"
                f"  show it:   {access.step('site', 'show', name)}\n"
                f"  cancel it: {access.step('site', 'uncordon', name)}",
                INTERRUPTED,
            )
        if as_json:
            print_json(found)
        else:
            _print_standing(found)
        if timeout_s > 0 and found.get("state") == "draining":
            left = ", ".join(map(plain_line, _runs(found))) or "open orders"
            fail(
                f"{name} is not empty after {timeout_s:g} s: it has {left}; the drain goes on; to "
                f"wait again: {access.step('site', 'drain', name)}",
                REFUSED,
            )


def _drained(client: MediatorClient, found: Document, name: str, timeout_s: float) -> Document:
    """Poll a site until it is empty or time is up; report progress on stderr."""
    deadline, pause = time.monotonic() + timeout_s, FIRST_POLL_S
    runs = _runs(found)
    if runs:
        click.echo(f"{name} hands over its part of {', '.join(map(plain_line, runs))}", err=True)
    with spinner(f"waiting until {name} is empty"):
        while found.get("state") == "draining" and time.monotonic() < deadline:
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(LAST_POLL_S, pause * 1.5)
            found = client.show_site(name)
            left = _runs(found)
            for run in runs:
                if run not in left:
                    click.echo(
                        f"{plain_line(run)} has left {name}; {len(left)} still there", err=True
                    )
            runs = left
    return found


def _runs(found: Document) -> list[Any]:
    runs = found.get("runs")
    return runs if isinstance(runs, list) else []


@site.command()
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@JSON
@with_mediator
def remove(name: str, yes: bool, access: Access, as_json: bool) -> None:
    """Remove site NAME from the federation; to return, it must join again.

    Its runs lose the work in progress there, so drain the site before. The mediator revokes its
    certificate and its unused tokens. Needs the role admin. The command asks for confirmation;
    without a terminal it needs --yes.

    \b
    Examples:
      fedpilot site drain paris && fedpilot site remove paris
      fedpilot site remove paris --yes --json
    """
    with exit_codes(), access.open() as client:
        found = client.show_site(name)
        if not yes:
            runs = ", ".join(map(plain_line, _runs(found)))
            lost = f"its part of {runs} is lost; " if runs else ""
            if as_json or not sys.stdin.isatty():
                fail(f"{lost}{name} would have to join again; confirm with --yes", BAD_INPUT)
            question = f"Remove {name}, which is {plain_line(found.get('state'))}? {lost}".rstrip(
                "; "
            )
            click.confirm(question, abort=True, err=True)
        found = client.change_site(name, "remove")
        if as_json:
            print_json(found)
            return
        _print_standing(found)


@site.command()
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.2),
    default=LOOK_S,
    show_default=True,
    help="Seconds between two updates.",
)
@click.option("--once", is_flag=True, help="Measure for one interval, print the result, and end.")
@JSON
@with_mediator
def top(interval_s: float, once: bool, access: Access, as_json: bool) -> None:
    """Watch how busy the sites are, and their traffic.

    On a terminal, the table updates until Ctrl-C. Elsewhere, and with --json, the command prints it
    once.

    \b
    Examples:
      fedpilot site top
      fedpilot site top --once --interval 10
      fedpilot site top --json | jq '.sites[] | {name, bytes_per_second}'
    """
    with exit_codes(), access.open() as client:
        try:
            with interruptions():
                if as_json:
                    print_json({"sites": next(_looks(client, interval_s))})
                elif once or not sys.stdout.isatty():
                    from .tables import site_top

                    display(site_top(next(_looks(client, interval_s))))
                else:
                    _top_live(client, interval_s)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _looks(client: MediatorClient, interval_s: float) -> Iterator[list[Document]]:
    """Yield the sites at every interval, with the speeds since the previous look."""
    before, looked_at = client.list_sites(), time.monotonic()
    while True:
        time.sleep(interval_s)
        sites, now = client.list_sites(), time.monotonic()
        yield [_with_speed(each, before, now - looked_at) for each in sites]
        before, looked_at = sites, now


def _with_speed(found: Document, before: Sequence[Document], seconds: float) -> Document:
    """Add the bytes per second of each direction to a site, if both looks have counts."""
    now = found.get("bytes") or {}
    then = next((e.get("bytes") or {} for e in before if e.get("name") == found.get("name")), {})
    speeds = {
        direction: max(0.0, (now[direction] - then[direction]) / seconds)
        for direction in ("to_site", "from_site")
        if direction in now and direction in then
    }
    return {**found, "bytes_per_second": speeds}


def _top_live(client: MediatorClient, interval_s: float) -> None:
    from rich.live import Live

    from fedpilot.common.terminal.console import stdout_console

    from .tables import site_top

    first = site_top(client.list_sites())
    with Live(first, console=stdout_console(), auto_refresh=False) as live:
        for sites in _looks(client, interval_s):
            live.update(site_top(sites), refresh=True)
