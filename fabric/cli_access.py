"""What the commands of the fabric share: how they reach Ray, take a spec, print, and end.

What is asked for goes to stdout, as text or as one JSON document; everything else to stderr.
"""

from __future__ import annotations

import json
import math
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from .core.records import ROOT, ClusterId, SchedulingPolicy
from .errors import (
    ClusterUnreachable,
    FabricError,
    ManagerUnreachable,
    NameTaken,
    NeverFits,
    NoSuchCluster,
    NotInTime,
    SpecError,
)
from .spec import FixedSizeNode, FixedSizeNodes, VirtualCluster

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FAILED, BAD_INPUT, REFUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 130
PLAIN_WIDTH = 120
"""Columns where there is no terminal to ask."""
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
AMOUNTS = "NAME=AMOUNT[,...]"
Command = TypeVar("Command", bound=Callable[..., Any])


def with_access(command: Command) -> Command:
    """Add what every command needs to reach a Ray cluster, and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, no text."),
        click.option(
            "--auth-mode",
            type=click.Choice(["disabled", "token"]),
            help="How Ray authenticates; by default RAY_AUTH_MODE, or else disabled. For token, "
            "RAY_AUTH_TOKEN_PATH names the file of the token.",
        ),
        click.option(
            "--address",
            metavar="HOST:PORT",
            default="auto",
            show_default=True,
            help="The head of the Ray cluster; auto is RAY_ADDRESS, or the Ray that was started "
            "last on this machine.",
        ),
    ):
        command = option(command)
    return command


# -- what was asked for ---------------------------------------------------------------------------


def with_spec(json_option: str) -> Callable[[Command], Command]:
    """Add the ways to say what a virtual cluster is; `spec_from` takes what they find."""

    def add(command: Command) -> Command:
        for option in (
            click.option(
                "--policy",
                type=click.Choice([str(policy) for policy in SchedulingPolicy]),
                help="How the fixed-size nodes lie on machines; by default PACK.",
            ),
            click.option(
                "--node",
                "nodes",
                metavar=f"[COUNTx]{AMOUNTS}",
                multiple=True,
                help="A fixed-size node, or COUNT equal ones. May be given several times.",
            ),
            click.option(
                "--max",
                "most",
                metavar=AMOUNTS,
                multiple=True,
                help="The most flexible resources it may hold.",
            ),
            click.option(
                "--min",
                "least",
                metavar=AMOUNTS,
                multiple=True,
                help="Flexible resources it needs to start.",
            ),
            click.option(json_option, "json_spec", metavar="JSON", help="The same as text."),
            click.option(
                "--spec",
                "spec_file",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="A YAML file; - for stdin.",
            ),
        ):
            command = option(command)
        return command

    return add


def spec_from(
    spec_file: Path | None,
    json_spec: str | None,
    least: Sequence[str],
    most: Sequence[str],
    nodes: Sequence[str],
    policy: str | None,
    json_option: str = "--json-spec",
) -> VirtualCluster:
    """The spec, from wherever it is given; SpecError names the place and the key."""
    given = [spec_file is not None, json_spec is not None, bool(least or most or nodes or policy)]
    if sum(given) > 1:
        raise click.UsageError(
            f"give one of --spec FILE, {json_option} JSON, or --min, --max, --node and --policy."
        )
    if spec_file is not None:
        return _from_yaml(spec_file)
    if json_spec is not None:
        try:
            document = json.loads(json_spec)
        except ValueError as error:
            raise SpecError(f"{json_option}: wanted JSON, found {json_spec!r}: {error}") from error
        with naming(json_option):
            return VirtualCluster.from_dict(document)
    if policy and not nodes:
        raise click.UsageError("--policy says how fixed-size nodes lie; give --node too.")
    group = [node for text in nodes for node in _nodes(text)]
    how = SchedulingPolicy(policy or SchedulingPolicy.PACK)
    with naming("--min, --max"):
        return VirtualCluster(
            flex_resource_min=_amounts("--min", least),
            flex_resource_max=_amounts("--max", most),
            fixed_size_nodes=[FixedSizeNodes(nodes=group, scheduling_policy=how)] if group else [],
        )


def _nodes(text: str) -> list[FixedSizeNode]:
    """`CPU=1` is a node, `4xCPU=1` are four."""
    count, times, rest = text.partition("x")
    if not (times and count.isdecimal()):
        count, rest = "1", text
    if int(count) == 0:
        raise click.BadParameter(f"wanted one node or more, found {text!r}", param_hint="--node")
    with naming(f"--node {text}"):
        return [FixedSizeNode(resources=_amounts("--node", [rest]))] * int(count)


def _amounts(option: str, texts: Sequence[str]) -> dict[str, float]:
    """`CPU=2,memory=4GiB` as amounts by name."""
    found: dict[str, float] = {}
    for part in ",".join(texts).split(",") if texts else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        number = re.fullmatch(rf"(.*?)\s*({'|'.join(BINARY)})?", value)
        try:
            amount = float(number[1]) * BINARY.get(number[2], 1) if number else math.nan
        except ValueError:
            amount = math.nan
        if not (name and equals and math.isfinite(amount) and amount >= 0):
            raise click.BadParameter(
                f"wanted {AMOUNTS} such as CPU=2,GPU=0.5,memory=4GiB, found {part.strip()!r}",
                param_hint=option,
            )
        if name in found:
            raise click.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = amount
    return found


def _from_yaml(file: Path) -> VirtualCluster:
    """Read a spec; what is wrong is told with its line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    path = "stdin" if str(file) == "-" else str(file)
    try:
        text = sys.stdin.read() if path == "stdin" else file.read_text(encoding="utf-8")
        document = YAML(typ="safe").load(text)
    except OSError as error:
        raise SpecError(f"{path}: it cannot be read: {error.strerror or error}") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        what = " ".join((error.problem or error.context or "this is not YAML").split())
        raise SpecError(f"{path}{line}: {what}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: this is not YAML: {error}") from error
    try:
        return VirtualCluster.from_dict(document)
    except SpecError as error:
        line = _line(YAML(typ="rt").load(text), str(error))
        raise SpecError(f"{path}{line}: {error}") from error


def _line(document: Any, message: str) -> str:
    """The line of the key that a message begins with, as far as the document has it."""
    found = ""
    at, _, rest = message.partition(": ")
    unknown = re.match(r"unknown key '([^']*)'", rest)
    place = document
    for step in [*re.findall(r"[^.\[\]]+", at), *([unknown[1]] if unknown else [])]:
        if isinstance(place, list) and step.isdecimal() and int(step) < len(place):
            found = f":{place.lc.item(int(step))[0] + 1}"  # type: ignore[attr-defined]
            place = place[int(step)]
        elif isinstance(place, dict) and step in place:
            found = f":{place.lc.key(step)[0] + 1}"  # type: ignore[attr-defined]
            place = place[step]
        elif place is not document:
            break
    return found


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Say where a spec comes from that is wrong."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error


def check_name(name: str) -> None:
    """Refuse a name before anything is started."""
    from .virtual_clusters import request_for

    request_for(name, VirtualCluster(), parent=ClusterId(ROOT))


# -- printing, waiting, ending -------------------------------------------------------------------


def place_of(address: str) -> str:
    return "the Ray of this machine" if address == "auto" else address


class Spinner:
    """Says on a terminal what is waited for; nothing elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: AbstractContextManager[Any] = nullcontext()

    def say(self, text: str) -> None:
        """Something else is waited for now."""
        from rich.text import Text

        if not isinstance(self._status, nullcontext):
            self._status.update(Text(text))  # type: ignore[attr-defined]

    def __enter__(self) -> Spinner:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.text import Text

            self._status = Console(stderr=True).status(Text(self._text))
        self._status.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._status.__exit__(*error)


def stdout_console() -> Console:
    from rich.console import Console

    plain = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(file=sys.stdout, width=plain, highlight=False, markup=False, emoji=False)


def display(what: RenderableType) -> None:
    stdout_console().print(what)


def print_json(document: Mapping[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))


@contextmanager
def interruptions() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP interrupt once, and what follows from it be undisturbed."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }

    def interrupt(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what went wrong into a message on stderr and the exit code that docs promise."""
    try:
        yield
    except NeverFits as error:
        most = f"; at most {error.most} of its fixed-size nodes fit together" if error.most else ""
        fail(f"{error}{most}", REFUSED)
    except FabricError as error:
        fail(str(error), _code_of(error))
    except BrokenPipeError:
        sys.exit(FAILED)  # nobody reads any more
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _code_of(error: FabricError) -> int:
    from .errors import NoSuchJob

    match error:
        case SpecError() | NameTaken() | NoSuchCluster() | NoSuchJob():
            return BAD_INPUT
        case NotInTime():
            return REFUSED
        case ClusterUnreachable() | ManagerUnreachable():
            return UNREACHABLE
    return FAILED


def fail(message: str, code: int) -> NoReturn:
    click.echo(f"fedpilot: {message}", err=True)
    sys.exit(code)
