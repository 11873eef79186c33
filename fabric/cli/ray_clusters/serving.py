"""`fedpilot raycluster serve`."""

from __future__ import annotations

from pathlib import Path

import click

from fedpilot.common.terminal.commands import exit_codes

from .store_options import FILE, opened


@click.command()
@click.option(
    "--store",
    "store_path",
    type=FILE,
    metavar="FILE",
    help="The declarations of a site. Default: those of this user on this computer.",
)
@click.option(
    "--autoscaler",
    "decides",
    metavar="MODULE:FUNCTION",
    default="",
    help="Your own decision in the place of fedpilot's, with the arguments and the result of "
    "fedpilot.fabric.core.ray_clusters.autoscaling:autoscale.",
)
@click.option(
    "--no-autoscaler",
    "fixed",
    is_flag=True,
    help="Keep the numbers that are declared; another program may change them.",
)
def serve(store_path: Path | None, decides: str, fixed: bool) -> None:
    """Keep all declared Ray clusters as declared, until interrupted.

    Two processes do so: a lifecycle manager, which starts and ends machines, and an autoscaler,
    which declares more machines for work that has no room, and fewer where machines are idle,
    between minReplicas and maxReplicas. Per store there is one of each; a second one waits until
    the first has ended. When they end, even by a crash, the Ray clusters go on, and the next
    `serve` takes them over.

    \b
    Examples:
      fedpilot raycluster serve
      fedpilot raycluster serve --no-autoscaler
      fedpilot raycluster serve --store /srv/fedpilot/declared.sqlite
    """
    from ...ray_clusters.processes import serve as keep

    with exit_codes():
        with opened(store_path) as store:
            path = store.path
        click.echo(f"keeping the Ray clusters declared in {path}", err=True)
        keep(path, decides=decides, autoscales=not fixed)
