"""The commands attach, logs, stop and resume for runs at a mediator."""

from __future__ import annotations

import sys

import click

from fedpilot.closed_pipes import ends_with_reader
from fedpilot.common.host.exit_codes import INTERRUPTED
from fedpilot.common.terminal.commands import exit_codes, fail, interruptions
from fedpilot.common.terminal.console import print_json
from fedpilot.common.text.plain_text import plain_lines
from fedpilot.mediator.cli.access import JSON, Access, ask, with_mediator

from ..options import EVENTS


@click.command()
@click.argument("run_id", metavar="RUN")
@EVENTS
@with_mediator
def attach(run_id: str, access: Access, as_json: bool) -> None:
    """Follow RUN at the mediator from its first event to its end.

    The command reconnects after a broken connection, and neither loses nor repeats an event. Ctrl-C
    detaches: the run goes on.

    \b
    Examples:
      fedpilot runs attach base --profile hospitals
      fedpilot runs attach base --json | jq 'select(.event == "round_finished") | .accuracy'

    \b
    Exit codes: those of `fedpilot run`; 4 mediator unreachable, the run may go on; 130 detached, or
    a user stopped the run.
    """
    with exit_codes(), ends_with_reader():
        from ...federation.remote.remote_run import follow

        sys.exit(follow(access, run_id, as_json=as_json))


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Print new output until the run ends.")
@JSON
@with_mediator
def logs(run_id: str, follow: bool, access: Access, as_json: bool) -> None:
    """Print the log of RUN's coordinator at the mediator.

    With --json, print one document with `run_id` and `log`; with --follow, at the end of the run.

    \b
    Examples:
      fedpilot runs logs base --profile hospitals
      fedpilot runs logs base --follow | grep -i warning
    """
    with exit_codes(), ends_with_reader():
        try:
            with interruptions(), access.open() as client:
                parts = client.run_log(run_id, follow=follow)
                if as_json:
                    print_json({"run_id": run_id, "log": "".join(parts)})
                    return
                for text in parts:
                    click.echo(plain_lines(text), nl=False)
        except KeyboardInterrupt:
            fail(f"interrupted; this does not affect run {run_id}", INTERRUPTED)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until RUN has ended.")
@JSON
@with_mediator
def stop(run_id: str, wait: bool, access: Access, as_json: bool) -> None:
    """Stop RUN at the mediator and keep its state for `runs resume`.

    RUN releases its resources at the sites. With --no-wait, its status may still be `stopping` when
    the command returns. To stop a run on this machine, press Ctrl-C.

    \b
    Examples:
      fedpilot runs stop base --profile hospitals
      fedpilot runs stop base --json | jq .status
    """
    with exit_codes():
        found = ask(access, lambda client: client.stop_run(run_id, wait=wait))
        if as_json:
            print_json(found)
            return
        click.echo(f"{run_id} is {found.get('status')}")
        click.echo(f"to resume it: {access.step('runs', 'resume', run_id)}")


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--detach", "-d", is_flag=True, help="Do not follow RUN.")
@EVENTS
@with_mediator
def resume(run_id: str, detach: bool, access: Access, as_json: bool) -> None:
    """Resume RUN at the mediator and follow it.

    RUN must be stopped, interrupted or failed. It ends in the same model as an undisturbed run, bit
    for bit. To resume a run on this machine, use `fedpilot run --resume RUN`.

    \b
    Examples:
      fedpilot runs resume base --profile hospitals
      fedpilot runs resume base --detach --json | jq .status
    """
    with exit_codes():
        if detach:
            found = ask(access, lambda client: client.resume_run(run_id))
            if as_json:
                print_json(found)
            else:
                click.echo(f"{run_id} is {found.get('status')}")
            return
        from ...federation.remote.remote_run import resume as resume_and_follow

        sys.exit(resume_and_follow(access, run_id, as_json=as_json))
