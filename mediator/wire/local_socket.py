"""Unix sockets in private folders, and gRPC in processes that fork."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COORDINATORS_SOCKET = "coordinators.sock"
"""In a mediator's folder."""
RUNNER_SOCKET = "runner.sock"
"""In a runner's folder."""
LONGEST_PATH = 100
"""Bytes; Linux accepts 107 in a socket's path."""
LARGEST_LOCAL_MESSAGE = 32 << 20
"""Bytes, with room for `rpc.LARGEST_MESSAGE` and its envelope.

A larger message would end a coordinator or runner, and each of its successors.
"""
LOCAL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", LARGEST_LOCAL_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_LOCAL_MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),
)
"""Each channel has its own connection, so it does not back off after another's failure."""
NO_FORK_HANDLERS = {"GRPC_ENABLE_FORK_SUPPORT": "0"}
"""Environment for processes that fork beside gRPC's threads, as Ray and users' code do.

gRPC reads it on import. Its own handlers would block at each fork, or complain on stderr. A forked
process must not use its parent's channels and servers.
"""


@contextmanager
def local_address(folder: Path, name: str) -> Iterator[str]:
    """A socket's address for gRPC; too long a path is replaced by an open descriptor's."""
    path = folder.resolve() / name
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield f"unix:{path}"
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"unix:/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
