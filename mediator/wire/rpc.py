"""gRPC services from their descriptors: handlers for an object's methods, and stubs to call them.

Methods have their names of the .proto file, in snake case. `protoc` would generate untyped code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from ..proto import federation_pb2 as pb

JOIN, SITE, COORDINATOR, USER, RUNNER = (
    pb.DESCRIPTOR.services_by_name[f"{name}Service"]
    for name in ("Join", "Site", "Coordinator", "User", "Runner")
)
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 3_000),  # in effect, the least time that an attempt gets
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
"""Notice a silently cut link, and retry soon.

Shorter attempts would fail on slow links, and when hundreds of sites connect at once.
"""
OWN_CONNECTION_OPTION = ("grpc.use_local_subchannel_pool", 1)
"""Without it, channels to one address with equal options share a connection."""
DATA_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *(option for option in CHANNEL_OPTIONS if option[0] != "grpc.keepalive_timeout_ms"),
    ("grpc.keepalive_timeout_ms", 30_000),
    OWN_CONNECTION_OPTION,
)
"""For a connection that carries only blobs.

At 1 Mbit/s a keepalive ping waits 12 s behind the bytes that gRPC and the kernel have buffered. The
usual timeout would end the connection in mid-transfer.
"""
MANY_PEERS_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
)
"""For a server that gets blobs from hundreds of peers at once: bounds each peer's unread bytes.

By default gRPC raises that bound up to 8 MB for each peer. 4 MiB fill a link of 300 Mbit/s with a
round trip of 100 ms. 200 sites that send 10 MB at once then cost the mediator 1.8 GB.
"""
LARGEST_MESSAGE = 8 << 20
"""Bytes of a message in either direction; blobs travel in far smaller pieces."""
MESSAGE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
)
TOO_MANY_CALLS = "too many calls at once"
"""Prefix of a refusal, with UNAVAILABLE, that says nothing about the request itself."""
NO_ROOM_NOW = "no room now"
"""The same for a full disk."""


def snake(name: str) -> str:
    """Turn `ListRuns` into `list_runs`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def handler(service: ServiceDescriptor, implementation: object) -> grpc.GenericRpcHandler:
    """Serve an object's methods: functions for `grpc.server`, coroutines for `grpc.aio.server`."""
    return grpc.method_handlers_generic_handler(
        service.full_name,
        {
            method.name: _handler(method, getattr(implementation, snake(method.name)))
            for method in service.methods
        },
    )


def _handler(method: MethodDescriptor, act: Callable[..., Any]) -> Any:
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    wrap = kinds[method.client_streaming, method.server_streaming]
    asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return wrap(act, asked.FromString, answered.SerializeToString)


class Stub:
    """The methods of a service over a channel, as attributes in snake case."""

    def __init__(self, channel: Any, service: ServiceDescriptor) -> None:
        for method in service.methods:
            names = {True: "stream", False: "unary"}
            kind = f"{names[method.client_streaming]}_{names[method.server_streaming]}"
            call = getattr(channel, kind)(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, snake(method.name), call)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"the service has no method {name}")
