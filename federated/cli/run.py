"""The commands run, check, init and doctor. Thin: parse, call, print, exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.fabric.cli.access import (
    BAD_INPUT,
    FAILED,
    exit_codes,
    fail,
    said_to_be_slow,
    timeout_of,
    with_timeout,
)
from fedpilot.fabric.host.interruptions import Interruptions
from fedpilot.mediator.cli.access import Access, with_mediator

if TYPE_CHECKING:
    from ..core.population.partitions.summary import PartitionSummary
    from ..federation.federation import Federation
    from ..federation.run_folder.folder import RunFolder

SET = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a key, such as `training.learning_rate=0.05`. May be given several times.",
)
SHOWN_FILES = 4
"""Files of the user's own code that `check` names."""
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--resume", metavar="RUN_ID", help="Continue this interrupted run.")
@click.option(
    "--from",
    "parent",
    metavar="RUN",
    help="Begin a new run where this one stands: its id, or its folder.",
)
@click.option("--run-id", metavar="RUN_ID", help="Call the new run this, instead of name and time.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where run folders are; by default `outputs.folder` of the config, or `runs`.",
)
@SET
@click.option("--detach", "-d", is_flag=True, help="At a mediator: submit it, and do not follow.")
@click.option(
    "--share",
    is_flag=True,
    help="At a mediator: let all its users read the results, not only you and admins.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
@with_mediator
def run(
    config: Path | None,
    resume: str | None,
    parent: str | None,
    run_id: str | None,
    folder: Path | None,
    overrides: Sequence[str],
    detach: bool,
    share: bool,
    access: Access,
    as_json: bool,
) -> None:
    """Train the federation that CONFIG describes, here or over the sites of a mediator.

    Everything the run leaves goes to its run folder: the resolved config, a row of metrics per
    round, the last and the best model, curves.png. Ctrl-C ends the run cleanly; `--resume RUN_ID`
    (without CONFIG) continues it and ends in the same model, bit for bit; `--set` may change there
    what does not decide the result, such as `resources.workers` and the limits of `traffic`.

    `--from RUN --set federation.rounds=N` (without CONFIG) is how a run gets more rounds: a new run
    goes on after the last round of RUN, to N rounds in all, and ends in the same model as one run
    of N rounds, bit for bit. It has copies of all that it needs: RUN may be removed.

    With --mediator, --profile or FEDPILOT_PROFILE the run is submitted to that mediator, which
    trains it over its sites, and is followed from here; a default profile alone sends nothing away.
    Ctrl-C detaches then, and `fedpilot runs attach` follows again; with --json `run_detached` has
    the command. The run folder is at the mediator: `fedpilot runs fetch` brings it.

    \b
    Examples:
      fedpilot run configs/quickstart.yaml
      fedpilot run my.yaml --set federation.rounds=100 --set resources.workers=4
      fedpilot run --resume quickstart-20260102-030405-a1b2c3d4
      fedpilot run --from quickstart-20260102-030405-a1b2c3d4 --set federation.rounds=100
      fedpilot run my.yaml --json | jq 'select(.event == "round_finished") | .accuracy'
      fedpilot run my.yaml --mediator fl.example.org:7461 --credentials ~/alice
      fedpilot run my.yaml --profile hospitals --detach

    \b
    Exit codes: 0 done; 1 it ran and failed; 2 the config or the usage is wrong; 3 infeasible or
    refused; 4 the cluster or the mediator cannot be reached; 130 interrupted, or detached.
    """
    if [config, resume, parent].count(None) != 2:
        raise click.UsageError(
            "give either CONFIG, to begin a run, or --resume RUN_ID, or --from RUN."
        )
    if parent is not None and (detach or (access.on_purpose and not folder)):
        raise click.UsageError(
            "--from is about a run whose folder is here: no --mediator, --profile and --detach."
        )
    if resume is not None and run_id:
        raise click.UsageError("a resumed run keeps its id: no --run-id.")
    if resume is not None and share:
        raise click.UsageError("a resumed run is shared as it was: no --share.")
    if resume is not None and overrides and access.on_purpose and not folder:
        raise click.UsageError("a run at a mediator keeps its config: no --set with --resume.")
    if access.on_purpose and not folder:
        with exit_codes():
            from ..federation.remote import remote_run

            if resume is not None:
                sys.exit(remote_run.resume(access, resume, as_json=as_json))
            assert config is not None
            sys.exit(
                remote_run.submit(
                    access,
                    config,
                    overrides,
                    run_id=run_id,
                    detach=detach,
                    shared=share,
                    as_json=as_json,
                )
            )
    if access.asked.mediator or access.asked.profile or detach or share:
        raise click.UsageError(
            "--folder is a place here, --mediator and --profile are elsewhere."
            if folder
            else f"{'--detach' if detach else '--share'} is about a run at a mediator: "
            "give --mediator or --profile."
        )
    from ..federation.coordinator.step_watch import StepWatch
    from ..federation.events import event
    from ..federation.report.progress import display_for

    display = display_for(sys.stdout, as_json=as_json)
    watch = StepWatch(lambda name, **fields: display(event(name, **fields)))
    changes = [*overrides, *([f"outputs.folder={json.dumps(str(folder))}"] if folder else [])]
    with exit_codes(), Interruptions() as interruptions, display:
        if config is not None and run_id is not None:
            _check_free(config, changes, run_id)
        with watch.step("loading"):
            from ..federation.federation import Federation

        with redirect_stdout(sys.stderr):  # what the user's own modules print as they load
            if config is not None:
                federation = Federation(config, overrides=changes, observers=[display], ahead=True)
            elif parent is not None:
                federation = _continued(folder or Path("runs"), parent, [display], overrides)
            else:
                federation = _reopened(folder or Path("runs"), resume or "", [display], overrides)
        try:
            if config is not None or parent is not None:
                federation.run(run_id=run_id, parent=parent)
            else:
                federation.resume(resume or "")
        finally:
            interruptions.shield()
            federation.close()


def _check_free(config: Path, changes: Sequence[str], run_id: str) -> None:
    """Refuse a run id that is taken before data, model and Ray are loaded for nothing."""
    from ..config import load_config
    from ..federation.run_folder.folder import check_free

    check_free(Path(load_config(config, changes).outputs.folder), run_id)


def _reopened(
    root: Path,
    run_id: str,
    observers: Sequence[Callable[..., None]],
    overrides: Sequence[str],
) -> Federation:
    """The federation of an earlier run, from the config in its folder and what changes of it."""
    from ..federation.run_folder.folder import RunFolder

    with RunFolder.open(root, run_id) as folder:
        return _as_in(folder, root, observers, overrides)


def _continued(
    root: Path,
    parent: str,
    observers: Sequence[Callable[..., None]],
    overrides: Sequence[str],
) -> Federation:
    """The federation of an earlier run, for a new one."""
    from ..federation.continuing import find
    from ..federation.run_folder.folder import RunFolder

    with RunFolder.reading(find(root, parent)) as folder:
        return _as_in(folder, root, observers, overrides)


def _as_in(
    folder: RunFolder,
    root: Path,
    observers: Sequence[Callable[..., None]],
    overrides: Sequence[str],
) -> Federation:
    from ..config import load_config
    from ..federation.federation import Federation

    saved = load_config(folder.path / "config.yaml", overrides)
    here = saved.model_copy(
        update={"outputs": saved.outputs.model_copy(update={"folder": str(root)})}
    )
    search = folder.manifest().get("search", [])
    name = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{8}$", "", folder.run_id)
    return Federation(here, observers=observers, search=search, name=name)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@SET
@click.option(
    "--code",
    "archive",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the archive of your own modules that would go to sites, for their admins to "
    "look at: its SHA-256 is what a policy allows.",
)
@JSON
def check(config: Path, overrides: Sequence[str], archive: Path | None, as_json: bool) -> None:
    """Validate CONFIG, load its data, build its model; print it as resolved. Starts nothing.

    \b
    Examples:
      fedpilot check my.yaml
      fedpilot check my.yaml --code my-code.zip
      fedpilot check my.yaml --set data.dirichlet_beta=0.1 --json
    """
    with exit_codes():
        from ..config import to_yaml
        from ..federation.federation import Federation

        federation = Federation(config, overrides=overrides)
        if archive is not None:
            _write_code(federation, config, archive)
        federation.settle_execution()
        found = federation.describe()
        labels = found.labels_mean
        facts = {
            "clients": found.number_of_clients,
            "clients_per_round": federation.cohort_size,
            "groups": _groups(federation),
            "sites": list(federation.config.sites.names),
            "samples_per_client": [found.samples_min, found.samples_median, found.samples_max],
            "labels_per_client": None if labels is None else round(labels, 2),
            "parameters": federation.parameters,
            "bytes_of_updates": federation.bytes_of_updates,
            "bytes_of_round": federation.bytes_of_round,
            "rounds_within_budget": federation.rounds_within_budget(),
            "identity": federation.identity,
            "code_digest": federation.code_digest,
            "code_digests": list(federation.code.digests),
            "code_files": list(federation.code.files),
            "data_digest": federation.data_digest,
        }
        if as_json:
            resolved = federation.config.model_dump(mode="json")
            click.echo(json.dumps({"config": resolved, **facts}, indent=2))
            return
        click.echo(to_yaml(federation.config), nl=False)
        click.echo(
            f"\n# {config} is right: {found.number_of_clients:,} clients"
            f"{_holding(found)},\n# "
            f"{federation.cohort_size:,} per round; {federation.parameters:,} parameters; "
            f"identity {federation.identity[:16]}{_grouped(federation)}{_apart(federation)}"
            f"{_kept(federation)}{_budgeted(federation)}{_code(federation)}"
        )


def _holding(found: PartitionSummary) -> str:
    """How many samples clients hold; nothing where their sites do not say."""
    if found.samples_median is None:
        return ""
    span = f"{found.samples_min} to {found.samples_max}"
    return f" of {span} samples (median {found.samples_median:g})"


def _groups(federation: Federation) -> dict[str, Any] | None:
    """Who average among themselves; nothing in a star, no numbers where only the sites know."""
    if (hierarchy := federation.config.hierarchy) is None:
        return None
    groups = federation.groups
    sizes = [] if groups is None else groups.sizes.tolist()
    return {
        "by": hierarchy.groups.by,
        "count": len(sizes) or None,
        "clients": [min(sizes), max(sizes)] if sizes else None,
        "rounds_per_group": hierarchy.rounds_per_group,
    }


def _grouped(federation: Federation) -> str:
    """How many groups there are; nothing in a star."""
    if (found := _groups(federation)) is None:
        return ""
    each = f"{found['rounds_per_group']} rounds of each to a round of the federation"
    if found["count"] is None:
        return f"\n# groups by {found['by']}, as the sites find them; {each}"
    least, most = found["clients"]
    return (
        f"\n# {found['count']:,} groups by {found['by']}, of {least:,} to {most:,} clients: "
        f"{each};\n# at most {found['count']:,} workers have work"
    )


def _apart(federation: Federation) -> str:
    """How many sites will be started; nothing where there is one."""
    names = federation.config.sites.names
    return f"\n# {len(names)} sites on this machine: {', '.join(names)}" if len(names) > 1 else ""


def _kept(federation: Federation) -> str:
    """What it costs that an algorithm needs every update of a round; nothing where a sum does."""
    from ..prepare.update_costs import in_bytes

    if not (total := federation.bytes_of_updates):
        return ""
    return (
        f"\n# `{federation.config.federation.aggregation_strategy}` keeps every update of a round: "
        f"{federation.cohort_size:,} clients per round x "
        f"{in_bytes(total // federation.cohort_size)} = {in_bytes(total)} of memory,\n# "
        "up to three times while they are handed up"
    )


def _budgeted(federation: Federation) -> str:
    """How far the traffic budget goes; nothing where there is none."""
    from ..prepare.update_costs import in_bytes

    if (fits := federation.rounds_within_budget()) is None:
        return ""
    rounds, sites = federation.config.federation.rounds, len(federation.config.sites.names)
    enough = f"all {rounds:,}" if fits == rounds else f"at most {fits:,} of {rounds:,}"
    at = "one site" if sites == 1 else f"{sites} sites"
    return (
        f"\n# a round is {in_bytes(federation.bytes_of_round)} of traffic for each site: `traffic` "
        f"is enough for {enough} rounds\n# of {at}, if nothing has to be sent twice"
    )


def _write_code(federation: Federation, config: Path, archive: Path) -> None:
    """Write what would be sent; ConfigError for what cannot be."""
    from ..prepare.user_code import code_to_send
    from ..prepare.user_sources import import_paths

    code = code_to_send(federation.config, import_paths(config))
    if not code.archive:
        fail(f"{config} names no module of your own: there is no code to write", BAD_INPUT)
    try:
        archive.write_bytes(code.archive)
    except OSError as error:
        fail(f"{archive} cannot be written: {error.strerror or error}", BAD_INPUT)


def _code(federation: Federation) -> str:
    """The user's own code, with what sites' policies list of it; nothing where none is named."""
    code, lines = federation.code, []
    if code.files:
        some = ", ".join([*code.files[:SHOWN_FILES], *["..."][: len(code.files) > SHOWN_FILES]])
        lines += [f"# code that would go to sites: {some}", f"#   sha256 {code.archive_digest}"]
    if code.installed:
        named = ", ".join(code.installed)
        lines += [f"# installed code: {named}", f"#   sha256 {code.installed_digest}"]
    return "".join(f"\n{line}" for line in lines)


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
        rows = [
            {"name": f.name, "status": str(f.status), "found": f.found, "advice": f.advice}
            for f in findings
        ]
        click.echo(json.dumps({"findings": rows}, indent=2))
    else:
        marks = {"ok": "✓", "warn": "!", "fail": "✗"}
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            click.echo(f"{marks[str(finding.status)]} {finding.name:<{width}}  {finding.found}")
            if finding.advice:
                click.echo(f"  {'':<{width}}  → {finding.advice}")
    if any(str(finding.status) == "fail" for finding in findings):
        sys.exit(FAILED)
