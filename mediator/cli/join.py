"""The command of a site's own admin: `fedpilot site join`.

It works at the site, on its own files; the mediator has no part in it but to be dialled. All that
can fail at the site is tried before a token is used up.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.fabric.host.exit_codes import INTERRUPTED
from fedpilot.fabric.terminal.commands import exit_codes

from .access import Access, access_of
from .join_output import log_to_stderr, sayer

if TYPE_CHECKING:
    from ..agent.agent import SiteAgent
    from ..agent.home import SiteHome
    from ..agent.settings import AgentSettings
    from ..core.rules.disclosure import Declaration
    from ..identity import Credentials, Token
    from ..wire.messages import SiteName

PRIVATE = "private"
"""In the place of a Ray address: every run gets a Ray of its own on this machine."""
TOKEN_S = 600.0
"""How long a token is good that is used at once."""
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


class HostPort(click.ParamType[str]):
    """HOST:PORT."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The address itself, if it is one."""
        found = _ADDRESS.fullmatch(str(value))
        if not found or not 0 < int(found[1]) < 65536:
            self.fail(f"wanted HOST:PORT of the mediator, found {str(value)[:80]!r}", param, ctx)
        return str(value)


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
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, no text: one object per event."
)


@click.command()
@click.option(
    "--mediator",
    metavar="HOST:PORT",
    type=HostPort(),
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
@JSON
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
        from ..agent.home import SiteHome
        from ..agent.settings import AgentSettings
        from ..agent.site_config.site_files import read_policy, read_site_file
        from ..errors import BadRequest
        from ..wire.messages import BadMessage, check_site
        from ..wire.transfer import keep_freed_memory
        from .compiling import compile_ahead

        try:
            site = check_site(name)
        except BadMessage as error:
            raise BadRequest(str(error)) from error
        data = read_site_file(site_file)
        read_policy(policy)
        folder = home or Path.home() / ".fedpilot" / "sites" / site
        say = sayer(as_json)
        log_to_stderr()
        text = token_file.read_text() if token_file else token
        access = access_of(None, None, profile) if profile else None
        settings = AgentSettings()
        with ExitStack() as undo:
            there = SiteHome(folder.absolute())
            undo.enter_context(there.locked())
            way = _way_in(there, site, mediator, text, access)
            # What can fail here fails before a token is used up.
            documents = _surveyed(there, site_file, data, settings)
            credentials = way.credentials or _joined(way, there, site, access, say)
            there.write_mediator(site, way.mediator)
            agent = _agent(
                there, site, way.mediator, credentials, settings,
                ray=(ray_address, ray_auth_mode), data=(data, documents), policy=policy, say=say,
            )  # fmt: skip
            keep_freed_memory()
            compile_ahead(undo)
            code = asyncio.run(_until_ended(lambda: agent.run(release=release)))
    sys.exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """What leads a site to its mediator."""

    mediator: str
    """HOST:PORT."""
    credentials: Credentials | None = None
    """None where it has to join first."""
    token: Token | None = None
    """What it joins with; without one, an admin's profile asks for it."""


def _way_in(
    home: SiteHome,
    site: SiteName,
    mediator: str | None,
    token: str | None,
    access: Access | None,
) -> _Way:
    """What leads to the mediator, as far as it is known here: nobody is asked."""
    from ..agent.errors import BadHome
    from ..agent.membership.joining import token_for
    from ..identity import Credentials

    known = home.joined()
    if known is not None and known[0] != site:
        raise BadHome(f"{home.folder} is of the site {known[0]}, not of {site}")
    address = access.profile().address if access else mediator or (known[1] if known else None)
    if known is None and token is None and access is None:
        raise click.UsageError(
            f"{site} has not joined yet: it needs a token, which an admin gets by "
            f"`fedpilot site token {site}`; pass it with --token or --token-file. An admin "
            "may give --profile instead."
        )
    if address is None:
        raise click.UsageError("the first time it needs --mediator HOST:PORT.")
    if known is not None and token is None:
        credentials = Credentials.read(home.credentials_folder)
        credentials.identity.check(time.time())
        return _Way(mediator=address, credentials=credentials)
    return _Way(mediator=address, token=None if token is None else token_for(site, token))


def _surveyed(
    home: SiteHome,
    site_file: Path | None,
    data: dict[str, Declaration],
    settings: AgentSettings,
) -> dict[str, Any]:
    """What leaves the site of its data sets, by name. SurveyFailed if one cannot be read."""
    from ..agent.scans.data_scan import surveyed

    secret = home.secret()
    if site_file is None or not data:
        return {}
    return dict(asyncio.run(surveyed(site_file, secret, settings.survey_s)))


def _joined(
    way: _Way,
    home: SiteHome,
    site: SiteName,
    access: Access | None,
    say: Callable[..., None],
) -> Credentials:
    """The site's first credentials, or new ones, for a token that is used up."""
    from ..agent.membership.joining import join as join_by, token_for

    token = way.token
    if token is None:
        if access is None:
            raise RuntimeError("a site without credentials joins with a token or by a profile")
        with access.open() as client:
            text, _ = client.make_token(site, valid_s=TOKEN_S)
        token = token_for(site, text)
    made = asyncio.run(join_by(token, site))
    home.write_joined(site, way.mediator, made)
    say("joined", site=site, mediator=way.mediator, home=str(home.folder))
    return made


def _agent(
    home: SiteHome,
    site: SiteName,
    address: str,
    credentials: Credentials,
    settings: AgentSettings,
    *,
    ray: tuple[str, str | None],
    data: tuple[dict[str, Declaration], dict[str, Any]],
    policy: Path | None,
    say: Callable[..., None],
) -> SiteAgent:
    """The agent, with all that it needs; `data` is what is declared, and what leaves of it."""
    from ..agent.agent import SiteAgent, SiteFacts, told_data
    from ..agent.runner.process import RayChoice
    from ..agent.scans.ray_watchdog import PrivateRay, Watchdog

    ray_address, auth_mode = ray
    declared, documents = data
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
        SiteFacts(
            name=site,
            mediator=address,
            ray=RayChoice() if private else RayChoice(address=ray_address, auth_mode=mode),
            environment=environment,
            data=declared,
            data_json=told_data(documents),
            policy=None if policy is None else policy.absolute(),
            version=version("fedpilot"),
        ),
        home,
        watch,
        credentials,
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
    from fedpilot.fabric.ray.connection import address_of_this_machine

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
