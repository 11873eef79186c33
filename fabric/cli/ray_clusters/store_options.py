"""The options of all commands on declared Ray clusters: which store, and how to print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpilot.common.terminal.commands import exit_codes

if TYPE_CHECKING:
    from ...ray_clusters.declarations.store import RayClusterStore

Command = Callable[..., None]
FILE = click.Path(dir_okay=False, path_type=Path)


def with_store(command: Command) -> Command:
    """Add `--store` and `--json`, and open the store as the argument `store`."""

    @wraps(command)
    def with_open_store(store_path: Path | None, **options: Any) -> None:
        with exit_codes(), opened(store_path) as store:
            command(store=store, **options)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text."),
        click.option(
            "--store",
            "store_path",
            type=FILE,
            metavar="FILE",
            help="The declarations of a site. Default: those of this user on this computer.",
        ),
    ):
        with_open_store = option(with_open_store)
    return with_open_store


@contextmanager
def opened(path: Path | None) -> Iterator[RayClusterStore]:
    from ...ray_clusters.declarations.store import RayClusterStore
    from ...ray_clusters.declarations.store_file import default_store

    with RayClusterStore(path or default_store()) as store:
        yield store
