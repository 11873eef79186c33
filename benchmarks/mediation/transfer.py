"""What a blob's way between a site and its mediator costs beside raw gRPC streams of that size.

All over loopback with mutual TLS, a server and a client process of each kind, by turns. A blob is
read from a file, sent, hashed, written, checked and opened as a payload. Raw streams carry bytes in
memory, which the receiver drops: bare, and in the messages that a blob travels in. The processes of
blobs keep freed memory and set some of gRPC's options, as the mediator and the agents do; those of
raw streams only raise the limit of a message. Bare bytes are measured both ways.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from measuring import Run, called, line_of, measured, parser, process, ratios, spread, table

SECTION = "transfer"
PIECES_KIB = (256, 1024, 2048)
MEGABYTES = 200
TENSORS = 20
HOST = "localhost"
PATIENCE_S = 60.0
RAW = "fedpilot.benchmarks.Raw"

Way = Callable[[], Awaitable[None]]


# -- the server process ---------------------------------------------------------------------------


async def serve(place: str, piece_bytes: int, plain: int) -> None:
    """Raw streams and a BlobService; prints its port, and ends when stdin does.

    A `plain` one is as Python starts it.
    """
    import grpc

    from fedpilot.mediator.identity import Authority, Role
    from fedpilot.mediator.identity.tls import server_credentials
    from fedpilot.mediator.proto import federation_pb2 as pb
    from fedpilot.mediator.server.process import SERVER_OPTIONS
    from fedpilot.mediator.server.services.blob_handlers import blob_handlers
    from fedpilot.mediator.wire.blobs.store import BlobStore
    from fedpilot.mediator.wire.rpc import MESSAGE_OPTIONS
    from fedpilot.mediator.wire.transfer import BlobService, TransferSettings, keep_freed_memory

    gate: Any = SimpleNamespace(  # which refuses nothing
        site_of=lambda _context: "site",
        refuses_fetch=lambda *_: "",
        refuses_push=lambda *_: "",
        book=lambda *_: None,
    )
    folder = Path(place)
    if not plain:
        keep_freed_memory()
    piece = bytes(piece_bytes)

    def ways(
        piece: Any, write: Callable[[Any], bytes] | None, read: Callable[[bytes], Any] | None
    ) -> tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]:
        """Down and up, in messages if they are written and read as such."""

        async def down(count: bytes, _context: Any) -> AsyncIterator[Any]:
            for _ in range(int(count)):
                yield piece

        async def up(pieces: AsyncIterator[Any], _context: Any) -> bytes:
            came = 0
            async for each in pieces:
                came += len(each.data if read else each)
            return str(came).encode()

        return (
            grpc.unary_stream_rpc_method_handler(down, None, write),
            grpc.stream_unary_rpc_method_handler(up, read),
        )

    async def forget(digest: bytes, _context: Any) -> bytes:
        (folder / "server" / digest.decode()).unlink()
        return b""

    async def cpu(_request: bytes, _context: Any) -> bytes:
        return str(time.process_time()).encode()

    service = BlobService(
        BlobStore(folder / "server", 1 << 40),
        gate,
        largest_bytes=1 << 40,
        settings=TransferSettings(piece_bytes=piece_bytes),
    )
    down, up = ways(piece, None, None)
    down_messages, up_messages = ways(
        pb.Piece(data=piece), pb.Piece.SerializeToString, pb.Piece.FromString
    )
    raw = {
        "Down": down,
        "Up": up,
        "DownMessages": down_messages,
        "UpMessages": up_messages,
        "Forget": grpc.unary_unary_rpc_method_handler(forget),
        "Cpu": grpc.unary_unary_rpc_method_handler(cpu),
    }
    server = grpc.aio.server(options=MESSAGE_OPTIONS if plain else SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (blob_handlers(service), grpc.method_handlers_generic_handler(RAW, raw))
    )
    authority = Authority.create(folder / "certs", now=time.time())
    shown = authority.issue("mediator", Role.MEDIATOR, [HOST], now=time.time())
    port = server.add_secure_port(f"{HOST}:0", server_credentials(shown))
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


# -- the client process ---------------------------------------------------------------------------


async def client(place: str, port: int, piece_bytes: int, megabytes: int, plain: int) -> None:
    """Go the ways that stdin names; prints the blob's bytes, and each way's wall and CPU seconds.

    The CPU seconds are those of both processes.
    """
    import grpc
    import numpy as np

    from fedpilot.mediator.identity import Authority, Role
    from fedpilot.mediator.identity.tls import client_credentials
    from fedpilot.mediator.proto import federation_pb2 as pb
    from fedpilot.mediator.wire.blobs.store import BlobStore
    from fedpilot.mediator.wire.payloads import read, write
    from fedpilot.mediator.wire.rpc import CHANNEL_OPTIONS, MESSAGE_OPTIONS
    from fedpilot.mediator.wire.transfer import (
        BlobClient,
        BlobStub,
        TransferSettings,
        keep_freed_memory,
    )
    from fedpilot.mediator.workload import Payload

    folder = Path(place)
    if not plain:
        keep_freed_memory()
    rng = np.random.default_rng(0)
    one = megabytes * 10**6 // TENSORS // 4
    model = Payload(
        kind="model", tensors={f"layer{n}": rng.random(one, np.float32) for n in range(TENSORS)}
    )
    authority = Authority.open(folder / "certs")
    credentials = client_credentials(authority.issue("site", Role.SITE, now=time.time()))
    options = MESSAGE_OPTIONS if plain else (*CHANNEL_OPTIONS, *MESSAGE_OPTIONS)
    async with grpc.aio.secure_channel(f"{HOST}:{port}", credentials, options=options) as channel:
        forget = channel.unary_unary(f"/{RAW}/Forget")
        server_cpu = channel.unary_unary(f"/{RAW}/Cpu")
        store = BlobStore(folder / "client", 1 << 40)
        blobs = BlobClient(
            BlobStub(channel), store, lambda *_: None, TransferSettings(piece_bytes=piece_bytes)
        )
        (folder / "server").mkdir(exist_ok=True)
        header, blob = write(model, folder / "server")
        assert blob is not None
        piece, count = bytes(piece_bytes), blob.size // piece_bytes

        def raw(
            suffix: str, piece: Any, write: Callable[[Any], bytes] | None, read: Any
        ) -> tuple[Way, Way]:
            """Down and up, in messages if they are written and read as such."""
            calls = (
                channel.unary_stream(f"/{RAW}/Down{suffix}", response_deserializer=read),
                channel.stream_unary(f"/{RAW}/Up{suffix}", request_serializer=write),
            )

            async def pieces() -> AsyncIterator[Any]:
                for _ in range(count):
                    yield piece

            async def down() -> None:
                came = 0
                async for each in calls[0](str(count).encode(), wait_for_ready=True):
                    came += len(each.data if read else each)
                assert came == count * piece_bytes

            async def up() -> None:
                came = await calls[1](pieces(), wait_for_ready=True)
                assert int(came) == count * piece_bytes

            return down, up

        async def down() -> None:
            payload = read("model", header, await blobs.download(blob))
            assert len(payload.tensors) == TENSORS

        async def up() -> None:
            await blobs.upload(blob, run="run", key="key")

        raw_down, raw_up = raw("", piece, None, None)
        messages_down, messages_up = raw(
            "Messages", pb.Piece(data=piece), pb.Piece.SerializeToString, pb.Piece.FromString
        )
        ways: dict[str, Way] = {
            "raw_down": raw_down,
            "down": down,
            "messages_down": messages_down,
            "raw_up": raw_up,
            "up": up,
            "messages_up": messages_up,
        }
        print(blob.size, flush=True)
        while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if name == "up":
                await forget(blob.digest.encode())
            if name == "down":
                store.path(blob.digest).unlink(missing_ok=True)
            cpu = time.process_time() + float(await server_cpu(b""))
            started = time.perf_counter()
            async with asyncio.timeout(PATIENCE_S):
                await ways[name]()
            wall = time.perf_counter() - started
            cpu = time.process_time() + float(await server_cpu(b"")) - cpu
            print(json.dumps([wall, cpu]), flush=True)


WAYS = (
    ("down", False, "down"),
    ("kept_down", False, "raw_down"),
    ("messages_down", True, "messages_down"),
    ("raw_down", True, "raw_down"),
    ("up", False, "up"),
    ("kept_up", False, "raw_up"),
    ("messages_up", True, "messages_up"),
    ("raw_up", True, "raw_up"),
)
"""What is measured: its name, whether in plain processes, and which of the client's ways it is."""


def child(piece_kib: int, megabytes: int, times: int) -> Run:
    """Two pairs of processes, in folders of their own; the ways by turns."""
    clients, sizes = {}, {}
    with ExitStack() as stack:
        for plain in (False, True):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="transfer-"))
            words = (folder, piece_kib << 10, int(plain))
            server = stack.enter_context(process("transfer:serve", *words))
            words = (folder, line_of(server).strip(), piece_kib << 10, megabytes, int(plain))
            clients[plain] = stack.enter_context(process("transfer:client", *words))
            sizes[plain] = int(line_of(clients[plain]))
        found: dict[str, list[float]] = {}
        for turn in range(times + 1):
            for name, plain, way in reversed(WAYS) if turn % 2 else WAYS:
                asked = clients[plain].stdin
                assert asked is not None
                print(way, file=asked, flush=True)
                wall, cpu = json.loads(line_of(clients[plain]))
                if turn:  # the first is to warm up
                    found.setdefault(f"{name}_s", []).append(wall)
                    found.setdefault(f"{name}_cpu_s", []).append(cpu)
    return {"piece_bytes": piece_kib << 10, "bytes": sizes[False], **found}


# -- all of them ----------------------------------------------------------------------------------


HEADER = (
    "way",
    "blob, MB/s",
    "raw messages, MB/s",
    "blob ÷ raw messages",
    "blob ÷ raw bytes",
    "blob ÷ raw bytes, same settings",
    "CPU, blob ÷ raw messages",
    "runs",
)


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table on the page; each figure is from the median turn of its run."""
    rows = []
    for name, each in runs.items():
        for way, word in (("down", "to a site"), ("up", "from a site")):
            mine, messages, raw, kept = (
                [rate(run, which + way) for run in each]
                for which in ("", "messages_", "raw_", "kept_")
            )
            cpu, raw_cpu = (
                [spread(run[f"{which}{way}_cpu_s"]).median for run in each]
                for which in ("", "messages_")
            )
            rates = [spread(found).text(factor=1e-6) for found in (mine, messages)]
            shares = [ratios(mine, theirs).text(2) for theirs in (messages, raw, kept)]
            more_cpu = ratios(cpu, raw_cpu).text(2)
            rows.append([f"{word}, {name}", *rates, *shares, more_cpu, str(len(each))])
    return table(HEADER, rows)


def rate(run: Run, way: str) -> float:
    """Bytes in a second of a way's median turn."""
    return float(run["bytes"]) / spread(run[f"{way}_s"]).median


def share(run: Run, way: str) -> float:
    """What a blob gets of a raw stream, of messages as protobuf's own code makes them.

    That is what raw streaming with gRPC is: bare bytes have no schema that could be checked.
    """
    return rate(run, way) / rate(run, f"messages_{way}")


def main() -> None:
    options = parser(__doc__ or "", reps=3)
    options.add_argument("--pieces", type=int, nargs="+", default=list(PIECES_KIB), help="KiB")
    options.add_argument("--megabytes", type=int, default=MEGABYTES)
    options.add_argument("--times", type=int, default=10, help="blobs each way in a process")
    arguments = options.parse_args()

    def once(name: str, _turn: int) -> Run:
        return called("transfer:child", todo[name], arguments.megabytes, arguments.times)

    def say(run: Run) -> str:
        return ", ".join(f"{share(run, way):.2f} {way}" for way in ("down", "up"))

    todo = {f"pieces of {kib:,} KiB": kib for kib in arguments.pieces}
    print("\n" + text(measured(SECTION, todo, once, say, arguments)))
