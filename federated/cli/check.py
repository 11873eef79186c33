"""The command check: a config as resolved, and the run that it describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.common.terminal.commands import exit_codes, fail
from fedpilot.common.terminal.console import print_json

from .options import JSON, SET

if TYPE_CHECKING:
    from ..federation.federation import Federation
    from ..federation.setup.loaded_config import LoadedConfig

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
    help="Also write the archive of your own modules that sites would get. Their admins can review "
    "it, and allow its SHA-256 in policy.yaml.",
)
@JSON
def check(config: Path, overrides: Sequence[str], archive: Path | None, as_json: bool) -> None:
    """Validate CONFIG and print it with all default values.

    The command loads the data and builds the model, but starts nothing.

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
        federation.loaded.check_disk()
        facts = _facts(federation)
        if as_json:
            print_json({"config": federation.config.model_dump(mode="json"), **facts})
            return
        click.echo(to_yaml(federation.config), nl=False)
        lines = _summary(config, federation.loaded, facts)
        click.echo("\n" + "\n".join(f"# {line}" for line in lines))


def _facts(federation: Federation) -> dict[str, Any]:
    loaded = federation.loaded
    found = loaded.describe()
    labels = found.labels_mean
    return {
        "clients": found.number_of_clients,
        "clients_per_round": loaded.cohort_size,
        "groups": _groups(loaded),
        "graph": _graph(loaded),
        "vnode_classes": _vnode_classes(loaded),
        "spilled": _spilled(loaded),
        "sites": list(loaded.config.sites.names),
        "samples_per_client": [found.samples_min, found.samples_median, found.samples_max],
        "labels_per_client": None if labels is None else round(labels, 2),
        "parameters": loaded.inputs.parameters,
        "bytes_of_updates": loaded.bytes_of_updates,
        "bytes_of_round": loaded.inputs.costs(loaded.config).at_least,
        "rounds_within_budget": loaded.rounds_within_budget(federation.gang.sites),
        "identity": loaded.identity,
        "code_digest": loaded.code.digest,
        "code_digests": list(loaded.code.digests),
        "code_files": list(loaded.code.files),
        "data_digest": loaded.inputs.data_digest,
    }


def _spilled(loaded: LoadedConfig) -> dict[str, int] | None:
    """Bytes of the models that a graph's sites keep in files; None if all fit into memory."""
    from ..prepare.costs import models_limit

    if (spilled := loaded.spilling) is None:
        return None
    limit = models_limit(loaded.config)
    return {"limit": limit, "models": spilled.models, "disk": spilled.models + spilled.saved}


def _groups(loaded: LoadedConfig) -> dict[str, Any] | None:
    """The groups; None in a star, without numbers where only sites know them."""
    if (hierarchy := loaded.config.hierarchy) is None:
        return None
    groups = loaded.inputs.data.groups
    sizes = [] if groups is None else groups.sizes.tolist()
    return {
        "by": hierarchy.groups.by,
        "count": len(sizes) or None,
        "clients": [min(sizes), max(sizes)] if sizes else None,
        "rounds_per_group": hierarchy.rounds_per_group,
    }


def _vnode_classes(loaded: LoadedConfig) -> list[dict[str, Any]] | None:
    """The vnode classes; None for one, without clients where only sites know them."""
    import numpy as np

    from ..prepare.gang_request import gang_request

    if not (found := gang_request(loaded.config).groups):
        return None
    classes, everybody = loaded.inputs.classes, np.arange(loaded.inputs.population)
    counts = None
    if classes is not None:
        counts = np.bincount(classes.of(everybody), minlength=len(found)).tolist()
    return [
        {
            "name": each.name,
            "workers": [each.least, each.most],
            "clients": None if counts is None else counts[at],
        }
        for at, each in enumerate(found)
    ]


def _graph(loaded: LoadedConfig) -> dict[str, Any] | None:
    """The graph of the first round; None in a star and with groups."""
    if (graphs := loaded.inputs.graphs) is None:
        return None
    edges, exchange, sites = graphs.of_round(1), loaded.exchange, loaded.config.sites.names
    shares = loaded.shares_among(sites) if len(sites) > 1 else {}
    assert exchange is not None
    crossing = exchange.crossings(1, shares)
    return {
        "noised_by": list(_noised_by(loaded)),
        "crossing_models": int(crossing.states.sum()) * exchange.steps,
        "crossing_sums": int(crossing.sums.sum()) * exchange.steps,
        "crossing_bytes": int(crossing.nbytes(exchange.sizes).sum()) * exchange.steps,
        "edges": len(edges) // 2 if edges.is_symmetric else len(edges),
        "neighbors": [int(edges.received.min()), int(edges.received.max())],
        "changes": graphs.changes,
        "self_loops": graphs.loops,
    }


def _noised_by(loaded: LoadedConfig) -> tuple[str, ...]:
    """The sites whose noise decides which graph the clients get."""
    union, graph = loaded.inputs.union, loaded.config.graph
    if union is None or graph is None or graph.adapt is None:
        return ()
    return union.noised_labels


def _summary(path: Path, loaded: LoadedConfig, facts: Mapping[str, Any]) -> Iterator[str]:
    from fedpilot.common.text.amounts import counted, in_bytes

    from ..config.telling import at_sites
    from ..prepare.user_code.user_sources import own_code

    federation, code, cohort = loaded.config.federation, loaded.code, facts["clients_per_round"]
    least, median, most = facts["samples_per_client"]
    holding = "" if median is None else f" of {least} to {most} samples (median {median:g})"
    yield f"{path} is valid: {facts['clients']:,} clients{holding},"
    identity = facts["identity"][:16]
    yield f"{cohort:,} per round; {facts['parameters']:,} parameters; identity {identity}"
    if (groups := facts["groups"]) is not None:
        each = f"{groups['rounds_per_group']} rounds in each group per round of the federation"
        if (count := groups["count"]) is None:
            yield f"groups by {groups['by']}, formed at the sites; {each}"
        else:
            least, most = groups["clients"]
            yield f"{count:,} groups by {groups['by']}, of {least:,} to {most:,} clients: {each};"
            yield f"at most {count:,} workers have work"
    if (graph := facts["graph"]) is not None:
        least, most = graph["neighbors"]
        each = f"{most}" if least == most else f"{least} to {most}"
        changing = ", others in each round" if graph["changes"] else ""
        edges = f"{graph['edges']:,} edges, {each} for each client{changing}"
        yield f"`{federation.topology}` with {edges}; the run's model is the mean of all models"
        if loops := graph["self_loops"]:
            count = "counts" if loops == 1 else "count"
            yield f"{counted(loops, 'edge')} of a client to itself {count} for nothing"
        if noisy := ", ".join(graph["noised_by"]):
            yield f"`graph.adapt` gets labels with noise of site {noisy}: with the same clients at"
            yield "other sites it may find another graph, and so other bits"
    if (classes := facts["vnode_classes"]) is not None:
        yield f"vnode classes: {', '.join(map(_class_in_words, classes))}"
    sites = facts["sites"]
    if len(sites) > 1:
        yield f"{len(sites)} sites on this machine: {', '.join(sites)}"
        if graph is not None:
            crossing = in_bytes(graph["crossing_bytes"])
            sums = graph["crossing_sums"]
            beside = f" and {counted(sums, 'partial sum')}" if sums else ""
            models = f"{graph['crossing_models']:,} models{beside} ({crossing})"
            when = "the first round" if graph["changes"] else "a round"
            yield f"about {models} cross between them in {when}"
    if (spilled := facts["spilled"]) is not None:
        models, disk = in_bytes(spilled["models"]), in_bytes(spilled["disk"])
        limit = in_bytes(spilled["limit"])
        yield f"the clients' models, before and after a round, are {models}: more than the"
        yield f"{limit} of `resources.store_bytes` at a site, so they lie in files;"
        yield f"with those saved they take up to {disk} of disk"
    if total := facts["bytes_of_updates"]:
        yield (
            f"`{federation.aggregation_strategy}` keeps every update of a round: {cohort:,} "
            f"clients per round x {in_bytes(total // cohort)} = {in_bytes(total)} of memory,"
        )
        yield "and up to three times as much while workers return them"
    if (fits := facts["rounds_within_budget"]) is not None:
        rounds = federation.rounds
        enough = f"all {rounds:,}" if fits == rounds else f"at most {fits:,} of {rounds:,}"
        moved = f"a round needs {in_bytes(facts['bytes_of_round'])} of traffic for each site"
        yield f"{moved}: `traffic` is enough for {enough} rounds"
        at = "one site" if len(sites) == 1 else f"{len(sites)} sites"
        yield f"of {at}, if no transfer is repeated"
    if code.files:
        some = ", ".join([*code.files[:SHOWN_FILES], *["..."][: len(code.files) > SHOWN_FILES]])
        goes = own_code(at_sites(loaded.config))
        where = "code that would go to sites" if goes else "code that only the coordinator runs"
        yield f"{where}: {some}"
        yield f"  sha256 {code.archive_digest}"
    if code.installed:
        yield f"installed code: {', '.join(code.installed)}"
        yield f"  sha256 {code.installed_digest}"


def _class_in_words(found: Mapping[str, Any]) -> str:
    from fedpilot.common.text.amounts import counted

    least, most = found["workers"]
    workers = counted(most, "worker") if least == most else f"{least} to {most} workers"
    clients = "those that sites find" if found["clients"] is None else f"{found['clients']:,}"
    noun = "" if found["clients"] is None else f" client{'' if found['clients'] == 1 else 's'}"
    return f"{found['name']} ({workers}) for {clients}{noun}"


def _write_code(federation: Federation, config: Path, archive: Path) -> None:
    """Write the archive to send; raises ConfigError for code that cannot travel."""
    from ..prepare.user_code.user_code import code_to_send
    from ..prepare.user_code.user_sources import import_paths

    code = code_to_send(federation.config, import_paths(config))
    if not code.archive:
        fail(f"{config} names no module of your own: there is no code to write", BAD_INPUT)
    try:
        archive.write_bytes(code.archive)
    except OSError as error:
        fail(f"{archive} cannot be written: {error.strerror or error}", BAD_INPUT)
