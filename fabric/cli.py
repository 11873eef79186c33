"""The commands about virtual clusters: `fedpilot cluster`. Thin: parse, ask the manager, print.

What is asked for goes to stdout, as text or as one JSON document; everything else to stderr.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import click

from .core.records import ROOT, ClusterId, SchedulingPolicy
from .errors import (
    ClusterUnreachable,
    FabricError,
    NameTaken,
    NeverFits,
    NoSuchCluster,
    NotInTime,
    SpecError,
)
from .spec import FixedSizeNode, FixedSizeNodes, VirtualCluster

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from .virtual_clusters import VirtualClusters

FAILED, BAD_INPUT, REFUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 130
FIRST_POLL_S, LAST_POLL_S = 0.2, 2.0
"""How often a waiting one is looked at: at first, and after a while."""
PLAIN_WIDTH = 120
"""Columns where there is no terminal to ask."""
EVENTS = 20
"""How much of the history `explain` prints; `--json` gives all."""
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
AMOUNTS = "NAME=AMOUNT[,...]"
Command = TypeVar("Command", bound=Callable[..., Any])


class Opened(Protocol):
    """Attaches to a Ray cluster: what the context of `fedpilot` carries in tests."""

    def __call__(
        self, address: str, auth_mode: str | None, /
    ) -> AbstractContextManager[VirtualClusters]: ...


@contextmanager
def attached(address: str, auth_mode: str | None) -> Iterator[VirtualClusters]:
    """Be a driver of the Ray cluster at an address."""
    from .ray_cluster import RayCluster
    from .virtual_clusters import VirtualClusters

    with RayCluster.connect(address, auth_mode):
        yield VirtualClusters()


def _with_access(command: Command) -> Command:
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


@click.group()
def cluster() -> None:
    """Share one Ray cluster: virtual clusters that get their places as a whole, or wait for them.

    They stay until they are deleted. The first command makes their manager, an actor on the head
    machine.

    \b
    Examples:
      fedpilot cluster create vision --node 2xCPU=4,GPU=1 --policy STRICT_SPREAD
      fedpilot cluster create speech --min CPU=8 --max CPU=32
      fedpilot cluster tree
      fedpilot cluster explain speech
      fedpilot cluster delete vision speech
    """


@cluster.command()
@click.argument("name")
@click.option(
    "--spec",
    "spec_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A YAML file; - for stdin.",
)
@click.option("--json-spec", metavar="JSON", help="The same as text.")
@click.option(
    "--min", "least", metavar=AMOUNTS, multiple=True, help="Flexible resources it needs to start."
)
@click.option(
    "--max", "most", metavar=AMOUNTS, multiple=True, help="The most flexible resources it may hold."
)
@click.option(
    "--node",
    "nodes",
    metavar=f"[COUNTx]{AMOUNTS}",
    multiple=True,
    help="A fixed-size node, or COUNT equal ones. May be given several times.",
)
@click.option(
    "--policy",
    type=click.Choice([str(policy) for policy in SchedulingPolicy]),
    help="How the fixed-size nodes lie on machines; by default PACK.",
)
@click.option("--parent", metavar="NAME", help="Make it inside this virtual cluster.")
@click.option(
    "--priority",
    type=int,
    default=0,
    show_default=True,
    help="The higher is served first, where the manager serves by priority.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long this command waits for the places; 0 only asks for them.",
)
@click.option(
    "--deadline",
    "deadline_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="Give up, and leave the queue, if it has not got its places by then. By default never.",
)
@_with_access
def create(
    name: str,
    spec_file: Path | None,
    json_spec: str | None,
    least: Sequence[str],
    most: Sequence[str],
    nodes: Sequence[str],
    policy: str | None,
    parent: str | None,
    priority: int,
    wait_s: float,
    deadline_s: float | None,
    address: str,
    auth_mode: str | None,
    as_json: bool,
) -> None:
    """Reserve virtual cluster NAME: all that it needs at once, or it waits in the queue.

    What it needs comes from --spec, from --json-spec, or from --min, --max, --node and --policy;
    without any of them it needs nothing, and may grow to all that is free. AMOUNTS are such as
    CPU=2,GPU=0.5,memory=4GiB. Asking again for what is there already changes nothing.

    Where the places are not free within --wait, it goes on waiting without this command, which then
    ends with code 3, so that `create ... && use it` is safe; with `--wait 0` it ends with code 0.
    Ctrl-C ends this command only. Use --deadline to have it leave the queue.

    \b
    Examples:
      fedpilot cluster create vision --node 2xCPU=4,GPU=1 --policy STRICT_SPREAD
      fedpilot cluster create speech --min CPU=8 --max CPU=32 --wait 600
      fedpilot cluster create speech-eval --node CPU=2 --parent speech --wait 0
      fedpilot cluster create tabular --spec tabular.yaml --deadline 3600
      echo '{flex_resource_min: {CPU: 1}}' | fedpilot cluster create small --spec -

    \b
    Exit codes: 0 active (or asked for, with --wait 0); 2 the spec or the name is wrong;
    3 it waits still, gave up, or could never fit; 4 no Ray there; 130 interrupted, it waits on.
    """
    with _exit_codes():
        spec = _spec(spec_file, json_spec, least, most, nodes, policy)
        _check_name(name)
        asked_at = time.time()
        asked = False
        say = _Commands(address, auth_mode)
        try:
            with (
                _interruptions(),
                _Spinner(f"asking {_place(address)} for {name}") as spinner,
                _open(address, auth_mode) as clusters,
            ):
                asked = True
                found = clusters.create(
                    name,
                    spec,
                    parent=parent or ROOT,
                    priority=priority,
                    wait_s=min(wait_s, FIRST_POLL_S),
                    deadline_s=deadline_s,
                    detached=True,
                )
                found = _follow(clusters, found, asked_at, wait_s, spinner)
        except KeyboardInterrupt:
            if not asked:
                _fail("interrupted; nothing was asked for", INTERRUPTED)
            _fail(
                f"interrupted; {name} keeps its place in the queue\n"
                f"  look at it: {say('explain', name)}\n  give it up: {say('delete', name)}",
                INTERRUPTED,
            )
        active = found["state"] not in ("waiting", "starting")
        new = found["asked_at"] >= asked_at
        if as_json:
            _print_json({**found, "created": new})
        else:
            _print_created(found, new=new, say=say)
    sys.exit(0 if active or wait_s == 0 else REFUSED)


def _follow(
    clusters: VirtualClusters,
    found: Mapping[str, Any],
    asked_at: float,
    wait_s: float,
    spinner: _Spinner,
) -> Mapping[str, Any]:
    """Look at one that waits until it is active or the time is over."""
    from .tree import duration, ending, ordinal, short

    name, pause = found["id"], FIRST_POLL_S
    until = time.time() + wait_s - min(wait_s, FIRST_POLL_S)
    most = duration(wait_s)
    while found["state"] in ("waiting", "starting") and (left := until - time.time()) > 0:
        place = f"{ordinal(found['position'])} in line: " if found["position"] else ""
        waited = duration(wait_s - left)
        spinner.say(
            f"{name} is {found['state']}, {waited} of {most}: {place}{short(found['reason'])}"
        )
        time.sleep(min(pause, left))
        pause = min(LAST_POLL_S, pause * 1.2)
        try:
            found = clusters.show(name)
        except NoSuchCluster:
            last = ending(clusters.history(), name)
            why = last["reason"] if last else "it was deleted"
            raise NotInTime(name, time.time() - asked_at, why) from None
    return found


def _print_created(found: Mapping[str, Any], *, new: bool, say: _Commands) -> None:
    from .tree import holding, ordinal, short, status

    name = found["id"]
    console = _console()
    already = "" if new else " (it was asked for already, in the same way)"
    if found["state"] not in ("waiting", "starting"):
        console.print(status(found), f"{name}{already} holds {holding(found)}")
        return
    place = f", {ordinal(found['position'])} in line" if found["position"] else ""
    console.print(status({**found, "position": None}), f"{name}{already}{place}")
    if found["reason"]:
        console.print(f"  {short(found['reason'])}")
    console.print(f"  why, and what helps: {say('explain', name)}", soft_wrap=True)
    console.print(f"  give it up:          {say('delete', name)}", soft_wrap=True)


@cluster.command("list")
@_with_access
def list_(address: str, auth_mode: str | None, as_json: bool) -> None:
    """List the virtual clusters, each followed by those inside it.

    `default` is what runs on Ray outside all of them.

    \b
    Examples:
      fedpilot cluster list
      fedpilot cluster list --json | jq -r '.clusters[] | select(.state == "waiting") | .id'
    """
    with _exit_codes():
        document = _ask(address, auth_mode, lambda clusters: clusters.snapshot())
        if as_json:
            _print_json({"clusters": document["clusters"]})
            return
        from .tree import table

        _print(table(document, time.time()))


@cluster.command()
@click.argument("name")
@_with_access
def show(name: str, address: str, auth_mode: str | None, as_json: bool) -> None:
    """Show virtual cluster NAME: what it holds where, what it borrowed, what it asked for.

    \b
    Examples:
      fedpilot cluster show vision
      fedpilot cluster show vision --json | jq '.nodes[].hostname'
    """
    with _exit_codes():
        from .snapshot import find

        document = _ask(address, auth_mode, lambda clusters: clusters.snapshot())
        found = find(document, name)
        if as_json:
            _print_json(found)
            return
        from .tree import details

        _print(details(document, name, time.time()))


@cluster.command()
@_with_access
def tree(address: str, auth_mode: str | None, as_json: bool) -> None:
    """Draw the Ray cluster: what its machines have, who holds it, who waits for what.

    All bars have one scale: that of a virtual cluster lies where its share of the Ray cluster is,
    and those inside it lie below its own.

    \b
    Examples:
      fedpilot cluster tree
      fedpilot cluster tree --address 10.0.0.5:6379
      fedpilot cluster tree --json | jq '.machines[] | {hostname, available}'
    """
    with _exit_codes():
        document = _ask(address, auth_mode, lambda clusters: clusters.snapshot())
        if as_json:
            _print_json(document)
            return
        from .tree import picture

        _print(picture(document, time.time()))


@cluster.command()
@click.argument("name")
@_with_access
def explain(name: str, address: str, auth_mode: str | None, as_json: bool) -> None:
    """Say why virtual cluster NAME is in its state, what would help, and what has happened to it.

    Also tells how one ended that is no more, as long as the manager remembers.

    \b
    Examples:
      fedpilot cluster explain speech
      fedpilot cluster explain speech --json | jq -r '.sentences[]'
    """
    with _exit_codes():
        from .tree import chronicle, sentences

        document, history = _ask(
            address, auth_mode, lambda clusters: (clusters.snapshot(), clusters.history())
        )
        now = time.time()
        said = sentences(document, name, history, now)
        if as_json:
            there = [each for each in document["clusters"] if each["id"] == name]
            told = [dict(event) for event in history if event["cluster"] == name]
            _print_json(
                {
                    "id": name,
                    "state": there[0]["state"] if there else "ended",
                    "sentences": said,
                    "history": told,
                    "cluster": there[0] if there else None,
                }
            )
            return
        console = _console()
        for sentence in said:
            console.print(sentence)
        if any(event["cluster"] == name for event in history):
            console.print()
            console.print(chronicle(history, name, now, EVENTS))


@cluster.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All virtual clusters of the Ray cluster.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_with_access
def delete(
    names: Sequence[str],
    everything: bool,
    yes: bool,
    address: str,
    auth_mode: str | None,
    as_json: bool,
) -> None:
    """End virtual clusters, with all that is inside them and all that runs there.

    Asks before it ends any that was not named: with --all, or those inside. Where nobody can be
    asked, it needs --yes for that.

    \b
    Examples:
      fedpilot cluster delete vision
      fedpilot cluster delete speech tabular --yes
      fedpilot cluster delete --all --yes --json
    """
    if bool(names) == everything:
        raise click.UsageError("give either NAME..., or --all.")
    with _exit_codes(), _open(address, auth_mode) as clusters:
        document = clusters.snapshot()
        named = _to_delete(document, names, everything)
        doomed = _with_children(document, named)
        surprising = [each for each in doomed if each not in names]
        if surprising and not yes:
            _confirm(doomed, surprising, as_json)
        ended: list[str] = []
        for name in named:
            try:
                ended += clusters.delete(name)
            except NoSuchCluster:  # it ended before we came to it, as it was to
                continue
        if as_json:
            _print_json({"ended": ended})
            return
        for name in ended:
            click.echo(f"ended {name}")
        if not ended:
            click.echo("there was nothing to end")


def _to_delete(document: Mapping[str, Any], names: Sequence[str], everything: bool) -> list[str]:
    """The names in the document; NoSuchCluster before anything is ended."""
    from .keeper import DEFAULT

    there = [each["id"] for each in document["clusters"] if each["id"] != DEFAULT]
    if everything:
        parents = {each["id"]: each["parent"] for each in document["clusters"]}
        return [name for name in there if parents[name] == ROOT]
    for name in names:
        if name == DEFAULT:
            _fail(f"{name} is what runs outside all virtual clusters: it stays", BAD_INPUT)
        if name not in there:
            raise NoSuchCluster(name, there)
    return list(dict.fromkeys(names))


def _with_children(document: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """These and all inside them, those that wait too."""
    doomed = list(names)
    for each in document["clusters"]:  # parents come before their children
        if each["parent"] in doomed and each["id"] not in doomed:
            doomed.append(each["id"])
    return doomed


def _confirm(doomed: Sequence[str], surprising: Sequence[str], as_json: bool) -> None:
    from .tree import listed

    if as_json or not sys.stdin.isatty():
        _fail(f"that would also end {listed(surprising)}; say --yes if it shall", BAD_INPUT)
    click.confirm(f"End {listed(doomed, 20)}, and all that runs there?", abort=True, err=True)


# -- what was asked for ---------------------------------------------------------------------------


def _spec(
    spec_file: Path | None,
    json_spec: str | None,
    least: Sequence[str],
    most: Sequence[str],
    nodes: Sequence[str],
    policy: str | None,
) -> VirtualCluster:
    """The spec, from wherever it is given; SpecError names the place and the key."""
    given = [spec_file is not None, json_spec is not None, bool(least or most or nodes or policy)]
    if sum(given) > 1:
        raise click.UsageError(
            "give one of --spec FILE, --json-spec JSON, or --min, --max, --node and --policy."
        )
    if spec_file is not None:
        return _from_yaml(spec_file)
    if json_spec is not None:
        try:
            document = json.loads(json_spec)
        except ValueError as error:
            raise SpecError(f"--json-spec: wanted JSON, found {json_spec!r}: {error}") from error
        with _naming("--json-spec"):
            return VirtualCluster.from_dict(document)
    if policy and not nodes:
        raise click.UsageError("--policy says how fixed-size nodes lie; give --node too.")
    group = [node for text in nodes for node in _nodes(text)]
    how = SchedulingPolicy(policy or SchedulingPolicy.PACK)
    with _naming("--min, --max"):
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
    with _naming(f"--node {text}"):
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
def _naming(where: str) -> Iterator[None]:
    """Say where a spec comes from that is wrong."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error


def _check_name(name: str) -> None:
    """Refuse a name before anything is started."""
    from .virtual_clusters import request_for

    request_for(name, VirtualCluster(), parent=ClusterId(ROOT))


# -- asking and printing --------------------------------------------------------------------------

Answer = TypeVar("Answer")


def _ask(
    address: str, auth_mode: str | None, question: Callable[[VirtualClusters], Answer]
) -> Answer:
    with _Spinner(f"asking {_place(address)}"), _open(address, auth_mode) as clusters:
        return question(clusters)


def _place(address: str) -> str:
    return "the Ray of this machine" if address == "auto" else address


def _open(address: str, auth_mode: str | None) -> AbstractContextManager[VirtualClusters]:
    opened: Opened = click.get_current_context().obj or attached
    return opened(address, auth_mode)


class _Spinner:
    """Says on a terminal what is waited for; nothing elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: AbstractContextManager[Any] = nullcontext()

    def say(self, text: str) -> None:
        """Something else is waited for now."""
        from rich.text import Text

        if not isinstance(self._status, nullcontext):
            self._status.update(Text(text))  # type: ignore[attr-defined]

    def __enter__(self) -> _Spinner:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.text import Text

            self._status = Console(stderr=True).status(Text(self._text))
        self._status.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._status.__exit__(*error)


class _Commands:
    """Writes the commands that lead on, with the options that lead here."""

    def __init__(self, address: str, auth_mode: str | None) -> None:
        self._options = [] if address == "auto" else ["--address", address]
        self._options += ["--auth-mode", auth_mode] if auth_mode else []

    def __call__(self, command: str, name: str) -> str:
        return shlex.join(["fedpilot", "cluster", command, name, *self._options])


def _console() -> Console:
    from rich.console import Console

    plain = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(file=sys.stdout, width=plain, highlight=False, markup=False, emoji=False)


def _print(what: RenderableType) -> None:
    _console().print(what)


def _print_json(document: Mapping[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))


@contextmanager
def _interruptions() -> Iterator[None]:
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
def _exit_codes() -> Iterator[None]:
    """Turn what went wrong into a message on stderr and the exit code that docs promise."""
    try:
        yield
    except NeverFits as error:
        most = f"; at most {error.most} of its fixed-size nodes fit together" if error.most else ""
        _fail(f"{error}{most}", REFUSED)
    except FabricError as error:
        _fail(str(error), _code_of(error))
    except BrokenPipeError:
        sys.exit(FAILED)  # nobody reads any more
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _code_of(error: FabricError) -> int:
    match error:
        case SpecError() | NameTaken() | NoSuchCluster():
            return BAD_INPUT
        case NotInTime():
            return REFUSED
        case ClusterUnreachable():
            return UNREACHABLE
    return FAILED


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"fedpilot: {message}", err=True)
    sys.exit(code)
