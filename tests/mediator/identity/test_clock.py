"""A clock that is before the mediator's certificates is named, not waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from fedpilot.mediator.agent.membership.joining import join
from fedpilot.mediator.client.client import MediatorClient
from fedpilot.mediator.client.retrying_stub import ClientTimeouts
from fedpilot.mediator.errors import MediatorUnreachable
from fedpilot.mediator.identity import Authority, Credentials, IdentityError, Role, Token
from fedpilot.mediator.identity.clock import too_early, too_early_for
from fedpilot.mediator.identity.tls import server_credentials
from fedpilot.mediator.wire.messages import SiteName

DAY_S = 86_400.0
NOW = time.time()
SOONER = NOW - DAY_S
"""What a clock says that is a day behind."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "certs", now=NOW - 30 * DAY_S)


def serving(credentials: Credentials) -> Iterator[str]:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_secure_port("127.0.0.1:0", server_credentials(credentials))
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait(60)


@pytest.fixture
def tomorrows(authority: Authority) -> Iterator[str]:
    """The address of a mediator whose certificate begins tomorrow."""
    shown = authority.issue(
        "hub", Role.MEDIATOR, now=NOW + DAY_S, valid_s=DAY_S, hosts=("127.0.0.1",)
    )
    yield from serving(shown)


@pytest.fixture
def todays(authority: Authority) -> Iterator[str]:
    shown = authority.issue("hub", Role.MEDIATOR, now=NOW, valid_s=2 * DAY_S, hosts=("127.0.0.1",))
    yield from serving(shown)


def token_of(address: str, authority: Authority) -> Token:
    return Token(address=address, authority=authority.certificate, site="paris", secret="s" * 43)


def test_both_times_are_said(authority: Authority) -> None:
    text = too_early({"its certificate": authority.certificate}, NOW - 40 * DAY_S)
    assert text.startswith("its certificate is valid from ")
    assert text.endswith("UTC: set the clock")
    assert too_early({"its certificate": authority.certificate}, NOW) == ""


def test_a_site_whose_clock_is_before_the_authority_does_not_even_ask(authority: Authority) -> None:
    token = token_of("127.0.0.1:1", authority)
    with pytest.raises(IdentityError, match=r"the authority of the token is valid from .* set the"):
        asyncio.run(join(token, SiteName("paris"), clock=lambda: NOW - 40 * DAY_S))


def test_a_site_whose_clock_is_before_the_mediators_certificate_is_told(
    authority: Authority, tomorrows: str
) -> None:
    token = token_of(tomorrows, authority)
    with pytest.raises(IdentityError, match=r"the mediator's certificate is valid from .* set the"):
        asyncio.run(join(token, SiteName("paris"), within_s=1.0))


def test_a_user_whose_clock_is_before_the_mediators_certificate_is_told(
    authority: Authority, tomorrows: str
) -> None:
    shown = authority.issue("otto", Role.OPERATOR, now=NOW, valid_s=DAY_S)
    patience = ClientTimeouts(call_s=5.0, again_s=0.0)
    with (
        MediatorClient(tomorrows, shown, patience=patience) as client,
        pytest.raises(MediatorUnreachable, match=r"the mediator's certificate is valid from"),
    ):
        client.list_sites()


def test_a_clock_that_is_right_has_nothing_to_do_with_it(todays: str) -> None:
    assert too_early_for(todays, NOW) == ""
    assert "set the clock" in too_early_for(todays, SOONER)
    assert too_early_for("127.0.0.1:1", SOONER) == ""
    assert too_early_for("nonsense", SOONER) == ""
