"""What a blob's way between a site and its mediator costs beside raw gRPC streams of that size.

All over loopback with mutual TLS, a server and a client process of each kind, by turns. Raw streams
carry bytes that were there before, and whoever gets them drops them: as the messages that a blob
travels in, with the code that protobuf generates, and as bare bytes. A blob is read from a file,
sent, hashed, written, checked and opened as a payload. Its processes have what the mediator and the
agents have: they keep freed memory, and set some of gRPC's options. Those of the raw streams are
left as Python and gRPC start them, but for the limit of a message; bare bytes are measured both
ways.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from measuring import (
    Failed,
    Run,
    end,
    measured,
    ours,
    parser,
    ratios,
    result_of,
    scaled,
    spread,
    table,
)

SECTION = "transfer"
PIECES_KIB = (256, 1024, 2048)
MEGABYTES = 200
TENSORS = 20
HOST = "localhost"
PATIENCE_S = 60.0
RAW = "fedpilot.benchmarks.Raw"


# -- certificates ---------------------------------------------------------------------------------


def certificates(folder: Path) -> None:
    """An authority, a server and a client with EC P-256 keys, as PEM files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    for who in ("authority", "server", "client"):
        own = who == "authority"
        key = authority_key if own else ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)]))
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=own, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        (folder / f"{who}.pem").write_bytes(certificate.public_bytes(pem))
        (folder / f"{who}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )


def _pems(folder: Path, who: str) -> tuple[bytes, bytes, bytes]:
    found = (f"{who}.key", f"{who}.pem", "authority.pem")
    key, certificate, authority = ((folder / name).read_bytes() for name in found)
    return key, certificate, authority


# -- the server process ---------------------------------------------------------------------------


async def serve(folder: Path, piece_bytes: int, plain: bool) -> None:
    """Raw streams and a BlobService; prints its port, and ends when stdin does.

    A `plain` one is as Python starts it.
    """
    import grpc

    from fedpilot.mediator.proto import federation_pb2 as pb
    from fedpilot.mediator.server.process import SERVER_OPTIONS
    from fedpilot.mediator.server.services.blob_handlers import blob_handlers
    from fedpilot.mediator.wire.blobs.store import BlobStore
    from fedpilot.mediator.wire.rpc import MESSAGE_OPTIONS
    from fedpilot.mediator.wire.transfer import (
        BlobService,
        TransferSettings,
        keep_freed_memory,
    )

    class Open:
        """A gate that refuses nothing."""

        def site_of(self, _context: Any) -> str:
            return "site"

        def refuses_fetch(self, *_: Any) -> str:
            return ""

        def refuses_push(self, *_: Any) -> str:
            return ""

        def book(self, *_: Any) -> None:
            pass

    if not plain:
        keep_freed_memory()
    piece = bytes(piece_bytes)
    message = pb.Piece(data=piece)

    async def down_messages(count: bytes, _context: Any) -> AsyncIterator[pb.Piece]:
        for _ in range(int(count)):
            yield message

    async def up_messages(pieces: AsyncIterator[pb.Piece], _context: Any) -> bytes:
        came = 0
        async for each in pieces:
            came += len(each.data)
        return str(came).encode()

    async def down(count: bytes, _context: Any) -> AsyncIterator[bytes]:
        for _ in range(int(count)):
            yield piece

    async def up(pieces: AsyncIterator[bytes], _context: Any) -> bytes:
        came = 0
        async for each in pieces:
            came += len(each)
        return str(came).encode()

    async def forget(digest: bytes, _context: Any) -> bytes:
        (folder / "server" / digest.decode()).unlink()
        return b""

    async def cpu(_request: bytes, _context: Any) -> bytes:
        return str(_cpu_s()).encode()

    service = BlobService(
        BlobStore(folder / "server", 1 << 40),
        Open(),
        largest_bytes=1 << 40,
        settings=TransferSettings(piece_bytes=piece_bytes),
    )
    raw = {
        "Down": grpc.unary_stream_rpc_method_handler(down),
        "Up": grpc.stream_unary_rpc_method_handler(up),
        "DownMessages": grpc.unary_stream_rpc_method_handler(
            down_messages, None, pb.Piece.SerializeToString
        ),
        "UpMessages": grpc.stream_unary_rpc_method_handler(up_messages, pb.Piece.FromString),
        "Forget": grpc.unary_unary_rpc_method_handler(forget),
        "Cpu": grpc.unary_unary_rpc_method_handler(cpu),
    }
    server = grpc.aio.server(options=MESSAGE_OPTIONS if plain else SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (blob_handlers(service), grpc.method_handlers_generic_handler(RAW, raw))
    )
    key, certificate, authority = _pems(folder, "server")
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], authority, require_client_auth=True
    )
    port = server.add_secure_port(f"{HOST}:0", credentials)
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def process(folder: Path, piece_kib: int, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of this file, which ends when its stdin does."""
    command = [sys.executable, __file__, "--folder", str(folder), "--pieces", str(piece_kib)]
    started = subprocess.Popen(
        [*command, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        end(started)


def line_of(process: subprocess.Popen[str]) -> str:
    """What it says next. Raises `Failed` if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise Failed("a process of the pair ended")
    return line


# -- the client process ---------------------------------------------------------------------------


async def client(folder: Path, port: int, piece_bytes: int, megabytes: int, plain: bool) -> None:
    """Go the ways that stdin names; prints the blob's bytes, and each way's wall and CPU seconds.

    The CPU seconds are those of both processes.
    """
    import grpc
    import numpy as np

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

    if not plain:
        keep_freed_memory()
    rng = np.random.default_rng(0)
    one = megabytes * 10**6 // TENSORS // 4
    model = Payload(
        kind="model", tensors={f"layer{n}": rng.random(one, np.float32) for n in range(TENSORS)}
    )
    key, certificate, authority = _pems(folder, "client")
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    options = MESSAGE_OPTIONS if plain else (*CHANNEL_OPTIONS, *MESSAGE_OPTIONS)
    async with grpc.aio.secure_channel(f"{HOST}:{port}", credentials, options=options) as channel:
        raw_down = channel.unary_stream(f"/{RAW}/Down")
        raw_up = channel.stream_unary(f"/{RAW}/Up")
        down_messages = channel.unary_stream(
            f"/{RAW}/DownMessages", response_deserializer=pb.Piece.FromString
        )
        up_messages = channel.stream_unary(
            f"/{RAW}/UpMessages", request_serializer=pb.Piece.SerializeToString
        )
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

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(count):
                yield piece

        async def down_raw() -> None:
            came = 0
            async for each in raw_down(str(count).encode(), wait_for_ready=True):
                came += len(each)
            assert came == count * piece_bytes

        async def up_raw() -> None:
            came = await raw_up(pieces(), wait_for_ready=True)
            assert int(came) == count * piece_bytes

        async def messages() -> AsyncIterator[pb.Piece]:
            message = pb.Piece(data=piece)
            for _ in range(count):
                yield message

        async def down_in_messages() -> None:
            came = 0
            async for each in down_messages(str(count).encode(), wait_for_ready=True):
                came += len(each.data)
            assert came == count * piece_bytes

        async def up_in_messages() -> None:
            came = await up_messages(messages(), wait_for_ready=True)
            assert int(came) == count * piece_bytes

        async def down() -> None:
            payload = read("model", header, await blobs.download(blob))
            assert len(payload.tensors) == TENSORS

        async def up() -> None:
            await blobs.upload(blob, run="run", key="key")

        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "raw_down": down_raw,
            "down": down,
            "messages_down": down_in_messages,
            "raw_up": up_raw,
            "up": up,
            "messages_up": up_in_messages,
        }
        print(blob.size, flush=True)
        while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if name == "up":
                await forget(blob.digest.encode())
            if name == "down":
                store.path(blob.digest).unlink(missing_ok=True)
            cpu = _cpu_s() + float(await server_cpu(b""))
            started = time.perf_counter()
            async with asyncio.timeout(PATIENCE_S):
                await ways[name]()
            wall = time.perf_counter() - started
            cpu = _cpu_s() + float(await server_cpu(b"")) - cpu
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
            made = tempfile.TemporaryDirectory(prefix="transfer-")
            folder = Path(stack.enter_context(made))
            certificates(folder)
            words = ["--plain"] if plain else []
            server = stack.enter_context(process(folder, piece_kib, "--serve", *words))
            words += ["--megabytes", str(megabytes), "--port", line_of(server).strip()]
            clients[plain] = stack.enter_context(process(folder, piece_kib, *words))
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


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table that the page shows."""
    return table(HEADER, rows(runs))


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


def rows(runs: Mapping[str, list[Run]]) -> Iterator[list[str]]:
    """The table, after `HEADER`: a figure of a run is that of its median turn."""
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
            yield [
                f"{word}, {name}",
                scaled(spread(mine), 1e-6).text(),
                scaled(spread(messages), 1e-6).text(),
                ratios(mine, messages).text(2),
                ratios(mine, raw).text(2),
                ratios(mine, kept).text(2),
                ratios(cpu, raw_cpu).text(2),
                str(len(each)),
            ]


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
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    piece_bytes = arguments.pieces[0] << 10
    if arguments.serve:
        asyncio.run(serve(arguments.folder, piece_bytes, arguments.plain))
        return
    if arguments.port:
        port, megabytes, plain = arguments.port, arguments.megabytes, arguments.plain
        asyncio.run(client(arguments.folder, port, piece_bytes, megabytes, plain))
        return
    if arguments.child:
        found = child(arguments.pieces[0], arguments.megabytes, arguments.times)
        print("RESULT " + json.dumps(found))
        return

    def once(name: str, _turn: int) -> Run:
        words = ["--pieces", todo[name], "--megabytes", arguments.megabytes]
        words += ["--times", arguments.times, "--child"]
        return result_of([sys.executable, __file__, *map(str, words)])

    def say(run: Run) -> str:
        return ", ".join(f"{share(run, way):.2f} {way}" for way in ("down", "up"))

    todo = {f"pieces of {kib:,} KiB": kib for kib in arguments.pieces}
    found = measured(SECTION, todo, once, say, arguments, ours())
    print("\n" + text(found))


if __name__ == "__main__":
    main()
