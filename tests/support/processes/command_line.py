"""The `fedpilot` command, called in this process, and a config for it."""

from __future__ import annotations

from click.testing import CliRunner, Result

from fedpilot.cli import main

GOOD = """
federation: {number_of_clients: 50, clients_per_round: 20, rounds: 2}
model: {model_type: mlp}
data: {dataset_type: digits}
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="fedpilot")
