"""The commands before a first run: init writes a config, doctor looks at this machine."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import click

from fedpilot.fabric.cli.access import said_to_be_slow, timeout_of, with_timeout
from fedpilot.fabric.host.exit_codes import BAD_INPUT, FAILED
from fedpilot.fabric.terminal.commands import fail
from fedpilot.fabric.terminal.console import print_json

from .options import JSON


@click.command()
@click.argument("path", default="fedpilot.yaml", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@JSON
def init(path: Path, force: bool, as_json: bool) -> None:
    """Write a starter config with every key explained to PATH (default: fedpilot.yaml).

    It runs as it is: fifty clients share the bundled handwritten digits.
    """
    from ..config import starter

    if path.exists() and not force:
        fail(f"{path} exists already; choose another name, or --force to replace it", BAD_INPUT)
    try:
        path.write_text(starter())
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}", BAD_INPUT)
    if as_json:
        click.echo(json.dumps({"config": str(path)}))
        return
    click.echo(f"wrote {path}; next: fedpilot run {path}")


@click.command()
@click.option("--address", metavar="HOST:PORT", help="Also attach to this Ray, as a run would.")
@click.option(
    "--auth-mode",
    type=click.Choice(["disabled", "token"]),
    help="How that Ray authenticates; by default RAY_AUTH_MODE, or else disabled.",
)
@click.option(
    "--warm",
    is_flag=True,
    help="Also compile the training code of dense layers, which a first run here would compile.",
)
@with_timeout
@JSON
def doctor(address: str | None, auth_mode: str | None, warm: bool, as_json: bool) -> None:
    """Look at this machine: versions, cores, load, memory, disk, ports, Ray's settings.

    With --address also at a Ray cluster: whether a run can attach, what is free there, and whether
    fedpilot can work on each of its machines.

    \b
    Examples:
      fedpilot doctor
      fedpilot doctor --warm
      fedpilot doctor --address 10.0.0.5:6379 --auth-mode token

    Exits 1 if something would keep runs from working. `--warm` takes some seconds, once for every
    version of fedpilot: what is compiled is kept in ~/.cache/fedpilot.
    """
    from .doctor import examine, kernels

    timeout_s = timeout_of(click.get_current_context())
    with said_to_be_slow(address, timeout_s, auth_mode) if address else nullcontext():
        findings = examine(address, auth_mode, timeout_s)
    if warm:
        findings = (*findings, kernels())
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        marks = {"ok": "✓", "warn": "!", "fail": "✗"}
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            click.echo(f"{marks[str(finding.status)]} {finding.name:<{width}}  {finding.found}")
            if finding.advice:
                click.echo(f"  {'':<{width}}  → {finding.advice}")
    if any(str(finding.status) == "fail" for finding in findings):
        sys.exit(FAILED)
