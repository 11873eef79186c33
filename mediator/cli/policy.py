"""The commands about a site's own files: `fedpilot site policy`. Nobody is asked."""

from __future__ import annotations

from pathlib import Path

import click

from fedpilot.fabric.terminal.commands import CommandGroup, exit_codes
from fedpilot.fabric.terminal.console import print_json

from .access import JSON
from .join import POLICY, SITE_FILE


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
