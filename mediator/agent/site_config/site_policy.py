"""What a site's policy file says now, for those who ask it on behalf of a mediator.

A file that cannot be read allows nothing. What is wrong with it (its path, its lines, what they
say) is for the site's own log, and no mediator's business.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fedpilot.fabric.strict_yaml.errors import BadFile

from ...core.rules.policy import Policy
from ...errors import PolicyRefused
from .site_files import read_policy

log = logging.getLogger(__name__)

RULE = "policy.yaml"
"""In the place of a rule, where there is none that could be read."""


def policy_of(site: str, path: Path | None) -> Policy:
    """The policy of a site; the default without a file. PolicyRefused if it cannot be read."""
    try:
        return read_policy(path)
    except BadFile as error:
        log.warning("the policy cannot be read, so all is refused: %s", error)
        allowed = "one that can: the site's own log says what is wrong with it"
        raise PolicyRefused(site, RULE, "a file that cannot be read", allowed) from None
