"""Statuses of gRPC become errors of ours, with the mediator's reason."""

from __future__ import annotations

import grpc
import pytest

from fedpilot.mediator.client.client import MediatorClient
from fedpilot.mediator.errors import (
    BadRequest,
    MediatorError,
    MediatorFailed,
    MediatorUnreachable,
    NoSuchRun,
    NoSuchSite,
    NotPermitted,
    RequestRefused,
    RunExists,
    SiteUnreachable,
)
from user_service import Served, a_site

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        pytest.param(Code.PERMISSION_DENIED, NotPermitted, 3, id="a role that may not"),
        pytest.param(Code.UNAUTHENTICATED, NotPermitted, 3, id="a revoked certificate"),
        pytest.param(Code.NOT_FOUND, NoSuchRun, 2, id="an unknown run"),
        pytest.param(Code.ALREADY_EXISTS, RunExists, 2, id="an id that is taken"),
        pytest.param(Code.INVALID_ARGUMENT, BadRequest, 2, id="nonsense"),
        pytest.param(Code.FAILED_PRECONDITION, RequestRefused, 3, id="not in this state"),
        pytest.param(Code.RESOURCE_EXHAUSTED, RequestRefused, 3, id="no room"),
        pytest.param(Code.UNIMPLEMENTED, RequestRefused, 3, id="an older mediator"),
        pytest.param(Code.INTERNAL, MediatorFailed, 1, id="a bug in the mediator"),
        pytest.param(Code.DEADLINE_EXCEEDED, MediatorUnreachable, 4, id="no answer in time"),
    ],
)
def test_a_status_becomes_an_error_with_its_reason_and_exit_code(
    served: Served,
    client: MediatorClient,
    code: grpc.StatusCode,
    kind: type[MediatorError],
    exit_code: int,
) -> None:
    served.service.fails = [("show_run", code, "because \x1b[31mof that")]
    with pytest.raises(kind) as caught:
        client.show_run("base")
    assert type(caught.value) is kind
    assert kind.exits_with == exit_code
    assert "\x1b" not in str(caught.value)
    if code is not Code.DEADLINE_EXCEEDED:
        assert "of that" in str(caught.value)


def test_an_unknown_site_is_told_apart_from_an_unknown_run(client: MediatorClient) -> None:
    with pytest.raises(NoSuchSite, match="paris"):
        client.change_site("paris", "cordon")


def test_a_site_that_cannot_be_reached_is_not_the_mediator(
    served: Served, client: MediatorClient
) -> None:
    served.service.sites["paris"] = a_site("paris", state="lost")
    with pytest.raises(SiteUnreachable, match="paris cannot be reached: nothing was heard"):
        client.run_at_site("paris", ["cluster", "list"])
