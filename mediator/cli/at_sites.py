"""`fedpilot cluster`, `job` and `queue` at sites: the commands run beside the sites' agents.

The command line is that for the site, with `--site NAME` or `--all-sites` added. One site's answer
is printed unchanged; the answers of several sites are labelled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.host.exit_codes import REFUSED, UNREACHABLE, exit_code_of
from fedpilot.common.terminal.commands import exit_codes, fail
from fedpilot.common.terminal.console import print_json, spinner
from fedpilot.common.text.plain_text import plain_lines

from ..core.rules.site_commands import before_dashes, objection, words_of
from ..errors import MediatorError
from .access import Access, access_of

if TYPE_CHECKING:
    from ..client.client import MediatorClient, SiteCommandOutcome

SPECS = {"cluster": "--json-spec", "job": "--virtual-cluster"}
"""The option for a spec's content, since its file is not at the site."""
IN_CONTACT = ("ready", "cordoned", "draining")
AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCommandOptions:
    """A command line for sites."""

    group: str
    arguments: tuple[str, ...]
    """The arguments after the group, without the options about sites and the mediator."""
    sites: tuple[str, ...]
    """Empty for all."""
    access: Access

    @property
    def as_json(self) -> bool:
        """Whether the sites answer with documents."""
        return "--json" in before_dashes(self.arguments)


def parse(group: str, arguments: Sequence[str]) -> SiteCommandOptions:
    """Split the options about sites and the mediator from a command line. UsageError."""
    told: dict[str, list[str]] = {
        name: [] for name in ("--site", "--mediator", "--credentials", "--profile")
    }
    mine = before_dashes(arguments)
    kept: list[str] = []
    everywhere = False
    words = iter(mine)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--all-sites":
            everywhere = True
        elif name in told:
            given = value if equals else next(words, "")
            if not given or given.startswith("--"):
                raise click.UsageError(f"{name} needs a value.")
            told[name].append(given)
        else:
            kept.append(word)
    if everywhere == bool(told["--site"]):
        raise click.UsageError("give either --site NAME, or --all-sites.")
    if group == "job" and {"--follow", "-f"} & set(kept):
        raise click.UsageError("--follow does not work at a site; repeat the command instead.")
    if kept[:2] and kept[0] == "submit" and group == "job" and "--no-wait" not in kept:
        raise click.UsageError(
            "`job submit` at a site needs --no-wait; then `job show` reports on the job."
        )
    sent = (*_with_contents(group, kept), *arguments[len(mine) :])
    if why := objection((group, *sent)):
        raise click.UsageError(f"{why}.")
    mediator, credentials, profile = (
        told[name][-1] if told[name] else None
        for name in ("--mediator", "--credentials", "--profile")
    )
    return SiteCommandOptions(
        group=group,
        arguments=sent,
        sites=tuple(dict.fromkeys(told["--site"])),
        access=access_of(mediator, credentials, profile),
    )


def _with_contents(group: str, words: Sequence[str]) -> list[str]:
    """Replace files by their contents. SpecError, BadFile."""
    if group == "queue":
        return _with_queues(words)
    from fedpilot.fabric.cli.spec_options import spec_in

    sent, rest = [], iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != "--spec":
            sent.append(word)
            continue
        spec = spec_in(Path(value if equals else next(rest, "")))
        sent += [SPECS[group], json.dumps(spec.to_dict())]
    return sent


def _with_queues(words: Sequence[str]) -> list[str]:
    """Replace the file of queues by its content."""
    file = next(words_of(words[1:]), "") if words[:1] == ["apply"] else ""
    if not file:
        return [*words]
    from fedpilot.fabric.spec.queue_file import read_queue_file

    document = json.dumps(read_queue_file(Path(file)).document)
    left = [word for word in words if word != file]
    return [*left, "--declaration", document]


@click.command(
    "at-sites",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def at_sites(arguments: Sequence[str]) -> None:
    """Run a command about clusters, jobs or queues at sites."""
    with exit_codes():
        asked = parse(arguments[0], arguments[1:])
        code = _one(asked) if len(asked.sites) == 1 else _several(asked)
    sys.exit(code)


def _one(asked: SiteCommandOptions) -> int:
    site = asked.sites[0]
    with asked.access.open() as client, spinner(f"asking {site}"):
        outcome = client.run_at_site(site, [asked.group, *asked.arguments])
    _pass_on(outcome)
    return outcome.exit_code


def _several(asked: SiteCommandOptions) -> int:
    """Ask several sites concurrently; return the highest exit code."""
    with asked.access.open() as client, spinner("asking the sites"):
        sites = asked.sites or _all(client)
        if not sites:
            fail("no site is in contact; see `fedpilot site list`", UNREACHABLE)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            futures = {
                site: threads.submit(client.run_at_site, site, [asked.group, *asked.arguments])
                for site in sites
            }
            outcomes = {site: _settled(future) for site, future in futures.items()}
    if asked.as_json:
        print_json({"sites": {site: _document(each) for site, each in outcomes.items()}})
    else:
        for site, each in outcomes.items():
            click.secho(f"── {site}", bold=True)
            _pass_on(each)
    return max(outcome.exit_code for outcome in outcomes.values())


def _pass_on(outcome: SiteCommandOutcome) -> None:
    click.echo(plain_lines(outcome.out), nl=False)
    click.echo(plain_lines(outcome.err), nl=False, err=True)


def _all(client: MediatorClient) -> tuple[str, ...]:
    """The reachable sites; the others are named on stderr."""
    found = client.list_sites()
    for site in found:
        if site.get("state") not in IN_CONTACT and site.get("state") != "left":
            click.echo(f"fedpilot: skipping {site['name']}: it is {site.get('state')}", err=True)
    return tuple(str(site["name"]) for site in found if site.get("state") in IN_CONTACT)


def _settled(future: Any) -> SiteCommandOutcome:
    """A site's outcome, or an exit code and a message if it could not be asked."""
    from ..client.client import SiteCommandOutcome

    try:
        outcome: SiteCommandOutcome = future.result()
        return outcome
    except MediatorError as error:
        code = exit_code_of(error) or REFUSED
        return SiteCommandOutcome(exit_code=code, out="", err=f"fedpilot: {error}\n")


def _document(outcome: SiteCommandOutcome) -> dict[str, Any]:
    answer: Any = None
    with suppress(ValueError):
        answer = json.loads(outcome.out)
    return {"exit_code": outcome.exit_code, "answer": answer, "error": outcome.err.strip()}
