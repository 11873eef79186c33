"""The commands about VirtualNodes of a run at a mediator: `fedpilot node`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from fedpilot.common.host.exit_codes import BAD_INPUT
from fedpilot.common.terminal.commands import CommandGroup, exit_codes, fail
from fedpilot.common.terminal.console import display, print_json
from fedpilot.common.text.plain_text import plain_line
from fedpilot.mediator.cli.access import JSON, Access, asking, with_mediator

if TYPE_CHECKING:
    from ..federation.remote.client import RemoteFederation

Answer = TypeVar("Answer")
RUN = click.option(
    "--run",
    "run_id",
    metavar="RUN",
    help="Id of the run. Default: the only run in progress at the mediator.",
)


@click.group(cls=CommandGroup)
def node() -> None:
    """List and explain the VirtualNodes of a run at a mediator.

    A VirtualNode is a client of the federation, and belongs to one site. It is only an id and a
    config until a worker there materializes it to train or to evaluate. Only the run's owner and
    admins may use these commands.

    \b
    Examples:
      fedpilot node list --run base --site paris
      fedpilot node show client_7
      fedpilot node explain client_7 --run base
    """


@node.command("list")
@RUN
@click.option("--site", metavar="NAME", default="", help="List only VirtualNodes of this site.")
@click.option(
    "--first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Skip this many VirtualNodes.",
)
@click.option(
    "--count",
    type=click.IntRange(min=0, max=1_000),
    default=100,
    show_default=True,
    metavar="N",
    help="List at most this many; the total counts all.",
)
@JSON
@with_mediator
def list_(
    run_id: str | None, site: str, first: int, count: int, access: Access, as_json: bool
) -> None:
    """List VirtualNodes with their sites and states.

    \b
    Examples:
      fedpilot node list --run base
      fedpilot node list --run base --site paris --json | jq .total
    """
    with exit_codes():
        found = _ask(
            access, run_id, lambda nodes: nodes.list_nodes(first=first, count=count, site=site)
        )
        if as_json:
            print_json(found)
            return
        from fedpilot.mediator.cli.tables import node_table

        if found["nodes"]:
            display(node_table(found["nodes"]))
        of = f" at {site}" if site else ""
        click.echo(f"{len(found['nodes']):,} of {found['total']:,} nodes{of}")


@node.command()
@click.argument("client_id", metavar="NODE")
@RUN
@JSON
@with_mediator
def show(client_id: str, run_id: str | None, access: Access, as_json: bool) -> None:
    """Show VirtualNode NODE: its site, state, worker and samples.

    \b
    Examples:
      fedpilot node show client_7
      fedpilot node show client_7 --run base --json | jq -r .site
    """
    with exit_codes():
        found = _ask(access, run_id, lambda nodes: dict(nodes.show(nodes[client_id].index)))
        if as_json:
            print_json({"id": client_id, **found})
            return
        from fedpilot.common.terminal.layout import named

        facts = named()
        for name in ("id", "site", "state", "worker", "reason", "samples"):
            value = {"id": client_id, **found}.get(name)
            if value not in (None, ""):
                facts.add_row(name, plain_line(value))
        display(facts)


@node.command()
@click.argument("client_id", metavar="NODE")
@RUN
@JSON
@with_mediator
def explain(client_id: str, run_id: str | None, access: Access, as_json: bool) -> None:
    """Explain VirtualNode NODE: where it is, why there, what would move it, and its history.

    It names the next best site and what a round would cost with NODE there, the room that is
    there, and the link or the vnodes with which the move would pay.

    \b
    Examples:
      fedpilot node explain client_7
      fedpilot node explain client_7 --run base --json | jq -r '.sentences[]'
      fedpilot node explain client_7 --run base --json | jq .next_best
    """
    with exit_codes():
        if as_json:
            found = _ask(access, run_id, lambda nodes: nodes[client_id].explanation())
            sentences = [plain_line(line) for line in found["sentences"]]
            print_json({**found, "sentences": sentences})
            return
        text = _ask(access, run_id, lambda nodes: nodes[client_id].explain())
        click.echo("\n".join(plain_line(line) for line in text.splitlines()))


def _ask(
    access: Access, run_id: str | None, question: Callable[[RemoteFederation], Answer]
) -> Answer:
    from fedpilot.mediator.client.client import ENDED

    from ..federation.remote.client import RemoteFederation

    with asking(access) as client:
        if run_id is None:
            going = [each for each in client.list_runs() if each.get("status") not in ENDED]
            names = [plain_line(each.get("run_id")) for each in going]
            if len(names) != 1:
                found = ", ".join(names) or "none"
                fail(f"give --run; runs in progress at {client.address}: {found}", BAD_INPUT)
            run_id = str(going[0]["run_id"])
        with RemoteFederation(client, run_id) as nodes:
            return question(nodes)
