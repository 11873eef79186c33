"""Reads the file of a declared Ray cluster, for commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...spec.ray_cluster.document import RayClusterDocument


def declared_in(file: Path, name: str = "") -> RayClusterDocument:
    """What a file declares, with its warnings on stderr; `name` replaces the document's.

    BadFile; SpecError if this version cannot provide it.
    """
    from ...ray_clusters import own_cluster
    from ...ray_clusters.providers.choice import version_note

    read = own_cluster.declared_in(file, name)
    for warning in read.warnings:
        click.echo(f"fedpilot: warning: {warning}", err=True)
    if note := version_note(read.declared):
        click.echo(f"fedpilot: warning: {note}", err=True)
    return read
