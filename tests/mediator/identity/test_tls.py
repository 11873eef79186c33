"""Over real connections: who has the right certificate is known by name, all others get nowhere."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedpilot.mediator.identity import Authority, Credentials, PeerRefused, Role, Token, new_request
from fedpilot.mediator.identity.tls import (
    client_credentials,
    joining_credentials,
    peer_of,
    server_credentials,
)

DEADLINE_S = 60.0
DAY_S = 86_400.0
HOSTS = ("localhost", "127.0.0.1")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "certs", now=time.time() - 30 * DAY_S)


def answer(context: Any) -> bytes:
    try:
        peer = peer_of(context)
    except PeerRefused as error:
        return f"refused: {error}".encode()
    return json.dumps([peer.name, peer.role, peer.serial, peer.expires_at]).encode()


def services(who: Any) -> grpc.GenericRpcHandler:
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(who)
    return grpc.method_handlers_generic_handler("test.Test", {"Who": method})


@contextmanager
def serving(credentials: grpc.ServerCredentials) -> Iterator[int]:
    """A server that tells callers who they are; its port."""
    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool, handlers=[services(lambda _, context: answer(context))])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait(DEADLINE_S)
        pool.shutdown()


def call(port: int, credentials: grpc.ChannelCredentials, host: str = "127.0.0.1") -> str:
    with grpc.secure_channel(f"{host}:{port}", credentials) as channel:
        who: Any = channel.unary_unary("/test.Test/Who")
        return str(who(b"", timeout=DEADLINE_S), "utf-8")


def mediator(authority: Authority, hosts: tuple[str, ...] = HOSTS) -> Credentials:
    return authority.issue("mediator", Role.MEDIATOR, hosts, now=time.time())


def known(made: Credentials) -> list[object]:
    found = made.identity
    return [found.name, str(found.role), found.serial, found.expires_at]


@pytest.mark.parametrize("role", [Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.SITE])
@pytest.mark.parametrize("host", HOSTS)
def test_a_caller_is_known_by_its_certificate(authority: Authority, role: Role, host: str) -> None:
    made = authority.issue("alice", role, now=time.time())
    with serving(server_credentials(mediator(authority))) as port:
        assert json.loads(call(port, client_credentials(made), host)) == known(made)


def test_a_caller_is_known_to_an_asyncio_server_too(authority: Authority) -> None:
    made = authority.issue("alice", Role.OPERATOR, now=time.time())

    async def told(_: bytes, context: Any) -> bytes:
        return answer(context)

    async def talk() -> bytes:
        server = grpc.aio.server(handlers=[services(told)])
        port = server.add_secure_port("127.0.0.1:0", server_credentials(mediator(authority)))
        await server.start()
        try:
            where = f"127.0.0.1:{port}"
            async with grpc.aio.secure_channel(where, client_credentials(made)) as channel:
                who: Any = channel.unary_unary("/test.Test/Who")
                return bytes(await who(b"", timeout=DEADLINE_S))
        finally:
            await server.stop(None)

    assert json.loads(asyncio.run(talk())) == known(made)


def with_authority_of(made: Credentials, authority: Authority) -> grpc.ChannelCredentials:
    """Shows a certificate, and believes another authority than the one that has signed it."""
    return grpc.ssl_channel_credentials(
        authority.certificate.encode(), made.key.encode(), made.certificate.encode()
    )


@pytest.mark.parametrize("case", ["none", "expired", "early", "another authority's", "a server's"])
def test_a_caller_without_a_good_certificate_gets_nowhere(
    authority: Authority, tmp_path: Path, case: str
) -> None:
    now = time.time()
    other = Authority.create(tmp_path / "other", now=now - DAY_S)
    match case:
        case "none":
            shown = joining_credentials(authority.certificate)
        case "expired":
            old = authority.issue("alice", Role.ADMIN, now=now - 2 * DAY_S, valid_s=DAY_S)
            shown = client_credentials(old)
        case "early":
            shown = client_credentials(authority.issue("alice", Role.ADMIN, now=now + DAY_S))
        case "another authority's":
            shown = with_authority_of(other.issue("alice", Role.ADMIN, now=now), authority)
        case _:
            shown = client_credentials(mediator(authority))
    good = client_credentials(authority.issue("bob", Role.ADMIN, now=now))
    with serving(server_credentials(mediator(authority))) as port:
        with pytest.raises(grpc.RpcError) as refused:
            call(port, shown)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert json.loads(call(port, good))[0] == "bob"


@pytest.mark.parametrize("case", ["another authority's", "another host's", "expired", "a site's"])
def test_a_server_that_is_not_the_mediator_is_not_talked_to(
    authority: Authority, tmp_path: Path, case: str
) -> None:
    now = time.time()
    match case:
        case "another authority's":
            server = mediator(Authority.create(tmp_path / "other", now=now))
        case "another host's":
            server = mediator(authority, ("mediator.example.org", "127.0.0.2"))
        case "expired":
            server = authority.issue(
                "mediator", Role.MEDIATOR, HOSTS, now=now - 2 * DAY_S, valid_s=DAY_S
            )
        case _:
            server = authority.issue("paris", Role.SITE, now=now)
    made = authority.issue("alice", Role.ADMIN, now=now)
    with (
        serving(server_credentials(server, require_clients=False)) as port,
        pytest.raises(grpc.RpcError) as refused,
    ):
        call(port, client_credentials(made))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_who_has_only_a_token_knows_the_server_and_is_not_known(authority: Authority) -> None:
    text = str(
        Token(site="paris", address="localhost:1", authority=authority.certificate, secret="s")
    )
    credentials = server_credentials(mediator(authority), require_clients=False)
    with serving(credentials) as port:
        told = call(port, joining_credentials(Token.parse(text).authority))
    assert told == "refused: no client certificate was shown; `fedpilot certs issue` makes one"


def test_what_was_signed_for_a_request_opens_the_door(authority: Authority) -> None:
    key, request = new_request("paris")
    text = authority.sign(request, "paris", Role.SITE, now=time.time())
    made = Credentials.checked(authority.certificate, text, key)
    with serving(server_credentials(mediator(authority))) as port:
        assert json.loads(call(port, client_credentials(made)))[:2] == ["paris", "site"]


class Shown:
    """A context in which something was shown."""

    def __init__(self, *shown: bytes) -> None:
        self._shown = shown

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": list(self._shown)}


def test_a_mediators_certificate_is_no_clients(authority: Authority) -> None:
    with pytest.raises(PeerRefused, match="is a mediator's"):
        peer_of(Shown(mediator(authority).certificate.encode()))


@pytest.mark.parametrize("shown", [b"", b"\xff", b"-----BEGIN CERTIFICATE-----"])
def test_what_cannot_be_read_is_nobody(shown: bytes) -> None:
    with pytest.raises(PeerRefused, match="not of a federation"):
        peer_of(Shown(shown))


def test_a_peer_is_what_its_certificate_says(authority: Authority) -> None:
    made = authority.issue("alice", Role.VIEWER, now=time.time())
    peer = peer_of(Shown(made.certificate.encode()))
    assert peer == made.identity
    assert (peer.name, peer.role) == ("alice", Role.VIEWER)
