"""A join token says all that an agent needs, and a damaged one says what is wrong with it."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator.identity import Authority, Token, TokenMalformed, digest_of, new_secret


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Token:
    authority = Authority.create(tmp_path_factory.mktemp("t") / "certs", now=1_800_000_000.0)
    return Token(
        site="paris",
        address="mediator.example.org:7461",
        authority=authority.certificate,
        secret=new_secret(),
    )


def packed(body: bytes) -> str:
    whole = body + zlib.crc32(body).to_bytes(4, "big")
    return "fp1." + base64.urlsafe_b64encode(whole).rstrip(b"=").decode()


def test_a_token_is_read_as_it_was_written(token: Token) -> None:
    assert Token.parse(str(token)) == token
    assert Token.parse(f"\n {token} \n") == token
    assert len(str(token)) < 1000
    assert set(str(token)) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
    )


def test_secrets_differ_and_only_their_digest_is_shown(token: Token) -> None:
    assert new_secret() != new_secret()
    assert token.secret not in repr(token)
    assert token.digest == digest_of(token.secret) != token.secret
    assert len(token.digest) == 64


def test_any_part_that_is_missing_is_noticed(token: Token) -> None:
    text = str(token)
    for length in range(len(text)):
        with pytest.raises(TokenMalformed):
            Token.parse(text[:length])


@given(st.data())
def test_any_character_that_is_wrong_is_noticed(token: Token, data: st.DataObject) -> None:
    text = str(token)
    at = data.draw(st.integers(4, len(text) - 2))
    other = data.draw(st.sampled_from("ABCxyz019-_").filter(lambda found: found != text[at]))
    with pytest.raises(TokenMalformed):
        Token.parse(text[:at] + other + text[at + 1 :])


@given(st.binary(max_size=300))
def test_anything_at_all_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(TokenMalformed):
        Token.parse(packed(body))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "begins with fp1., this with ''", id="nothing"),
        pytest.param("eyJh", "begins with fp1., this with 'eyJh'", id="something else"),
        pytest.param("fp2.AAAA", "begins with fp1., this with 'fp2.'", id="a later version"),
        pytest.param("fp1.", "damaged or a part of it is missing", id="the beginning only"),
        pytest.param("fp1.a b", "damaged", id="a space within"),
        pytest.param("fp1.é", "damaged", id="another alphabet"),
        pytest.param("fp1." + "A" * 5000, "at most 4096 characters", id="too long"),
        pytest.param(packed(b"[" * 2000), "not one of this version", id="deep JSON"),
        pytest.param(packed(b'["paris","a:1"]\nx'), "not one of this version", id="no secret"),
        pytest.param(packed(b'["paris","a:1","s"]\nx'), "not one of this", id="no certificate"),
    ],
)
def test_what_is_no_token_is_refused_and_says_why(text: str, reason: str) -> None:
    with pytest.raises(TokenMalformed, match=reason):
        Token.parse(text)


@pytest.mark.parametrize(
    ("site", "address", "reason"),
    [
        pytest.param("../etc", "a:1", "a name is", id="a path as a site"),
        pytest.param("paris", "mediator", "HOST:PORT", id="no port"),
        pytest.param("paris", "mediator:0", "HOST:PORT", id="port 0"),
        pytest.param("paris", "mediator:65536", "HOST:PORT", id="no such port"),
        pytest.param("paris", "unix:/tmp/x:1", "HOST:PORT", id="another kind of address"),
        pytest.param("paris", "a:1\n", "HOST:PORT", id="a line's end"),
    ],
)
def test_what_a_token_says_is_checked(token: Token, site: str, address: str, reason: str) -> None:
    bad = Token(site=site, address=address, authority=token.authority, secret="s")
    with pytest.raises(TokenMalformed, match=reason):
        Token.parse(str(bad))


def test_an_address_may_be_of_ip_version_6(token: Token) -> None:
    six = Token(site="paris", address="[::1]:7461", authority=token.authority, secret="s")
    assert Token.parse(str(six)).address == "[::1]:7461"
