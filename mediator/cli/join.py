"""The commands of a site's own admin: `fedpilot site join` and `fedpilot site policy`.

They work at the site, on its own files; the mediator has no part in them but to be dialled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.fabric.cli_access import exit_codes, print_json
from fedpilot.fabric.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from ..agent import AgentSettings, SiteHome
    from ..core.disclosure import Declaration
    from ..identity import Credentials
    from ..wire import SiteName

PRIVATE = "private"
"""In the place of a Ray address: every run gets a Ray of its own on this machine."""
TOKEN_S = 600.0
"""How long a token is good that is used at once."""
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


class Address(click.ParamType[str]):
    """HOST:PORT."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The address itself, if it is one."""
        found = _ADDRESS.fullmatch(str(value))
        if not found or not 0 < int(found[1]) < 65536:
            self.fail(f"wanted HOST:PORT of the mediator, found {str(value)[:80]!r}", param, ctx)
        return str(value)


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_site_file = click.option(
    "--site-file",
    metavar="FILE",
    type=_FILE,
    help="site.yaml: the data that this site has, and what of it may be disclosed.",
)
_policy = click.option(
    "--policy",
    metavar="FILE",
    type=_FILE,
    help="policy.yaml: who may do what here. Read anew whenever it is asked.",
)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, no text: one object per event."
)


@click.command()
@click.option(
    "--mediator",
    metavar="HOST:PORT",
    type=Address(),
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
@_site_file
@_policy
@click.option(
    "--release",
    is_flag=True,
    help="When this is ended, end the runs' parts at this site too, instead of leaving them to "
    "the next `site join`.",
)
@_json
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
        from ..agent import AgentSettings, SiteHome
        from ..errors import BadRequest
        from ..site_files import read_policy, read_site_file
        from ..transfer import keep_freed_memory
        from ..wire import BadMessage, check_site

        try:
            site = check_site(name)
        except BadMessage as error:
            raise BadRequest(str(error)) from error
        data = read_site_file(site_file)
        read_policy(policy)
        folder = home or Path.home() / ".fedpilot" / "sites" / site
        say = _sayer(as_json)
        _log_to_stderr()
        text = token_file.read_text() if token_file else token
        settings = AgentSettings()
        with ExitStack() as undo:
            there = SiteHome(folder.absolute())
            undo.enter_context(there.locked())
            if profile:
                mediator, text = _of_profile(profile, there, site, text)
            credentials, address = _identity(there, site, mediator, text, say)
            agent = _agent(
                there, site, address, credentials, settings,
                ray=(ray_address, ray_auth_mode), data=data, files=(site_file, policy), say=say,
            )  # fmt: skip
            keep_freed_memory()
            code = asyncio.run(_until_ended(lambda: agent.run(release=release)))
    sys.exit(code)


def _of_profile(
    name: str, home: SiteHome, site: SiteName, token: str | None
) -> tuple[str, str | None]:
    """The mediator of a profile, and a token if the site has not joined yet."""
    from .access import access_of

    access = access_of(None, None, name)
    if token is None and home.joined() is None:
        with access.open() as client:
            token, _ = client.make_token(site, valid_s=TOKEN_S)
    return access.profile().address, token


def _identity(
    home: SiteHome,
    site: SiteName,
    mediator: str | None,
    token: str | None,
    say: Callable[..., None],
) -> tuple[Credentials, str]:
    """The site's credentials and the mediator's address, joining first where there are none."""
    from ..agent import BadHome, join as join_by
    from ..identity import Credentials, Token

    known = home.joined()
    if known is not None and known[0] != site:
        raise BadHome(f"{home.folder} is of the site {known[0]}, not of {site}")
    if known is None or token is not None:
        if token is None:
            raise click.UsageError(
                f"{site} has not joined yet: it needs a token, which an admin gets by "
                f"`fedpilot site token {site}`; pass it with --token or --token-file. An admin "
                "may give --profile instead."
            )
        address = mediator or (known[1] if known else None)
        if address is None:
            raise click.UsageError("the first time it needs --mediator HOST:PORT.")
        made = asyncio.run(join_by(Token.parse(token), site))
        home.write_joined(site, address, made)
        say("joined", site=site, mediator=address, home=str(home.folder))
        return made, address
    credentials = Credentials.read(home.credentials_folder)
    if mediator is not None and mediator != known[1]:
        home.write_mediator(site, mediator)
    credentials.identity.check(time.time())
    return credentials, mediator or known[1]


def _agent(
    home: SiteHome,
    site: SiteName,
    address: str,
    credentials: Credentials,
    settings: AgentSettings,
    *,
    ray: tuple[str, str | None],
    data: dict[str, Declaration],
    files: tuple[Path | None, Path | None],
    say: Callable[..., None],
) -> Any:
    """The agent, with all that it needs."""
    from ..agent import PrivateRay, Site, SiteAgent, Watchdog, surveyed, told_data
    from ..identity.tls import client_credentials
    from ..runner import RayChoice

    ray_address, auth_mode = ray
    site_file, policy = files
    documents: dict[str, Any] = {}
    if site_file is not None and data:
        documents = asyncio.run(surveyed(site_file, home.secret(), settings.survey_s))
    mode = auth_mode or os.environ.get("RAY_AUTH_MODE") or "disabled"
    environment = {"RAY_AUTH_MODE": mode}
    private = ray_address == PRIVATE
    watch = (
        PrivateRay()
        if private
        else Watchdog(
            lambda: _resolved(ray_address),
            environment,
            settings,
            time.monotonic,
            home.machines(),
        )
    )
    return SiteAgent(
        Site(
            name=site,
            mediator=address,
            ray=RayChoice() if private else RayChoice(address=ray_address, auth_mode=mode),
            environment=environment,
            data=data,
            data_json=told_data(documents),
            policy=None if policy is None else policy.absolute(),
            version=version("fedpilot"),
            expires_at=credentials.identity.expires_at,
        ),
        home,
        watch,
        client_credentials(credentials),
        settings,
        say=say,
        clock=time.monotonic,
        wall_clock=time.time,
        chance=random.random,
    )


def _resolved(address: str) -> str:
    """Where the control plane of the site's Ray is now."""
    if address != "auto":
        return address
    from fedpilot.fabric.ray_cluster import address_of_this_machine

    return address_of_this_machine()


async def _until_ended(run: Callable[[], Any]) -> int:
    """Run until Ctrl-C or SIGTERM, and then in order to the end."""
    doing = asyncio.ensure_future(run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, doing.cancel)
    try:
        await doing
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)


_TEXTS = {
    "joined": "site {site} has joined the mediator at {mediator}; its folder is {home}",
    "connected": "connected to the mediator at {mediator}{held}",
    "disconnected": "the session has ended and is begun anew: {reason}",
    "ray_in_trouble": "the Ray cluster cannot be worked with: {reason}",
    "ray_is_back": "the Ray cluster at {address} can be worked with; machines: {machines}",
    "runner_adopted": "the runner of {run} (pid {pid}) is taken over",
    "runner_ended": "the runner of {run} has ended: {reason}",
    "runners_left": "left running for the next `site join`: {runs}; they end by themselves when "
    "their leases of {lease_s:g} s are over",
    "certificate_expires_soon": "the certificate of this site ends in {days} days; an admin gets "
    "a token for a new one by `fedpilot site token`",
}


def _sayer(as_json: bool) -> Callable[..., None]:
    """Tells events on stdout: an object per line, or a sentence."""

    def say(event: str, /, **fields: Any) -> None:
        if as_json:
            moment = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = json.dumps({"event": event, "time": moment, **fields})
        else:
            shown = {k: ", ".join(v) if isinstance(v, list) else v for k, v in fields.items()}
            shown["held"] = f", holding {fields['orders']} orders" if fields.get("orders") else ""
            line = _TEXTS[event].format(**shown)
        click.echo(line)

    return say


# -- the policy -----------------------------------------------------------------------------------


@click.group()
def policy() -> None:
    """Check what this site declares and allows, before anybody relies on it."""


@policy.command()
@_policy
@_site_file
@_json
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
        from ..site_files import read_policy, read_site_file

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
