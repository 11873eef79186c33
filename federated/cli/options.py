"""Options that several commands take."""

from __future__ import annotations

import click

SET = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a config key: `training.learning_rate=0.05`. May be given several times.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
EVENTS = click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
