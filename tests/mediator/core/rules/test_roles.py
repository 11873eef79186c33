"""Every method has an act, every act its roles, and a refusal names them."""

from __future__ import annotations

import pytest

from fedpilot.mediator.core.rules.roles import (
    TABLE,
    Act,
    Role,
    act_of_change,
    act_of_command,
    may,
    refusal,
)
from fedpilot.mediator.wire.rpc import SITE, USER, snake

READING = {
    "list_runs", "show_run", "follow_run", "run_log", "list_files", "read_file",
    "list_sites", "look_at_site", "list_audit", "follow_events",
}  # fmt: skip
RUNNING = {"submit", "stop_run", "resume_run", "remove_run", "ask_run"}
ADMINISTERING = {"change_site", "run_at_site", "make_token", "revoke_certificate"}
SPEAKING_FOR_A_SITE = {"session", "fetch", "offer", "push", "renew"}


@pytest.mark.parametrize(
    ("role", "acts"),
    [
        pytest.param(
            Role.ADMIN, READING | RUNNING | ADMINISTERING | {"hold_site"},
            id="an admin does all that users do",
        ),
        pytest.param(
            Role.OPERATOR, READING | RUNNING | {"hold_site"},
            id="an operator runs, reads, and holds sites back",
        ),
        pytest.param(Role.VIEWER, READING, id="a viewer reads"),
        pytest.param(Role.SITE, SPEAKING_FOR_A_SITE, id="a site speaks for itself only"),
        pytest.param(Role.MEDIATOR, set(), id="the mediator asks nobody"),
    ],
)  # fmt: skip
def test_a_role_may_do_exactly_this(role: Role, acts: set[str]) -> None:
    assert {str(act) for act in Act if may(role, act)} == acts


def test_every_method_has_an_act_of_its_name() -> None:
    methods = {snake(method.name) for service in (USER, SITE) for method in service.methods}
    milder = {Act.HOLD_SITE, Act.LOOK_AT_SITE}
    assert {str(act) for act in set(Act) - milder} == methods
    assert TABLE.keys() == set(Act)


@pytest.mark.parametrize("change", ["cordon", "uncordon", "drain"])
def test_to_hold_a_site_back_is_an_operators_act(change: str) -> None:
    assert act_of_change(change) is Act.HOLD_SITE


@pytest.mark.parametrize("change", ["remove", "", "Drain", "anything else"])
def test_any_other_change_is_an_admins_act(change: str) -> None:
    assert act_of_change(change) is Act.CHANGE_SITE


@pytest.mark.parametrize(
    ("arguments", "act"),
    [
        pytest.param(["cluster", "tree", "--json"], Act.LOOK_AT_SITE, id="looking at clusters"),
        pytest.param(["job", "logs", "01"], Act.LOOK_AT_SITE, id="looking at a job"),
        pytest.param(["queue", "list"], Act.LOOK_AT_SITE, id="looking at queues"),
        pytest.param(["queue", "apply", "--dry-run"], Act.RUN_AT_SITE, id="applying queues"),
        pytest.param(["job", "explain", "01"], Act.LOOK_AT_SITE, id="asking why a job waits"),
        pytest.param(["cluster", "delete", "a"], Act.RUN_AT_SITE, id="ending a cluster"),
        pytest.param(["job", "submit", "--", "sh"], Act.RUN_AT_SITE, id="running what one likes"),
        pytest.param(["job", "--", "list"], Act.RUN_AT_SITE, id="an option before the command"),
        pytest.param(["tree"], Act.RUN_AT_SITE, id="a command without its group"),
        pytest.param([], Act.RUN_AT_SITE, id="no command at all"),
    ],
)
def test_only_what_is_known_to_change_nothing_counts_as_looking(
    arguments: list[str], act: Act
) -> None:
    assert act_of_command(arguments) is act


def test_a_refusal_names_who_asked_and_the_roles_that_may() -> None:
    assert refusal("alice", Role.VIEWER, Act.SUBMIT) == (
        "submit needs the role admin or operator, and alice has the role viewer"
    )
