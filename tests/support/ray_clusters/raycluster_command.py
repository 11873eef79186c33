"""`fedpilot raycluster` on the store of a site."""

from __future__ import annotations

from click.testing import Result

from command_line import invoke
from fake_site import FakeSite


def run(site: FakeSite, *arguments: str) -> Result:
    return invoke("raycluster", arguments[0], "--store", str(site.store.path), *arguments[1:])


def told(site: FakeSite, *arguments: str) -> str:
    """What a command prints that succeeds."""
    done = run(site, *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout
