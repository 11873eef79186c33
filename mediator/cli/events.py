"""The command `fedpilot events`: prints the federation's past and current events."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable

import click

from fedpilot.closed_pipes import ends_with_reader
from fedpilot.common.host.exit_codes import INTERRUPTED
from fedpilot.common.terminal.commands import exit_codes, fail, interruptions
from fedpilot.common.terminal.console import display, print_json
from fedpilot.common.text.plain_text import plain_line

from .access import JSON, Access, ask, asking, event_line, with_mediator


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Continue with new events until Ctrl-C.")
@click.option(
    "--last",
    "most",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="N",
    help="Print at most the last N past events.",
)
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="NUMBER",
    help="Print only events after the one with this number.",
)
@click.option(
    "--audit",
    is_flag=True,
    help="Print the audit log instead: each act with its user and its outcome.",
)
@JSON
@with_mediator
def events(access: Access, follow: bool, most: int, after: int, audit: bool, as_json: bool) -> None:
    """Print the events of the federation: sites, runs and refusals.

    With --json, print one document; with --follow too, one object per line. Each event has
    `number`, `event` and `time`. --follow reconnects after a broken connection, and neither loses
    nor repeats an event. For the events of one run, use `fedpilot runs attach RUN`.

    \b
    Examples:
      fedpilot events --last 10
      fedpilot events --follow
      fedpilot events --follow --json | jq 'select(.event == "site_lost")'
      fedpilot events --audit --last 20

    \b
    Exit codes: 0 done; 2 no mediator is named; 3 not permitted; 4 mediator unreachable;
    130 interrupted while following.
    """
    if audit and (follow or after):
        raise click.UsageError("--audit allows --last, but not --follow or --after.")
    with exit_codes(), ends_with_reader():
        if audit:
            _print_audit(access, most, as_json=as_json)
            return
        with asking(access) as client:
            past = client.follow_events(after=after)
            kept = deque(({"number": each.number, **each.event} for each in past), max(most, 1))
        told = list(kept) if most else []
        if not follow:
            if as_json:
                print_json({"events": told})
            else:
                _print(told, as_json=False)
                if not kept:
                    click.echo("no events yet")
            return
        _print(told, as_json=as_json)
        last = int(kept[-1]["number"]) if kept else after
        try:
            with interruptions(), access.open() as client:
                for each in client.follow_events(after=last, follow=True):
                    last = each.number
                    _print([{"number": last, **each.event}], as_json=as_json)
        except KeyboardInterrupt:
            again = access.step("events", "--follow", "--after", str(last))
            fail(f"interrupted; to continue: {again}", INTERRUPTED)


def _print_audit(access: Access, most: int, *, as_json: bool) -> None:
    acts = ask(access, lambda client: client.list_audit(most)) if most else []
    if as_json:
        print_json({"acts": acts})
        return
    from fedpilot.common.terminal.layout import ruled, timestamp

    shown = ruled("when", "who", "role", "act", "what", "outcome", fold=True)
    for act in acts:
        said = (plain_line(act.get(name, "")) for name in ("who", "role", "act", "what", "outcome"))
        shown.add_row(timestamp(float(act.get("at") or 0.0)), *said)
    display(shown)


def _print(told: Iterable[dict[str, object]], *, as_json: bool) -> None:
    for event in told:
        if as_json:
            click.echo(json.dumps(event))
            continue
        click.echo(event_line({name: each for name, each in event.items() if name != "number"}))
