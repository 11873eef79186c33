"""Where the clients of a run that keep states are: the journal has it from the first round on."""

from __future__ import annotations

import json
from pathlib import Path

from fedpilot.mediator import FederationMediator, Share

from ...core.population.shares import taken, told
from ...errors import FederatedError, RunRefused
from ..run_folder.folder import replace_text

FORMAT = 1
FILE = "client_sites.json"


def keep_at_their_sites(mediator: FederationMediator, journal: Path) -> None:
    """Give each site the clients that it had in this run before, or record what it has.

    A site's share of the clients follows from its workers, and those may be others by now. Raises
    RunRefused if another set of sites takes part.
    """
    membership, path = mediator.membership, journal / FILE
    if membership.assignment.pinned:
        return  # by their data
    if not path.exists():
        record_sites(mediator, journal)
        return
    before = _read(path)
    owners = {site for site, share in before.items() if share}
    if not owners <= set(membership.sites):
        raise RunRefused(
            f"this run's clients have their states at {', '.join(sorted(owners))}, and it resumes "
            f"at {', '.join(sorted(membership.sites))}: resume it at the same sites"
        )
    membership.assign_as(before)


def record_sites(mediator: FederationMediator, journal: Path) -> None:
    """Record the clients that each site has now."""
    shares = mediator.membership.assignment.shares
    content = {site: told(share) for site, share in shares.items()}
    journal.mkdir(parents=True, exist_ok=True)
    replace_text(journal / FILE, json.dumps({"format": FORMAT, "sites": content}))


def _read(path: Path) -> dict[str, Share]:
    try:
        found = json.loads(path.read_text())
        if found["format"] > FORMAT:
            raise RunRefused(f"{path} is of format {found['format']}; formats up to {FORMAT} fit")
        return {str(site): taken(share) for site, share in found["sites"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, FederatedError) as error:
        raise RunRefused(f"{path} does not say where this run's clients are: {error}") from error
