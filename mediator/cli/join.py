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

from fedpilot.common.host.exit_codes import INTERRUPTED
from fedpilot.common.terminal.commands import CommandGroup, exit_codes
from fedpilot.common.terminal.console import print_json
from fedpilot.common.terminal.layout import timestamp

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
    "disconnected": "the session has ended, reconnecting: {reason}",
    "ray_in_trouble": "the Ray cluster cannot be used: {reason}",
    "ray_is_back": "the Ray cluster at {address} can be used; machines: {machines}",
    "disk_in_trouble": "this site takes no work: {reason}",
    "disk_has_room": "the disk has room again",
    "runner_adopted": "took over the runner of {run} (pid {pid})",
    "runner_ended": "the runner of {run} has ended: {reason}",
    "runners_left": "left running for the next `site join`: {runs}; without it, they end when "
    "their leases of {lease_s:g} s expire",
    "certificate_renewed": "renewed the certificate of this site; it is good until {until}",
    "certificate_not_renewed": "the certificate of this site expires in {days} days, and its "
    "renewal fails: {reason}; as a last resort, join with a token of `fedpilot site token`",
}

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
SITE_FILE = click.option(
    "--site-file",
    metavar="FILE",
    type=_FILE,
    help="site.yaml: the data sets of this site, and what the site discloses of them.",
)
POLICY = click.option(
    "--policy",
    metavar="FILE",
    type=_FILE,
    help="policy.yaml: what users may do at this site. A change applies to the next request.",
)


@click.command()
@click.option(
    "--mediator",
    metavar="HOST:PORT",
    help="Address of the mediator. Needed to join for the first time; then --home has it.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Instead of --mediator: the mediator of this profile. The profile of an admin also gets "
    "the token. For your own sites.",
)
@click.option("--name", required=True, metavar="NAME", help="Name of this site.")
@click.option("--token", help="One-time token of `fedpilot site token NAME`.")
@click.option("--token-file", metavar="FILE", type=_FILE, help="File with the token.")
@click.option(
    "--home",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the agent's state. Default: ~/.fedpilot/sites/NAME.",
)
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="HOST:PORT of the head of the site's Ray cluster; auto: RAY_ADDRESS, or the Ray that was "
    "started last in the usual temporary folder of this machine; private: a new Ray on this "
    "machine for each run. Default: auto.",
)
@click.option(
    "--ray-cluster",
    metavar="FILE",
    type=_FILE,
    help="Instead of --ray-address: the agent starts the Ray cluster that FILE declares, and keeps "
    "it as declared. Its machines go on when the agent ends. A Ray of the provider `existing` is "
    "only used.",
)
@click.option(
    "--ray-auth-mode",
    type=click.Choice(["disabled", "token"]),
    help="Authentication of that Ray. Default: RAY_AUTH_MODE, or disabled.",
)
@SITE_FILE
@POLICY
@click.option(
    "--release",
    is_flag=True,
    help="At the end, also end the runs at this site. By default they go on for the next "
    "`site join`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event.")
def join(
    mediator: str | None,
    profile: str | None,
    name: str,
    token: str | None,
    token_file: Path | None,
    home: Path | None,
    ray_address: str | None,
    ray_cluster: Path | None,
    ray_auth_mode: str | None,
    site_file: Path | None,
    policy: Path | None,
    release: bool,
    as_json: bool,
) -> None:
    """Join a federation with a Ray cluster, as the agent of site NAME.

    The agent runs until Ctrl-C. The first time, give --mediator and a token, or --profile: the
    mediator then issues a certificate to the site. The agent dials out and opens no port. It
    reconnects after broken links and restarts of the mediator. When you repeat the command after a
    crash or Ctrl-C, the new agent takes over the runs at this site.

    \b
    Examples:
      fedpilot site join --mediator fl.example.org:7461 --name paris --token-file paris.token
      fedpilot site join --name paris --site-file site.yaml --policy policy.yaml
      fedpilot site join --name paris --profile here --ray-address private
      fedpilot site join --name paris --ray-cluster cluster.yaml

    \b
    Exit codes: 2 bad input, or another agent uses the folder; 3 the mediator refuses the token, or
    an admin removed this site; 4 mediator unreachable when joining; 130 ended by Ctrl-C or SIGTERM.
    """
    if token and token_file:
        raise click.UsageError("give --token or --token-file, not both.")
    if mediator and profile:
        raise click.UsageError("give --mediator or --profile, not both.")
    if ray_cluster and (ray_address or ray_auth_mode):
        raise click.UsageError("give --ray-cluster, or --ray-address with --ray-auth-mode.")
    with exit_codes():
        from fedpilot.fabric.ray_clusters.kept_cluster import KeptRayCluster
        from fedpilot.fabric.ray_clusters.own_cluster import declared_in

        from ..agent.agent import SiteAgent, SiteFacts
        from ..agent.home import SiteHome
        from ..agent.runner.process import RayChoice
        from ..agent.settings import AgentSettings
        from ..agent.site_config.site_files import read_link, read_policy, read_site_file
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
        data, link = read_site_file(site_file), read_link(site_file)
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
        declared = None if ray_cluster is None else declared_in(ray_cluster)
        ray, environment = RayChoice(), {"RAY_AUTH_MODE": auth_mode}
        if ray_address != PRIVATE:
            ray = RayChoice(address=ray_address or "auto", auth_mode=auth_mode)
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
            resolve = _resolver(ray.address)
            if declared is not None:
                kept = undo.enter_context(KeptRayCluster(declared, there.folder / "ray"))
                environment, resolve = dict(kept.environment()), kept.address
                os.environ.update(environment)  # for runners, and what they start
                ray = RayChoice(address="auto", auth_mode=environment["RAY_AUTH_MODE"])
            if joins:
                say("joined", site=site, mediator=address, home=str(there.folder))
            facts = SiteFacts(
                name=site,
                mediator=address,
                ray=ray,
                environment=environment,
                data=data,
                data_json=data_json,
                policy=None if policy is None else policy.absolute(),
                version=version("fedpilot"),
                link=link,
            )
            watch = _watch(resolve, environment, settings, there)
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
        raise BadHome(f"{home.folder} belongs to site {known[0]}, not to {site}")
    address = access.chosen().address if access else mediator or (known[1] if known else None)
    if known is None and token is None and access is None:
        raise click.UsageError(
            f"{site} has not joined yet: get a token from an admin (`fedpilot site token {site}`), "
            "and give it with --token or --token-file. An admin may give --profile instead."
        )
    if address is None:
        raise click.UsageError("give --mediator HOST:PORT to join for the first time.")
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


def _resolver(address: str | None) -> Callable[[], str] | None:
    """What says where the site's Ray is; None for a private one."""
    if address is None:
        return None

    def resolve() -> str:
        if address != "auto":
            return address
        from fedpilot.fabric.ray.connection import address_of_this_machine

        return address_of_this_machine()

    return resolve


def _watch(
    resolve: Callable[[], str] | None,
    environment: Mapping[str, str],
    settings: AgentSettings,
    home: SiteHome,
) -> Watch:
    """Make the watch of the site's Ray, or of a private one for each run."""
    from ..agent.scans.ray_watchdog import PrivateRay, Watchdog

    if resolve is None:
        return PrivateRay()
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
    """Check site.yaml and policy.yaml before a run needs them."""


@policy.command()
@POLICY
@SITE_FILE
@JSON
def check(policy: Path | None, site_file: Path | None, as_json: bool) -> None:
    """Print what site.yaml and policy.yaml allow, or all their errors.

    \b
    Examples:
      fedpilot site policy check --policy policy.yaml
      fedpilot site policy check --policy policy.yaml --site-file site.yaml --json

    \b
    Exit codes: 0 both are valid; 2 a file has errors.
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
            click.echo(f"data set {name} has no rule: no user may train on it")
        for name in unknown:
            click.echo(f"data set {name} has a rule, but is not declared in {site_file}")
