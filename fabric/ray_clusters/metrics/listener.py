"""Answers `GET /metrics` over HTTP, and nothing else. A caller costs little, however it behaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from .exposition import CONTENT_TYPE

LONGEST = 16 * 1024
"""Of a request's head, in bytes."""
PATIENCE_S = 5.0
"""How long a caller may take for a request, and for the answer."""
MOST_CALLERS = 32
"""At a time; further ones are hung up on."""


@asynccontextmanager
async def listening(host: str, port: int, text: Callable[[], str]) -> AsyncIterator[int]:
    """Answer with `text` while the block runs; yields the port. OSError if it is taken."""
    callers: set[asyncio.Task[None]] = set()

    def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(callers) >= MOST_CALLERS:
            writer.close()
            return
        task = asyncio.ensure_future(_serve(reader, writer, text))
        callers.add(task)
        task.add_done_callback(callers.discard)

    server = await asyncio.start_server(called, host, port, limit=LONGEST)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: Callable[[], str]
) -> None:
    try:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PATIENCE_S):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    head = b""
                writer.write(answer(head, text))
                await writer.drain()
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), PATIENCE_S)


def answer(head: bytes, text: Callable[[], str]) -> bytes:
    """The answer to a request of that head."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return _response("400 Bad Request", "this is no request in HTTP/1\n")
    method, path = words[0], words[1].partition(b"?")[0]
    if path != b"/metrics":
        return _response("404 Not Found", "the metrics are at /metrics\n")
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "GET, or HEAD\n", "Allow: GET, HEAD")
    return _response("200 OK", text(), bodiless=method == b"HEAD")


def _response(status: str, text: str, *headers: str, bodiless: bool = False) -> bytes:
    body = text.encode()
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {CONTENT_TYPE}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if bodiless else body)
