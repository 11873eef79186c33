"""The options for a spec (as YAML, as JSON or in parts), its queue and a deadline."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from fedpilot.common.strict_yaml.errors import BadFile, Path as YamlPath, printable
from fedpilot.common.strict_yaml.reading import Document, decoded, read, text_of
from fedpilot.common.text.amounts import bytes_of

from ..core.records import ROOT, ClusterId, SchedulingPolicy
from ..errors import SpecError
from ..spec import FixedSizeNode, FixedSizeNodes, QueueOptions, VirtualCluster, located
from .access import Command

AMOUNTS = "NAME=AMOUNT[,...]"
SPEC = (
    *("spec_file", "json_spec", "least", "most", "nodes", "min_nodes", "max_nodes", "policy"),
    "max_actors",
)
QUEUE = ("priority", "project", "pool", "priority_class", "preemptible")


def with_spec(json_option: str) -> Callable[[Command], Command]:
    """Add the options of a spec, as the argument `read_spec`.

    `read_spec` raises SpecError, which names the place and the key, or UsageError.
    """

    def add(command: Command) -> Command:
        @wraps(command)
        def with_reader(**options: Any) -> None:
            given = {name: options.pop(name) for name in SPEC}
            command(read_spec=partial(_spec_from, json_option, **given), **options)

        for option in (
            click.option(
                "--max-actors",
                metavar="COUNT",
                type=click.IntRange(min=0),
                help="Most actors that request no resources. Default: no limit.",
            ),
            click.option(
                "--policy",
                type=click.Choice([str(policy) for policy in SchedulingPolicy]),
                help="How to place the fixed-size nodes on machines. Default: PACK.",
            ),
            click.option(
                "--max-nodes",
                metavar="COUNT",
                type=click.IntRange(min=1),
                help="Most equal nodes. Those above the minimum are added while resources "
                "are free, and leave for others first. Default: as many as at the start.",
            ),
            click.option(
                "--min-nodes",
                metavar="COUNT",
                type=click.IntRange(min=1),
                help="Number of nodes like the one of --node that it needs to start. Default: 1.",
            ),
            click.option(
                "--node",
                "nodes",
                metavar=f"[COUNTx]{AMOUNTS}",
                multiple=True,
                help="Fixed-size node, or COUNT equal ones. May be given several times.",
            ),
            click.option(
                "--max",
                "most",
                metavar=AMOUNTS,
                multiple=True,
                help="Most flexible resources that it may hold.",
            ),
            click.option(
                "--min",
                "least",
                metavar=AMOUNTS,
                multiple=True,
                help="Flexible resources that it needs to start.",
            ),
            click.option(json_option, "json_spec", metavar="JSON", help="Spec as JSON text."),
            click.option(
                "--spec",
                "spec_file",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="YAML file with the spec; - for stdin.",
            ),
        ):
            option(with_reader)
        return with_reader

    return add


def with_queue(command: Command) -> Command:
    """Add the options of a place in line, as the argument `queue`: those that were given."""

    @wraps(command)
    def with_options(**options: Any) -> None:
        given = {name: options.pop(name) for name in QUEUE}
        queue = QueueOptions(**{name: v for name, v in given.items() if v is not None})  # type: ignore[typeddict-item]
        command(queue=queue, **options)

    for option in (
        click.option(
            "--preemptible/--no-preemptible",
            default=None,
            help="Whether it may be stopped for others. Default: as its priority class says.",
        ),
        click.option(
            "--priority-class",
            metavar="NAME",
            help="Priority class: train, build, or another one of the queues. Default: train.",
        ),
        click.option(
            "--pool",
            metavar="NAME",
            help="Node pool to run in. Default: the first that the project may use.",
        ),
        click.option(
            "--project",
            metavar="NAME",
            help="Project in whose queue it waits, and whose quota it uses. Default: default.",
        ),
        click.option(
            "--priority",
            type=int,
            help="Higher numbers are served first within a project. It never decides whether "
            "others may stop it. Default: 0.",
        ),
    ):
        option(with_options)
    return with_options


def with_deadline(what: str) -> Callable[[Command], Command]:
    """Add `--deadline`; `what` is the first sentence of its help."""
    return click.option(
        "--deadline",
        "deadline_s",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        help=f"{what} Default: never.",
    )


def _spec_from(
    json_option: str,
    spec_file: Path | None,
    json_spec: str | None,
    least: Sequence[str],
    most: Sequence[str],
    nodes: Sequence[str],
    min_nodes: int | None,
    max_nodes: int | None,
    policy: str | None,
    max_actors: int | None,
) -> VirtualCluster:
    counts = [each for each in (min_nodes, max_nodes, max_actors) if each is not None]
    options = bool(least or most or nodes or policy or counts)
    if sum([spec_file is not None, json_spec is not None, options]) > 1:
        raise click.UsageError(
            f"give one of --spec FILE, {json_option} JSON, or --min, --max, --node, --min-nodes, "
            "--max-nodes, --policy and --max-actors."
        )
    if spec_file is not None:
        return spec_in(spec_file)
    if json_spec is not None:
        document = from_json(json_option, json_spec)
        with located(json_option):
            return VirtualCluster.from_dict(document)
    if policy and not nodes:
        raise click.UsageError("--policy places fixed-size nodes; give --node too.")
    if (min_nodes or max_nodes) and not nodes:
        raise click.UsageError("--min-nodes and --max-nodes count nodes; give --node too.")
    group = [node for text in nodes for node in _nodes(text)]
    if min_nodes is not None:
        if len(group) > 1:
            raise click.UsageError(
                f"--min-nodes {min_nodes} counts nodes like one --node; found {len(group)}."
            )
        group *= min_nodes
    how = SchedulingPolicy(policy or SchedulingPolicy.PACK)
    with located("--node, --max-nodes"):
        groups = (
            [FixedSizeNodes(nodes=group, scheduling_policy=how, max_nodes=max_nodes)]
            if group
            else []
        )
    with located("--min, --max"):
        return VirtualCluster(
            flex_resource_min=_amounts("--min", least),
            flex_resource_max=_amounts("--max", most),
            fixed_size_nodes=groups,
            max_actors_without_resources=max_actors,
        )


def _nodes(text: str) -> list[FixedSizeNode]:
    """`CPU=1` is one node, `4xCPU=1` is four."""
    count, times, rest = text.partition("x")
    if not (times and count.isdecimal()):
        count, rest = "1", text
    if int(count) == 0:
        raise click.BadParameter(f"wanted one node or more, found {text!r}", param_hint="--node")
    with located(f"--node {text}"):
        return [FixedSizeNode(resources=_amounts("--node", [rest]))] * int(count)


def _amounts(option: str, texts: Sequence[str]) -> dict[str, float]:
    """`CPU=2,memory=4GiB` as amounts by name."""
    found: dict[str, float] = {}
    for part in ",".join(texts).split(",") if texts else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        try:
            amount = float(value)
        except ValueError:
            size = bytes_of(value)
            amount = math.nan if size is None else size
        if not (name and equals and math.isfinite(amount) and amount >= 0):
            raise click.BadParameter(
                f"wanted {AMOUNTS} such as CPU=2,GPU=0.5,memory=4GiB, found {part.strip()!r}",
                param_hint=option,
            )
        if name in found:
            raise click.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = amount
    return found


def from_json(option: str, text: str) -> Any:
    """Parse an option's JSON value; SpecError names the option."""
    with located(f"{option}: wanted JSON, found {text!r}"):
        return json.loads(text)


def spec_in(file: Path) -> VirtualCluster:
    """Read a spec in YAML. Raises BadFile, or SpecError with the line."""
    path = "stdin" if str(file) == "-" else printable(str(file), 200)
    text = decoded(sys.stdin.buffer.read(), path) if path == "stdin" else text_of(file)
    document = read(text, lambda line: f"{path}:{line}")
    if document.problems:
        raise BadFile([problem for _, problem in document.problems])
    try:
        return VirtualCluster.from_dict(document.value)
    except SpecError as error:
        raise SpecError(f"{path}{_line(document, str(error))}: {error}") from error


def _line(document: Document, message: str) -> str:
    """The line of the key that a message begins with, or of its closest parent in the document."""
    at, _, rest = message.partition(": ")
    unknown = re.match(r"unknown key '([^']*)'", rest)
    found = ""
    path: YamlPath = ()
    for step in [*re.findall(r"[^.\[\]]+", at), *([unknown[1]] if unknown else [])]:
        longer = (*path, int(step) if (*path, 0) in document.lines else step)
        if longer in document.lines:
            found, path = f":{document.lines[longer]}", longer
        elif path:
            break
    return found


def check_name(name: str, parent: str | None = None, queue: QueueOptions | None = None) -> None:
    """Raise SpecError for a bad name or place in line before anything is started."""
    VirtualCluster().request(name, parent=ClusterId(parent or ROOT), **(queue or {}))
