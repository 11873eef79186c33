"""The options for a spec (as YAML, as JSON or in parts), a priority and a deadline."""

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

from ..core.records import SchedulingPolicy
from ..errors import SpecError
from ..spec import FixedSizeNode, FixedSizeNodes, VirtualCluster, located
from .access import Command

AMOUNTS = "NAME=AMOUNT[,...]"
SPEC = ("spec_file", "json_spec", "least", "most", "nodes", "policy", "max_actors")


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


with_priority = click.option(
    "--priority",
    type=int,
    default=0,
    show_default=True,
    help="Higher numbers are served first, if the manager serves by priority.",
)


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
    policy: str | None,
    max_actors: int | None,
) -> VirtualCluster:
    options = bool(least or most or nodes or policy or max_actors is not None)
    if sum([spec_file is not None, json_spec is not None, options]) > 1:
        raise click.UsageError(
            f"give one of --spec FILE, {json_option} JSON, or --min, --max, --node, --policy and "
            "--max-actors."
        )
    if spec_file is not None:
        return spec_in(spec_file)
    if json_spec is not None:
        document = from_json(json_option, json_spec)
        with located(json_option):
            return VirtualCluster.from_dict(document)
    if policy and not nodes:
        raise click.UsageError("--policy places fixed-size nodes; give --node too.")
    group = [node for text in nodes for node in _nodes(text)]
    how = SchedulingPolicy(policy or SchedulingPolicy.PACK)
    with located("--min, --max"):
        return VirtualCluster(
            flex_resource_min=_amounts("--min", least),
            flex_resource_max=_amounts("--max", most),
            fixed_size_nodes=[FixedSizeNodes(nodes=group, scheduling_policy=how)] if group else [],
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


def check_name(name: str) -> None:
    """Raise SpecError for a bad name before anything is started."""
    VirtualCluster().request(name)
