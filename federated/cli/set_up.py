"""The commands before a first run: init writes a config, doctor looks at this machine."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import click

from fedpilot.common.host.exit_codes import BAD_INPUT, FAILED
from fedpilot.common.terminal.commands import fail
from fedpilot.common.terminal.console import print_json
from fedpilot.fabric.cli.access import said_to_be_slow, timeout_of, with_timeout

from .options import JSON


@click.command()
@click.argument("path", default="fedpilot.yaml", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@JSON
def init(path: Path, force: bool, as_json: bool) -> None:
    """Write a starter config with every key explained to PATH.

    PATH defaults to fedpilot.yaml. The config runs unchanged: 50 clients share the bundled
    handwritten digits.

    \b
    Example:
      fedpilot init my.yaml && fedpilot run my.yaml
    """
    from ..config import starter

    if path.exists() and not force:
        fail(f"{path} exists already; choose another name, or replace it with --force", BAD_INPUT)
    try:
        path.write_text(starter())
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}", BAD_INPUT)
    if as_json:
        click.echo(json.dumps({"config": str(path)}))
        return
    click.echo(f"wrote {path}; next: fedpilot run {path}")


@click.command()
@click.option("--address", metavar="HOST:PORT", help="Also check the Ray cluster at this address.")
@click.option(
    "--auth-mode",
    type=click.Choice(["disabled", "token"]),
    help="Authentication of that Ray. Default: RAY_AUTH_MODE, or disabled.",
)
@click.option(
    "--warm",
    is_flag=True,
    help="Also compile the training code of dense layers now, instead of in the first run here.",
)
@with_timeout
@JSON
def doctor(address: str | None, auth_mode: str | None, warm: bool, as_json: bool) -> None:
    """Check this machine: versions, CPUs, memory, disk, ports and Ray.

    With --address, also check whether a run can attach to that Ray cluster, what is free there, and
    whether each of its machines can run fedpilot.

    \b
    Examples:
      fedpilot doctor
      fedpilot doctor --warm
      fedpilot doctor --address 10.0.0.5:6379 --auth-mode token

    `--warm` takes some seconds once per version of fedpilot; ~/.cache/fedpilot keeps the compiled
    code. Exit codes: 0 runs can work; 1 a check found an error (✗).
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
