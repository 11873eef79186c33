"""Who may do what: one table of acts and roles.

An act is called as the method that does it. Where the requests of a method differ, its own name
stands for the gravest of them, and `act_of_change` and `act_of_command` find the milder one: who
forgets to ask them refuses too much, never too little.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Role(StrEnum):
    """What a certificate says that its holder is."""

    ADMIN = "admin"
    OPERATOR = "operator"
    """Begins and ends runs, and holds sites back."""
    VIEWER = "viewer"
    """Reads."""
    SITE = "site"
    """A site's agent."""
    MEDIATOR = "mediator"
    """The server itself; it asks nobody for anything."""


class Act(StrEnum):
    """What somebody asks of a mediator."""

    SUBMIT = "submit"
    LIST_RUNS = "list_runs"
    SHOW_RUN = "show_run"
    FOLLOW_RUN = "follow_run"
    RUN_LOG = "run_log"
    STOP_RUN = "stop_run"
    RESUME_RUN = "resume_run"
    REMOVE_RUN = "remove_run"
    LIST_FILES = "list_files"
    READ_FILE = "read_file"
    ASK_RUN = "ask_run"
    LIST_SITES = "list_sites"
    CHANGE_SITE = "change_site"
    HOLD_SITE = "hold_site"
    """ChangeSite, to cordon, uncordon or drain it."""
    RUN_AT_SITE = "run_at_site"
    LOOK_AT_SITE = "look_at_site"
    """RunAtSite, with a command that changes nothing."""
    MAKE_TOKEN = "make_token"
    REVOKE_CERTIFICATE = "revoke_certificate"
    LIST_AUDIT = "list_audit"
    FOLLOW_EVENTS = "follow_events"

    SESSION = "session"
    FETCH = "fetch"
    OFFER = "offer"
    PUSH = "push"
    RENEW = "renew"


AUDITED_READS = frozenset({Act.FOLLOW_RUN, Act.RUN_LOG, Act.READ_FILE})
"""What changes nothing, and is in the audit log all the same: somebody has a run's results now."""
_ADMINS = frozenset({Role.ADMIN})
_OPERATORS = _ADMINS | {Role.OPERATOR}
_READERS = _OPERATORS | {Role.VIEWER}
_SITES = frozenset({Role.SITE})

TABLE: dict[Act, frozenset[Role]] = {
    Act.SUBMIT: _OPERATORS,
    Act.LIST_RUNS: _READERS,
    Act.SHOW_RUN: _READERS,
    Act.FOLLOW_RUN: _READERS,
    Act.RUN_LOG: _READERS,
    Act.STOP_RUN: _OPERATORS,
    Act.RESUME_RUN: _OPERATORS,
    Act.REMOVE_RUN: _OPERATORS,
    Act.LIST_FILES: _READERS,
    Act.READ_FILE: _READERS,
    Act.ASK_RUN: _OPERATORS,
    Act.LIST_SITES: _READERS,
    Act.CHANGE_SITE: _ADMINS,
    Act.HOLD_SITE: _OPERATORS,
    Act.RUN_AT_SITE: _ADMINS,
    Act.LOOK_AT_SITE: _READERS,
    Act.MAKE_TOKEN: _ADMINS,
    Act.REVOKE_CERTIFICATE: _ADMINS,
    Act.LIST_AUDIT: _READERS,
    Act.FOLLOW_EVENTS: _READERS,
    Act.SESSION: _SITES,
    Act.FETCH: _SITES,
    Act.OFFER: _SITES,
    Act.PUSH: _SITES,
    Act.RENEW: _SITES,
}
"""Who may. A site speaks for itself only, so that an admin's certificate opens no session."""

_HOLDING = frozenset({"cordon", "uncordon", "drain"})
_LOOKING = {
    "cluster": frozenset({"list", "show", "tree", "explain"}),
    "job": frozenset({"list", "show", "logs"}),
}


def may(role: Role, act: Act) -> bool:
    """Whether a role may do this."""
    return role in TABLE[act]


def refusal(who: str, role: Role, act: Act) -> str:
    """Why somebody may not, in words: the roles that may, and the role that there is."""
    allowed = " or ".join(each for each in Role if each in TABLE[act])
    return f"{act} needs the role {allowed}, and {who} has the role {role}"


def reads_results(name: str, role: Role, owner: str, *, shared: bool) -> bool:
    """Whether somebody may read what a run has made and said, if the role may read at all."""
    return shared or role is Role.ADMIN or name == owner


def act_of_change(change: str) -> Act:
    return Act.HOLD_SITE if change in _HOLDING else Act.CHANGE_SITE


def act_of_command(arguments: Sequence[str]) -> Act:
    """The act of a RunAtSite request; its arguments are those after `fedpilot`."""
    group, command = [*arguments, "", ""][:2]
    return Act.LOOK_AT_SITE if command in _LOOKING.get(group, ()) else Act.RUN_AT_SITE
