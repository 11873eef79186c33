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
@click.option(
    "--metrics-file",
    type=FILE,
    metavar="FILE",
    help="Keep metrics in FILE, as Prometheus' text; it is replaced as a whole each second.",
)
@click.option(
    "--metrics-listen",
    "listen",
    metavar="[HOST:]PORT",
    help="Answer at http://HOST:PORT/metrics with them. HOST is 127.0.0.1 unless it is given: "
    "everyone who reaches it can read them.",
)
def serve(
    store_path: Path | None,
    decides: str,
    fixed: bool,
    metrics_file: Path | None,
    listen: str | None,
) -> None:
    """Keep all declared Ray clusters as declared, until interrupted.

    Two processes do so: a lifecycle manager, which starts and ends machines, and an autoscaler,
    which declares more machines for work that has no room, and fewer where machines are idle,
    between minReplicas and maxReplicas. Per store there is one of each; a second one waits until
    the first has ended. A third process has the metrics, if they are asked for. When they end, even
    by a crash, the Ray clusters go on, and the next `serve` takes them over.

    \b
    Examples:
      fedpilot raycluster serve
      fedpilot raycluster serve --no-autoscaler
      fedpilot raycluster serve --metrics-listen 9464
      fedpilot raycluster serve --store /srv/fedpilot/declared.sqlite
    """
    from ...ray_clusters.processes import serve as keep

    with exit_codes():
        with opened(store_path) as store:
            path = store.path
        metrics_at = None if listen is None else _host_and_port(listen)
        click.echo(f"keeping the Ray clusters declared in {path}", err=True)
        keep(
            path,
            decides=decides,
            autoscales=not fixed,
            metrics_file=metrics_file,
            metrics_at=metrics_at,
        )


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if (colon and not host) or not port.isdecimal() or not 0 < int(port[:6]) < 65_536:
        text = "--metrics-listen is PORT or HOST:PORT, such as 9464; found"
        raise click.UsageError(f"{text} {listen!r}.")
    return host.strip("[]") or "127.0.0.1", int(port)
