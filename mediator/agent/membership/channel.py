"""MediatorChannels: the connections to the mediator, under the site's current certificate.

Control and data have separate connections, so a heartbeat never waits behind a model: at 1 Mbit/s
the megabytes that gRPC and the kernel have buffered take longer than a mediator waits for a site. A
new certificate opens new connections; calls may finish on the old ones within `OLD_LINE_S`, and
callers repeat the others.
"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from ...identity import Credentials
from ...identity.tls import client_credentials
from ...wire.rpc import (
    CHANNEL_OPTIONS,
    DATA_CHANNEL_OPTIONS,
    MESSAGE_OPTIONS,
    OWN_CONNECTION_OPTION,
    SITE,
    Stub,
)
from ...wire.transfer import BlobStub

OLD_LINE_S = 3_600.0
"""How long calls may continue on replaced channels."""


class MediatorChannels:
    """Channels to one mediator; the newest are in use. For one event loop."""

    def __init__(
        self, mediator: str, credentials: Credentials, *, old_line_s: float = OLD_LINE_S
    ) -> None:
        """`mediator` is HOST:PORT."""
        self.mediator = mediator
        self._old_line_s = old_line_s
        self._ending: set[asyncio.Task[None]] = set()
        self._old: list[grpc.aio.Channel] = []
        self._open(credentials)

    def _open(self, credentials: Credentials) -> None:
        self.credentials = credentials
        control, data = (
            grpc.aio.secure_channel(
                self.mediator, client_credentials(credentials), (*options, *MESSAGE_OPTIONS)
            )
            for options in ((*CHANNEL_OPTIONS, OWN_CONNECTION_OPTION), DATA_CHANNEL_OPTIONS)
        )
        self._channels = (control, data)
        self.site, self.blobs = Stub(control, SITE), BlobStub(data)

    def replace(self, credentials: Credentials) -> None:
        old = self._channels
        self._open(credentials)
        for channel in old:
            self._old.append(channel)
            ending = asyncio.create_task(self._end(channel))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end(self, old: grpc.aio.Channel) -> None:
        await old.close(self._old_line_s)
        self._old.remove(old)

    async def close(self) -> None:
        """Close all channels at once; may be called twice."""
        for ending in tuple(self._ending):
            ending.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        for channel in (*self._old, *self._channels):
            await channel.close()
        self._old.clear()
