"""The commands of a site's own admin: `fedpilot site join` and `fedpilot site policy`.

They work at the site, on its own files. `join` dials the mediator, but first tries all that can
fail at the site, before it uses up a token. Its events go to stdout, the agent's log to stderr.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.fabric.host.exit_codes import INTERRUPTED
from fedpilot.fabric.terminal.commands import CommandGroup, exit_codes
from fedpilot.fabric.terminal.console import print_json
from fedpilot.fabric.terminal.layout import timestamp

from .access import JSON, Access, access_of

if TYPE_CHECKING:
    from ..agent.home import SiteHome
    from ..agent.scans.ray_watchdog import Watch
    from ..agent.settings import AgentSettings
    from ..core.rules.disclosure import Declaration
    from ..identity import Credentials, Token
    from ..wire.messages import SiteName

PRIVATE = "private"
"""Replaces a Ray address: every run gets its own Ray on this machine."""
TOKEN_S = 600.0
"""How long a token is valid that is used at once."""
_TEXTS = {
    "joined": "site {site} has joined the mediator at {mediator}; its folder is {home}",
    "connected": "connected to the mediator at {mediator}{held}",
    "disconnected": "the session has ended and is begun anew: {reason}",
    "ray_in_trouble": "the Ray cluster cannot be worked with: {reason}",
    "ray_is_back": "the Ray cluster at {address} can be worked with; machines: {machines}",
    "disk_in_trouble": "no work is taken: {reason}",
    "disk_has_room": "the disk has room again",
    "runner_adopted": "the runner of {run} (pid {pid}) is taken over",
    "runner_ended": "the runner of {run} has ended: {reason}",
    "runners_left": "left running for the next `site join`: {runs}; they end by themselves when "
    "their leases of {lease_s:g} s are over",
    "certificate_renewed": "the certificate of this site was renewed; it is good until {until}",
    "certificate_not_renewed": "the certificate of this site ends in {days} days, and is not "
    "renewed: {reason}; the last resort is a token, by `fedpilot site token`",
}

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
SITE_FILE = click.option(
    "--site-file",
    metavar="FILE",
    type=_FILE,
    help="site.yaml: the data that this site has, and what of it may be disclosed.",
)
POLICY = click.option(
    "--policy",
    metavar="FILE",
    type=_FILE,
    help="policy.yaml: who may do what here. Read anew whenever it is asked.",
)


@click.command()
@click.option(
    "--mediator",
    metavar="HOST:PORT",
    help="Where sites dial to. Remembered: needed the first time only.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="In its place: the mediator of this profile, which is asked for the token too if its "
    "user is an admin. For sites of your own.",
)
@click.option("--name", required=True, metavar="NAME", help="How this site is called.")
@click.option("--token", help="What `fedpilot site token NAME` printed; used up by joining.")
@click.option("--token-file", metavar="FILE", type=_FILE, help="The same in a file.")
@click.option(
    "--home",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the agent keeps what outlives it; by default ~/.fedpilot/sites/NAME.",
)
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    default="auto",
    show_default=True,
    help="HOST:PORT of the head of the site's Ray cluster; auto is RAY_ADDRESS, or the Ray that "
    "was started last on this machine; private gives every run a Ray of its own here.",
)
@click.option(
    "--ray-auth-mode",
    type=click.Choice(["disabled", "token"]),
    help="How that Ray authenticates; by default RAY_AUTH_MODE, or else disabled.",
)
@SITE_FILE
@POLICY
@click.option(
    "--release",
    is_flag=True,
    help="When this is ended, end the runs' parts at this site too, instead of leaving them to "
    "the next `site join`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, no text: one object per event.")
def join(
    mediator: str | None,
    profile: str | None,
    name: str,
    token: str | None,
    token_file: Path | None,
    home: Path | None,
    ray_address: str,
    ray_auth_mode: str | None,
    site_file: Path | None,
    policy: Path | None,
    release: bool,
    as_json: bool,
) -> None:
    """Take part in a federation with a Ray cluster: be its agent, until this is ended.

    The first time it needs --mediator and a token, or --profile, and gets a certificate for them.
    It dials out and opens no port. Links may break and mediators restart: it comes back by itself.
    Started again after it was killed, it goes on with what runs here.

    \b
    Examples:
      fedpilot site join --mediator fl.example.org:7461 --name paris --token-file paris.token
      fedpilot site join --name paris --site-file site.yaml --policy policy.yaml
      fedpilot site join --name paris --profile here --ray-address private

    \b
    Exit codes: 2 bad input, or an agent works in the folder already; 3 the mediator refuses the
    token, or wants no more of this site; 4 it cannot be reached to join; 130 ended by Ctrl-C or
    SIGTERM, which leaves the runs' parts to the next `site join` unless --release.
    """
    if token and token_file:
        raise click.UsageError("give --token or --token-file, not both.")
    if mediator and profile:
        raise click.UsageError("--mediator and --profile both say where to go; give one of them.")
    with exit_codes():
        from ..agent.agent import SiteAgent, SiteFacts
        from ..agent.home import SiteHome
        from ..agent.runner.process import RayChoice
        from ..agent.settings import AgentSettings
        from ..agent.site_config.site_files import read_policy, read_site_file
        from ..errors import BadRequest
        from ..identity import Credentials
        from ..identity.tokens import checked_address
        from ..wire.messages import BadMessage, check_site
        from ..wire.transfer import keep_freed_memory
        from .compiling import compile_ahead

        try:
            site = check_site(name)
        except BadMessage as error:
            raise BadRequest(str(error)) from error
        if mediator is not None:
            checked_address(mediator)
        data = read_site_file(site_file)
        read_policy(policy)
        folder = home or Path.home() / ".fedpilot" / "sites" / site
        say = _sayer(as_json)
        logging.basicConfig(
            level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
        )
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        text = token_file.read_text() if token_file else token
        access = access_of(None, None, profile) if profile else None
        settings = AgentSettings()
        auth_mode = ray_auth_mode or os.environ.get("RAY_AUTH_MODE") or "disabled"
        ray = RayChoice()
        if ray_address != PRIVATE:
            ray = RayChoice(address=ray_address, auth_mode=auth_mode)
        with ExitStack() as undo:
            there = SiteHome(folder.absolute())
            undo.enter_context(there.locked())
            address, shown = _way_in(there, site, mediator, text, access)
            # Fail here, if at all, before a token is used up.
            data_json = _surveyed(there, site_file, data, settings)
            joins = not isinstance(shown, Credentials)
            if not isinstance(shown, Credentials):
                shown = _joined(site, shown, access)
                shown.write(there.credentials_folder)
            there.write_mediator(site, address)
            if joins:
                say("joined", site=site, mediator=address, home=str(there.folder))
            facts = SiteFacts(
                name=site,
                mediator=address,
                ray=ray,
                environment={"RAY_AUTH_MODE": auth_mode},
                data=data,
                data_json=data_json,
                policy=None if policy is None else policy.absolute(),
                version=version("fedpilot"),
            )
            watch = _watch(ray.address, facts.environment, settings, there)
            keep_freed_memory()
            compile_ahead(undo)

            async def work() -> None:
                agent = SiteAgent(facts, there, watch, shown, settings, say=say)
                await agent.run(release=release)

            code = asyncio.run(_until_ended(work))
    sys.exit(code)


def _way_in(
    home: SiteHome,
    site: SiteName,
    mediator: str | None,
    token: str | None,
    access: Access | None,
) -> tuple[str, Credentials | Token | None]:
    """The mediator's HOST:PORT, and what the site shows there; makes no calls.

    The site shows its credentials or a join token; None if a profile must request a token.
    """
    from ..agent.errors import BadHome
    from ..agent.membership.joining import token_for
    from ..identity import Credentials

    known = home.joined()
    if known is not None and known[0] != site:
        raise BadHome(f"{home.folder} is of the site {known[0]}, not of {site}")
    address = access.chosen().address if access else mediator or (known[1] if known else None)
    if known is None and token is None and access is None:
        raise click.UsageError(
            f"{site} has not joined yet: it needs a token, which an admin gets by "
            f"`fedpilot site token {site}`; pass it with --token or --token-file. An admin "
            "may give --profile instead."
        )
    if address is None:
        raise click.UsageError("the first time it needs --mediator HOST:PORT.")
    if token is not None:
        return address, token_for(site, token)
    if known is None:
        return address, None
    credentials = Credentials.read(home.credentials_folder)
    credentials.identity.check(time.time())
    return address, credentials


def _surveyed(
    home: SiteHome,
    site_file: Path | None,
    data: Mapping[str, Declaration],
    settings: AgentSettings,
) -> str:
    """What the site discloses about its data sets, as JSON. SurveyFailed if one cannot be read."""
    from ..agent.scans.data_scan import surveyed

    secret = home.secret()
    if site_file is None or not data:
        return ""
    found = asyncio.run(surveyed(site_file, secret, settings.survey_s))
    return json.dumps(found, allow_nan=False)


def _joined(site: SiteName, token: Token | None, access: Access | None) -> Credentials:
    """Get the site's credentials for a token, which this uses up."""
    from ..agent.membership.joining import join as join_by, token_for

    if token is None:
        if access is None:
            raise RuntimeError("a site without credentials joins with a token or by a profile")
        with access.open() as client:
            text, _ = client.make_token(site, valid_s=TOKEN_S)
        token = token_for(site, text)
    return asyncio.run(join_by(token, site))


def _watch(
    address: str | None, environment: Mapping[str, str], settings: AgentSettings, home: SiteHome
) -> Watch:
    """Make the watch of the site's Ray; `address` is None for a private one."""
    from ..agent.scans.ray_watchdog import PrivateRay, Watchdog

    if address is None:
        return PrivateRay()

    def resolve() -> str:
        if address != "auto":
            return address
        from fedpilot.fabric.ray.connection import address_of_this_machine

        return address_of_this_machine()

    return Watchdog(resolve, environment, settings, time.monotonic, home.machines())


def _sayer(as_json: bool) -> Callable[..., None]:
    """Make a function that prints events on stdout, as JSON lines or sentences."""

    def say(event: str, /, **fields: Any) -> None:
        if as_json:
            moment = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = json.dumps({"event": event, "time": moment, **fields})
        else:
            shown = {k: ", ".join(v) if isinstance(v, list) else v for k, v in fields.items()}
            shown["held"] = f", holding {fields['orders']} orders" if fields.get("orders") else ""
            if "expires_at" in fields:
                shown["until"] = timestamp(fields["expires_at"])
            line = _TEXTS[event].format(**shown)
        click.echo(line)

    return say


async def _until_ended(work: Callable[[], Any]) -> int:
    """Work until Ctrl-C or SIGTERM, then end in order."""
    doing = asyncio.ensure_future(work())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, doing.cancel)
    try:
        await doing
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0


# -- the site's own files -------------------------------------------------------------------------


@click.group(cls=CommandGroup)
def policy() -> None:
    """Check what this site declares and allows, before anybody relies on it."""


@policy.command()
@POLICY
@SITE_FILE
@JSON
def check(policy: Path | None, site_file: Path | None, as_json: bool) -> None:
    """Say what the files allow, or all that is wrong with them.

    \b
    Examples:
      fedpilot site policy check --policy policy.yaml
      fedpilot site policy check --policy policy.yaml --site-file site.yaml --json

    \b
    Exit codes: 0 they are right; 2 something is wrong in them.
    """
    with exit_codes():
        from ..agent.site_config.site_files import read_policy, read_site_file

        found, data = read_policy(policy), read_site_file(site_file)
        unruled = sorted(set(data) - set(found.datasets))
        unknown = sorted(set(found.datasets) - set(data)) if site_file else []
        if as_json:
            document = {
                "policy": found.to_json(),
                "datasets": {name: each.to_json() for name, each in data.items()},
                "without_rule": unruled,
                "not_declared": unknown,
            }
            print_json(document)
            return
        for line in found.in_words():
            click.echo(line)
        for name in unruled:
            click.echo(f"data set {name} has no rule: nobody may train on it")
        for name in unknown:
            click.echo(f"data set {name} has a rule, and is not declared in {site_file}")
