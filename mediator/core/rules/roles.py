"""Which roles may do which acts: one table.

An act is named like its RPC method. If a method takes milder requests too, the act of that name is
the gravest; `act_of_change` and `act_of_command` find the milder ones. Code that forgets to call
them refuses too much, never too little.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Role(StrEnum):
    """The role in a certificate."""

    ADMIN = "admin"
    OPERATOR = "operator"
    """Submits, stops and resumes runs, and cordons and drains sites."""
    VIEWER = "viewer"
    SITE = "site"
    MEDIATOR = "mediator"
    """The server itself; it makes no calls."""


class Act(StrEnum):
    """A call of a mediator."""

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
"""Calls that change nothing but are audited, since they hand out a run's results."""
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
"""The roles that may do each act. An admin's certificate opens no site session."""

_HOLDING = frozenset({"cordon", "uncordon", "drain"})
_LOOKING = {
    "cluster": frozenset({"list", "show", "tree", "explain"}),
    "job": frozenset({"list", "show", "logs", "explain"}),
    "queue": frozenset({"list", "show", "explain", "history", "snapshot"}),
}


def may(role: Role, act: Act) -> bool:
    """Whether a role may do an act."""
    return role in TABLE[act]


def refusal(who: str, role: Role, act: Act) -> str:
    """Say which roles may do an act, and which role the caller has."""
    allowed = " or ".join(each for each in Role if each in TABLE[act])
    return f"{act} needs the role {allowed}, and {who} has the role {role}"


def reads_results(name: str, role: Role, owner: str, *, shared: bool) -> bool:
    """Whether a user whose role may read runs may read the results of this owner's run."""
    return shared or role is Role.ADMIN or name == owner


def act_of_change(change: str) -> Act:
    return Act.HOLD_SITE if change in _HOLDING else Act.CHANGE_SITE


def act_of_command(arguments: Sequence[str]) -> Act:
    """The act of a RunAtSite request; its arguments are those after `fedpilot`."""
    group, command = [*arguments, "", ""][:2]
    return Act.LOOK_AT_SITE if command in _LOOKING.get(group, ()) else Act.RUN_AT_SITE
