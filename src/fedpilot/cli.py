"""The `fedpilot` command: joins the packages' commands, and imports each only when it is called.

`--help` must answer at once, so this module has the names and summaries of all commands and imports
neither Ray, PyTorch nor the packages.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from .closed_pipes import outlive_readers
from .common.host.imports import many_imports


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command's module and its line in `fedpilot --help`."""

    target: str
    summary: str
    section: str


RUNS, SITES, SHARE, SET_UP = "Train", "Span sites", "Share a Ray cluster", "Set up"
COMMANDS = {
    "run": CommandEntry(
        "fedpilot.federated.cli.run:run", "Train a federation, or resume an interrupted run.", RUNS
    ),
    "check": CommandEntry(
        "fedpilot.federated.cli.check:check", "Validate a config and print all its values.", RUNS
    ),
    "plan": CommandEntry(
        "fedpilot.federated.cli.plan:plan",
        "Show where clients would train, and what a round costs.",
        RUNS,
    ),
    "tune": CommandEntry(
        "fedpilot.federated.cli.tune:tune", "Find the fastest execution for a model.", RUNS
    ),
    "sweep": CommandEntry(
        "fedpilot.federated.cli.sweep:sweep",
        "Train a config at several points, each from several seeds.",
        RUNS,
    ),
    "runs": CommandEntry(
        "fedpilot.federated.cli.runs.group:runs",
        "List, show, compare and verify runs in a folder here or at a mediator.",
        RUNS,
    ),
    "node": CommandEntry(
        "fedpilot.federated.cli.node:node",
        "List and explain the VirtualNodes of a run at a mediator.",
        RUNS,
    ),
    "mediator": CommandEntry(
        "fedpilot.mediator.cli.mediator:mediator",
        "Start the mediator that sites and users connect to.",
        SITES,
    ),
    "site": CommandEntry(
        "fedpilot.mediator.cli.site:site",
        "Join, list, cordon, drain and remove sites.",
        SITES,
    ),
    "events": CommandEntry(
        "fedpilot.mediator.cli.events:events", "Print the events of the federation.", SITES
    ),
    "certs": CommandEntry(
        "fedpilot.mediator.cli.certs:certs", "Issue, list, rotate and revoke certificates.", SITES
    ),
    "profile": CommandEntry(
        "fedpilot.mediator.cli.profile:profile",
        "Save mediators under names, so that no command needs an address.",
        SITES,
    ),
    "cluster": CommandEntry(
        "fedpilot.fabric.cli.clusters:cluster",
        "Create, list, draw, explain and delete virtual clusters.",
        SHARE,
    ),
    "job": CommandEntry(
        "fedpilot.fabric.cli.jobs:job",
        "Run unmodified Ray scripts, each in its own virtual cluster.",
        SHARE,
    ),
    "queue": CommandEntry(
        "fedpilot.fabric.cli.queues:queue",
        "Set quotas for projects; see who waits, and for whom work was stopped.",
        SHARE,
    ),
    "raycluster": CommandEntry(
        "fedpilot.fabric.cli.ray_clusters.group:raycluster",
        "Declare Ray clusters, and have them started, healed, scaled and ended.",
        SHARE,
    ),
    "simulate": CommandEntry(
        "fedpilot.fabric.cli.simulate:simulate",
        "Decide scheduler cases from a file, without Ray.",
        SHARE,
    ),
    "init": CommandEntry(
        "fedpilot.federated.cli.set_up:init", "Write a commented starter config.", SET_UP
    ),
    "doctor": CommandEntry(
        "fedpilot.federated.cli.set_up:doctor",
        "Check whether this machine can run a federation.",
        SET_UP,
    ),
}
AT_SITES = "fedpilot.mediator.cli.at_sites:at_sites"
"""Replaces these when they name sites, which the fabric does not have."""
ABLE_AT_SITES = ("cluster", "job", "queue")
SITE_OPTIONS: tuple[tuple[str, str | None, str], ...] = (
    ("--site", "NAME", "Run the command at this site. May be given several times."),
    ("--all-sites", None, "Run the command at all sites in contact with the mediator."),
    ("--mediator", "HOST:PORT", "For sites: the mediator at this address."),
    ("--credentials", "DIR", "For sites: the folder with your ca.pem, cert.pem and key.pem."),
    ("--profile", "NAME", "For sites: the mediator and credentials of this profile."),
)
"""Each option, its value's name if it takes one, and its help."""

EPILOG = """\b
First steps:
  fedpilot init my.yaml          a config that trains on the bundled digits
  fedpilot check my.yaml         validate it, and print all values
  fedpilot run my.yaml           train; curves and model go to runs/<run-id>/
  fedpilot run my.yaml --set federation.rounds=5

\b
Many Ray clusters, one federation:
  fedpilot profile add hospitals --mediator HOST:PORT --credentials DIR
  fedpilot run my.yaml --profile hospitals
  fedpilot cluster tree --site paris       `cluster`, `job` and `queue` work at sites

\b
Exit codes: 0 done, 1 failed, 2 bad usage or config (nothing was started), 3 infeasible or
refused, 4 cluster, site or mediator unreachable, 130 interrupted (state is kept).
"""


def asks_sites(args: Sequence[str]) -> bool:
    """Whether a cluster command names sites; words after `--` are another program's."""
    own = args[: args.index("--")] if "--" in args else args
    named = {word.partition("=")[0] for word in own[1:]}
    return bool(own) and own[0] in ABLE_AT_SITES and bool(named & {"--site", "--all-sites"})


def with_site_options(group: click.Command) -> click.Command:
    """A copy of a group whose commands list the options that send them to sites.

    `asks_sites` handles these before a command is parsed, so a parsed command names no site.
    """
    if not isinstance(group, click.Group):
        return group
    made = copy.copy(group)
    made.commands = {}
    for name, command in group.commands.items():
        told = made.commands[name] = copy.copy(command)
        told.params = [*command.params, *map(_site_option, SITE_OPTIONS)]
    return made


def _site_option(about: tuple[str, str | None, str]) -> click.Option:
    name, value, text = about

    def refuse(context: click.Context, option: click.Parameter, given: object) -> None:
        if given:
            raise click.UsageError(f"{name} needs --site NAME or --all-sites, before any `--`.")

    return click.Option(
        [name],
        metavar=value,
        is_flag=value is None,
        multiple=name == "--site",
        expose_value=False,
        callback=refuse,
        help=text,
    )


def loaded(target: str) -> click.Command:
    """Import a command."""
    module, _, name = target.partition(":")
    with many_imports():
        command: click.Command = getattr(importlib.import_module(module), name)
    return command


class LazyGroup(click.Group):
    """A group that imports a command when it is called, not when it is listed."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, which continues after the readers of its output are gone."""
        outlive_readers()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; Ctrl-C at any moment of it has the exit code of an interruption."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from .common.host.exit_codes import INTERRUPTED

            ctx.exit(INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command = loaded(COMMANDS[cmd_name].target)
        return with_site_options(command) if cmd_name in ABLE_AT_SITES else command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Send commands that name sites there; suggest the nearest command for a misspelt one."""
        if asks_sites(args):
            return args[0], loaded(AT_SITES), args
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            ctx.fail(f"There is no command `{args[0]}`.{hint} Commands: {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, from the table alone."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(n, e.summary) for n, e in COMMANDS.items() if e.section == section]
                )


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(None, "-V", "--version", package_name="fedpilot", prog_name="fedpilot")
def main() -> None:
    """Train federations of up to a million clients on Ray clusters."""
