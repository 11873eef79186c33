"""The command check: what a config resolves to, and what a run of it would be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.fabric.host.exit_codes import BAD_INPUT
from fedpilot.fabric.terminal.commands import exit_codes, fail
from fedpilot.fabric.terminal.console import print_json

from .options import JSON, SET

if TYPE_CHECKING:
    from ..core.population.partitions.summary import PartitionSummary
    from ..federation.federation import Federation

SHOWN_FILES = 4
"""Files of the user's own code that `check` names."""


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
            print_json({"config": federation.config.model_dump(mode="json"), **facts})
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
    from fedpilot.fabric.core.text.amounts import in_bytes

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
    from fedpilot.fabric.core.text.amounts import in_bytes

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
