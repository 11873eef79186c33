"""The Redis of a declared Ray cluster: where it is, and why a head could not use it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import FaultTolerance
from fedpilot.fabric.errors import ProviderFailed, SpecError
from fedpilot.fabric.ray.control_plane.redis_login import RedisLogin
from fedpilot.fabric.ray_clusters.providers.redis_storage import RedisStorage, login_of


@pytest.mark.parametrize(
    ("declared", "as_ray_takes_it"),
    [
        pytest.param("redis.example:6379", "redis://redis.example:6379", id="host and port"),
        pytest.param("redis://10.0.0.9:1", "redis://10.0.0.9:1", id="a URL"),
        pytest.param("rediss://a:6379/", "rediss://a:6379", id="an encrypted one"),
        pytest.param("[::1]:6379", "redis://[::1]:6379", id="an IPv6 address"),
    ],
)
def test_a_redis_is_where_the_declaration_says(declared: str, as_ray_takes_it: str) -> None:
    found = login_of(FaultTolerance(redis_address=declared), "uid")
    assert found.address == as_ray_takes_it
    assert found.namespace == "uid"


@pytest.mark.parametrize(
    "declared",
    [
        pytest.param("", id="nowhere: none is started beside the head"),
        pytest.param("redis.example", id="without a port"),
        pytest.param("a:0", id="port 0"),
        pytest.param("a:65536", id="a port that is too large"),
        pytest.param("http://a:1", id="another kind of URL"),
        pytest.param("redis://a:1/2", id="a database by number"),
        pytest.param("a:1,b:2", id="several"),
    ],
)
def test_an_address_that_ray_could_not_use_is_refused(declared: str) -> None:
    with pytest.raises(SpecError, match="redisAddress"):
        login_of(FaultTolerance(redis_address=declared), "uid")


def test_a_login_travels_as_text_and_does_not_print_its_password() -> None:
    login = RedisLogin(host="a", port=1, username="ray", password="secret", namespace="n")
    assert RedisLogin.of(login.text) == login
    assert "secret" not in repr(login)


def test_a_password_ends_before_the_end_of_its_line(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" a b\n")
    options = FaultTolerance(redis_address="a:1", password_file=str(file))
    assert RedisStorage(options, "uid").login().password == " a b"
    file.unlink()
    with pytest.raises(ProviderFailed, match="cannot read the password"):
        RedisStorage(options, "uid").login()


@pytest.mark.parametrize(
    ("answers", "password", "trouble"),
    [
        pytest.param([b"+PONG\r\n"], "", "", id="it takes a user without a password"),
        pytest.param([b"+OK\r\n", b"+PONG\r\n"], "p", "", id="it takes the password"),
        pytest.param(
            [b"-WRONGPASS invalid\r\n"], "p", "refuses: WRONGPASS invalid", id="a wrong password"
        ),
        pytest.param([b"-NOAUTH needed\r\n"], "", "refuses: NOAUTH needed", id="no password"),
        pytest.param([b"-LOADING it\r\n"], "", "refuses: LOADING it", id="it still loads"),
        pytest.param([b"HTTP/1.1 400\r\n"], "", "that is no Redis", id="another server"),
        pytest.param([b""], "", "does not answer", id="it hangs up"),
    ],
)
def test_a_trouble_with_redis_is_in_words(
    tmp_path: Path, answers: list[bytes], password: str, trouble: str
) -> None:
    (tmp_path / "password").write_text(password)
    left = [*answers]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left and (await reader.readuntil(b"\r\n")).startswith(b"*"):
            for _ in range(2 * (2 if password and len(left) == len(answers) else 1)):
                await reader.readuntil(b"\r\n")
            writer.write(left.pop(0))
            await writer.drain()
            if not left:
                break
        writer.close()

    async def told() -> str:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        options = FaultTolerance(
            redis_address=f"127.0.0.1:{port}", password_file=str(tmp_path / "password")
        )
        storage = RedisStorage(options, "uid")
        try:
            return await storage.trouble(lambda: None)
        finally:
            await storage.close()
            server.close()

    found = asyncio.run(told())
    assert trouble in found
    assert bool(found) == bool(trouble)


def test_a_redis_that_does_not_listen_is_a_trouble() -> None:
    async def told() -> str:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        storage = RedisStorage(FaultTolerance(redis_address=f"127.0.0.1:{port}"), "uid")
        return await storage.trouble(lambda: None)

    assert "does not answer" in asyncio.run(told())
