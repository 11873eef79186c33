"""What a blob's way between a site and its mediator costs beside raw gRPC streams of that size.

All over loopback with mutual TLS, a server and a client process, by turns. Raw streams carry bytes
that were there before, and whoever gets them drops them: as bare messages, and as the messages
that a blob travels in, with the code that protobuf generates. A blob is read from a file, sent,
hashed, written, checked and opened as a payload. Both processes keep the memory that they freed,
as the mediator and the agents do.
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


async def serve(folder: Path, piece_bytes: int) -> None:
    """Raw streams and a BlobService; prints its port, and ends when stdin does."""
    import grpc

    from fedpilot.mediator.blobs import BlobStore
    from fedpilot.mediator.proto import federation_pb2 as pb
    from fedpilot.mediator.rpc import MESSAGE_OPTIONS
    from fedpilot.mediator.transfer import (
        BlobService,
        TransferSettings,
        blob_handler,
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
    server = grpc.aio.server(options=MESSAGE_OPTIONS)
    server.add_generic_rpc_handlers(
        (blob_handler(service), grpc.method_handlers_generic_handler(RAW, raw))
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
def server(folder: Path, piece_kib: int) -> Iterator[int]:
    """The port of a server process of our own."""
    command = [sys.executable, __file__, "--serve", str(folder), "--pieces", str(piece_kib)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        end(process)


# -- the client process ---------------------------------------------------------------------------


async def client(folder: Path, port: int, piece_bytes: int, megabytes: int, times: int) -> Run:
    """Seconds of each way, by turns, and CPU seconds of both processes."""
    import grpc
    import numpy as np

    from fedpilot.mediator.blobs import BlobStore
    from fedpilot.mediator.payloads import read, write
    from fedpilot.mediator.proto import federation_pb2 as pb
    from fedpilot.mediator.rpc import MESSAGE_OPTIONS
    from fedpilot.mediator.transfer import (
        BlobClient,
        BlobStub,
        TransferSettings,
        keep_freed_memory,
    )
    from fedpilot.mediator.workload import Payload

    keep_freed_memory()
    rng = np.random.default_rng(0)
    one = megabytes * 10**6 // TENSORS // 4
    model = Payload(
        kind="model", tensors={f"layer{n}": rng.random(one, np.float32) for n in range(TENSORS)}
    )
    key, certificate, authority = _pems(folder, "client")
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    async with grpc.aio.secure_channel(
        f"{HOST}:{port}", credentials, options=MESSAGE_OPTIONS
    ) as channel:
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

        ways: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("raw_down", down_raw),
            ("down", down),
            ("messages_down", down_in_messages),
            ("raw_up", up_raw),
            ("up", up),
            ("messages_up", up_in_messages),
        ]
        found: dict[str, list[float]] = {}
        for turn in range(times + 1):
            for name, go in reversed(ways) if turn % 2 else ways:
                if name == "up":
                    await forget(blob.digest.encode())
                if name == "down":
                    store.path(blob.digest).unlink(missing_ok=True)
                cpu = _cpu_s() + float(await server_cpu(b""))
                started = time.perf_counter()
                async with asyncio.timeout(PATIENCE_S):
                    await go()
                if turn:  # the first is to warm up
                    found.setdefault(f"{name}_s", []).append(time.perf_counter() - started)
                    cpu = _cpu_s() + float(await server_cpu(b"")) - cpu
                    found.setdefault(f"{name}_cpu_s", []).append(cpu)
    return {"piece_bytes": piece_bytes, "bytes": blob.size, **found}


def child(piece_kib: int, megabytes: int, times: int) -> Run:
    """One pair of processes, in a folder of their own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transfer-")))
        certificates(folder)
        port = stack.enter_context(server(folder, piece_kib))
        return asyncio.run(client(folder, port, piece_kib << 10, megabytes, times))


# -- all of them ----------------------------------------------------------------------------------


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table that the page shows."""
    return table(HEADER, rows(runs))


HEADER = (
    "way",
    "blob, MB/s",
    "raw, MB/s",
    "blob ÷ raw",
    "raw Pieces, MB/s",
    "blob ÷ raw Pieces",
    "CPU, blob ÷ raw",
    "runs",
)


def rows(runs: Mapping[str, list[Run]]) -> Iterator[list[str]]:
    """The table, after `HEADER`: a figure of a run is that of its median turn."""
    for name, each in runs.items():
        for way, word in (("down", "to a site"), ("up", "from a site")):
            mine, raw, messages = (
                [_rate(run, which + way) for run in each] for which in ("", "raw_", "messages_")
            )
            cpu, raw_cpu = (
                [spread(run[f"{which}{way}_cpu_s"]).median for run in each]
                for which in ("", "raw_")
            )
            yield [
                f"{word}, {name}",
                scaled(spread(mine), 1e-6).text(),
                scaled(spread(raw), 1e-6).text(),
                ratios(mine, raw).text(2),
                scaled(spread(messages), 1e-6).text(),
                ratios(mine, messages).text(2),
                ratios(cpu, raw_cpu).text(2),
                str(len(each)),
            ]


def _rate(run: Run, way: str) -> float:
    """Bytes in a second of a way's median turn."""
    return float(run["bytes"]) / spread(run[f"{way}_s"]).median


def main() -> None:
    options = parser(__doc__ or "", reps=3)
    options.add_argument("--pieces", type=int, nargs="+", default=list(PIECES_KIB), help="KiB")
    options.add_argument("--megabytes", type=int, default=MEGABYTES)
    options.add_argument("--times", type=int, default=10, help="blobs each way in a process")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve, arguments.pieces[0] << 10))
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
        shares = (f"{_rate(run, w) / _rate(run, f'raw_{w}'):.2f} {w}" for w in ("down", "up"))
        return ", ".join(shares)

    todo = {f"pieces of {kib:,} KiB": kib for kib in arguments.pieces}
    found = measured(SECTION, todo, once, say, arguments, ours())
    print("\n" + text(found))


if __name__ == "__main__":
    main()
