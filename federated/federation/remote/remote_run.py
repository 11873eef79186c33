"""A run at a mediator, which `fedpilot run` and `fedpilot runs attach` show like a local one.

The config is checked here before anything is sent. A follower sees every event once, even over
broken connections, and may leave at any time: the run goes on.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.host.exit_codes import FAILED, INTERRUPTED, exit_code_of
from fedpilot.common.terminal.commands import fail, interruptions

from ..events import Event, event
from ..step_watch import StepWatch

if TYPE_CHECKING:
    from fedpilot.mediator.cli.access import Access
    from fedpilot.mediator.client.client import MediatorClient

    from ..report.progress import Display

TOLD = ("status", "failure", "reason", "rounds", "digest")
"""Fields of a run's end that the mediator knows."""


def submit(
    access: Access,
    config: Path,
    overrides: Sequence[str],
    *,
    run_id: str | None,
    detach: bool,
    shared: bool = False,
    priority_class: str = "",
    as_json: bool,
) -> int:
    """Submit a run and follow it; the exit code. Raises ConfigError before anything is sent.

    The user's own modules that the config names go with it.
    """
    from ...config import load_config, located, to_yaml
    from ...errors import ConfigError
    from ...prepare.run_ask import run_ask
    from ...prepare.user_code.user_code import code_to_send
    from ...prepare.user_code.user_sources import import_paths
    from ..run_folder.folder import check_run_id, new_run_id

    checked = load_config(config, overrides)
    try:
        code = code_to_send(checked, import_paths(config))
    except ConfigError as error:
        raise located(error, config, overrides) from error
    for module in code.missing:
        click.echo(
            f"fedpilot: {module} is not found here, so it is not sent: it has to be installed "
            "where the mediator runs, and at every site",
            err=True,
        )
    run = check_run_id(run_id or new_run_id(checked.run.name or config.stem))
    text = to_yaml(checked)
    fate = "nothing was submitted"
    try:
        with interruptions(), access.open() as client:
            fate = f"run {run} may be submitted, or not: {access.step('runs', 'show', run)}"
            found = client.submit(
                run,
                text,
                name=config.stem,
                code=code.archive,
                shared=shared,
                priority_class=priority_class,
                ask=run_ask(checked),
            )
    except KeyboardInterrupt:
        fail(f"interrupted; {fate}", INTERRUPTED)
    if as_json:
        status = found.get("status", "")
        _print(event("run_submitted", run_id=run, status=status, mediator=client.address))
    if not detach:
        return follow(access, run, as_json=as_json)
    if as_json:
        _print(_detached(access, run, "it was asked for"))
    else:
        click.echo(run)
    return 0


def resume(access: Access, run: str, *, as_json: bool) -> int:
    """Resume an interrupted run at the mediator and follow it; the exit code."""
    with access.open() as client:
        last = 0
        for happening in client.follow_run(run, follow=False):
            last = happening.number
        client.resume_run(run)
    return follow(access, run, as_json=as_json, after=last)


def follow(access: Access, run: str, *, as_json: bool, after: int = 0) -> int:
    """Show a run's events until it ends; the exit code that a local run would have had."""
    from fedpilot.mediator.errors import MediatorUnreachable

    from ..report.progress import display_for

    display = display_for(sys.stdout, as_json=as_json)
    attach = f"run {run} goes on; to follow it again: {access.step('runs', 'attach', run)}"
    try:
        with interruptions(), access.open() as client, display:
            ending = _shown(client, run, after, display, access, as_json=as_json)
    except KeyboardInterrupt:
        if as_json:
            _print(_detached(access, run, "interrupted"))
        fail(f"interrupted; {attach}", INTERRUPTED)
    except MediatorUnreachable as error:
        if as_json:
            _print(_detached(access, run, str(error)))
        fail(f"{error}\n{attach}", error.exits_with)
    return _ended(access, run, ending)


def _detached(access: Access, run: str, reason: str) -> Event:
    """The event of a run that goes on unfollowed, with the command to follow it again."""
    attach = access.step("runs", "attach", run)
    return event("run_detached", run_id=run, reason=reason, attach=attach)


def _print(told: Event) -> None:
    click.echo(json.dumps(told.to_json()))


def _shown(
    client: MediatorClient, run: str, after: int, display: Display, access: Access, *, as_json: bool
) -> Mapping[str, Any]:
    """Show a run to its end on the display; the fields of the end."""
    ending: Mapping[str, Any] | None = None
    one_at_a_time = threading.Lock()

    def show(told: Event) -> None:
        with one_at_a_time:
            display(told)

    watch = StepWatch(lambda name, **fields: show(event(name, **fields)))
    with watch.step("mediator", told_by_others=True):
        for happening in client.follow_run(run, after=after):
            told = event_of(happening.event)
            if told.name == "run_finished":
                ending = told.fields
                if not as_json:
                    told = _elsewhere(told, client.address, access)
            elif told.name == "run_started":
                ending = None
            show(told)
            watch.heard(told.name, **told.fields)
    if ending is None:
        told = _unsaid(run, client.show_run(run))
        ending = told.fields
        display(told)
    return ending


def event_of(document: Mapping[str, Any]) -> Event:
    """An event of a run from its coordinator's document."""
    fields = {name: value for name, value in document.items() if name not in ("event", "time")}
    try:
        time = datetime.fromisoformat(str(document.get("time")))
    except ValueError:
        time = datetime.now(UTC)
    return Event(str(document.get("event", "")), fields, time)


def _elsewhere(end: Event, address: str, access: Access) -> Event:
    """The end of a run with its folder's place and the command that resumes it from here."""
    run, folder = str(end.fields.get("run_id", "")), end.fields.get("folder")
    fields = {
        **end.fields,
        "folder": None if folder is None else f"{folder}, at the mediator {address}",
        "resume": access.step("runs", "resume", run),
    }
    return Event(end.name, fields, end.time)


def _unsaid(run: str, found: Mapping[str, Any]) -> Event:
    """The end of a run whose coordinator died before it could report it."""
    begun, ended = found.get("started_at") or 0.0, found.get("ended_at") or 0.0
    told = {name: found.get(name, "") for name in TOLD}
    fields = {"run_id": run, "folder": None, **told, "seconds": max(0.0, ended - begun)}
    return Event("run_finished", fields, datetime.now(UTC))


def _ended(access: Access, run: str, ending: Mapping[str, Any]) -> int:
    """Report the end on stderr where necessary; return its exit code."""
    failure = str(ending.get("failure") or ending.get("reason") or "")
    match ending.get("status"):
        case "finished":
            if not ending.get("folder"):
                return 0
            click.echo(
                f"fedpilot: its files: {access.step('runs', 'fetch', run, '--to', run)}", err=True
            )
            return 0
        case "failed":
            fail(f"run {run} failed: {failure}", exit_code_of_failure(failure))
    resumes = access.step("runs", "resume", run)
    fail(f"run {run} was stopped; to resume it: {resumes}", INTERRUPTED)


def exit_code_of_failure(failure: str) -> int:
    """The exit code of a failure of the form `Class: text`, as that class has it here."""
    import fedpilot.fabric.errors
    import fedpilot.federated.errors
    import fedpilot.mediator.errors

    name = failure.partition(":")[0]
    for package in (fedpilot.fabric, fedpilot.mediator, fedpilot.federated):
        kind = getattr(package.errors, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return exit_code_of(kind) or FAILED
    return FAILED
