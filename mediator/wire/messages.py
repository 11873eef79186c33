"""The protocol's number, legal names, and records as messages, for both ends of the wire.

Every conversation begins with the number; unsupported numbers are refused. Unknown fields are
ignored, and can be listed. Names are checked first, since they may become file names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, NewType

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ..core.health import SiteState
from ..core.links import LinkSpeed
from ..errors import MediatorError
from ..proto import federation_pb2 as pb
from ..workload import Payload
from .blobs.blob import Blob
from .blobs.errors import BadBlob
from .blobs.store import BlobStore
from .payloads import read, write

PROTOCOL = 1
OLDEST_PROTOCOL = 1
COMMANDS = ""
"""Replaces the run in the id of the mediator's own orders to a site."""
VERBS = frozenset({"prepare", "commit", "release", "check", "start", "work", "command"})
MOST_HELD = 10_000
"""The most orders that a site may hold."""
MOST_NAMED = 20
"""The most unknown fields of a message that are named."""

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}")

RunId = NewType("RunId", str)
SiteName = NewType("SiteName", str)


class ProtocolRefused(MediatorError):
    """The other side speaks a protocol that this side does not."""


class BadMessage(MediatorError):
    """A message with impossible content, which the text names."""


class MissingBlob(BadMessage):
    """A message names a blob that is not in the shared store."""


class OrderId(NamedTuple):
    """An order's id, which stays the same when the coordinator restarts."""

    run: RunId
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The resources of a site's Ray cluster, by Ray's names."""

    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    machines: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStanding:
    """A coordinator's facts about a site."""

    name: SiteName
    state: SiteState
    reason: str = ""
    capacity: Capacity = field(default_factory=Capacity)
    data_json: str = ""
    """What the site discloses about its data sets."""
    link: LinkSpeed = field(default_factory=LinkSpeed)
    """As known when the mediator last said something of the site."""


# -- the number -----------------------------------------------------------------------------------


def check_protocol(found: int, *, here: str, there: str) -> None:
    """Raise ProtocolRefused, which names the side to upgrade, for an unsupported protocol."""
    if OLDEST_PROTOCOL <= found <= PROTOCOL:
        return
    older = f" to {PROTOCOL}" if OLDEST_PROTOCOL < PROTOCOL else ""
    behind = there if found < OLDEST_PROTOCOL else here
    raise ProtocolRefused(
        f"{here} speaks protocol {OLDEST_PROTOCOL}{older}, {there} speaks {found}: upgrade {behind}"
    )


def parsed(kind: type[Message], data: bytes) -> Any:
    """Parse a message; BadMessage if the bytes are malformed."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadMessage(f"{len(data)} bytes that are no {kind.DESCRIPTOR.name}") from None


def unknown_fields(message: Message) -> tuple[str, ...]:
    """Names, like `Hello.17`, of some fields that this version does not know."""
    kind, strange = message.DESCRIPTOR.name, UnknownFieldSet(message)
    some = range(min(len(strange), MOST_NAMED))
    found = {f"{kind}.{strange[index].field_number}" for index in some}
    for _, value in message.ListFields():
        if isinstance(value, Message):
            found.update(unknown_fields(value))
    return tuple(sorted(found))


class Numbering:
    """Numbers the messages in one direction of a session: 1, 2, 3."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """The number of the next message to send."""
        self._last += 1
        return self._last

    def check(self, number: int) -> None:
        """Raise BadMessage unless this is the number of the next message."""
        if number != self._last + 1:
            what = "repeats an earlier message" if number <= self._last else "leaves messages out"
            raise BadMessage(f"message number {number} came after {self._last}: it {what}")
        self._last = number


# -- names ----------------------------------------------------------------------------------------


def check_run(run: str) -> RunId:
    """Check a run's id; BadMessage."""
    if not _RUN.fullmatch(run):
        raise BadMessage(
            f"a run's id is 1 to 128 letters, digits, dots, dashes and underscores, "
            f"beginning with a letter or a digit; found {run[:80]!r}"
        )
    return RunId(run)


def check_site(name: str) -> SiteName:
    """Check a site's name; BadMessage."""
    if not _SITE.fullmatch(name):
        raise BadMessage(
            f"a site's name is 1 to 63 letters, digits, dots, dashes, underscores or @, beginning "
            f"with a letter or digit; found {name[:80]!r}"
        )
    return SiteName(name)


def order_id(found: pb.OrderId) -> OrderId:
    """Check the id of an order; BadMessage."""
    if not _KEY.fullmatch(found.key):
        raise BadMessage(
            f"an order's key is 1 to 256 letters, digits, dots, colons, slashes, dashes and "
            f"underscores; found {found.key[:80]!r}"
        )
    return OrderId(RunId(COMMANDS) if found.run == COMMANDS else check_run(found.run), found.key)


def id_message(order: OrderId) -> pb.OrderId:
    return pb.OrderId(run=order.run, key=order.key)


# -- records --------------------------------------------------------------------------------------


def blob_of(found: pb.Blob) -> Blob | None:
    """The blob that a message names, or None; BadMessage if its name is invalid."""
    if not found.digest:
        return None
    try:
        return Blob(found.digest, found.size)
    except BadBlob as error:
        raise BadMessage(str(error)) from error


def blob_message(blob: Blob | None) -> pb.Blob | None:
    """A blob's name as a message; None stays None."""
    return None if blob is None else pb.Blob(digest=blob.digest, size=blob.size)


def capacity_of(found: pb.Capacity) -> Capacity:
    """Parse a site's capacity; BadMessage if it is impossible."""
    if len(found.total) > 256 or len(found.free) > 256:
        raise BadMessage("a capacity names more than 256 resources")
    for resources in (found.total, found.free):
        for name, amount in resources.items():
            if len(name) > 128 or not 0 <= amount < 1e18:
                raise BadMessage(f"a capacity of {amount} {name[:80]!r} is none")
    return Capacity(total=dict(found.total), free=dict(found.free), machines=found.machines)


def capacity_message(capacity: Capacity) -> pb.Capacity:
    return pb.Capacity(total=capacity.total, free=capacity.free, machines=capacity.machines)


def standing_of(found: pb.SiteStanding) -> SiteStanding:
    """Parse a site's standing; BadMessage."""
    return SiteStanding(
        name=check_site(found.name),
        state=SiteState(found.state),
        reason=found.reason,
        capacity=capacity_of(found.capacity),
        data_json=found.data_json,
        link=LinkSpeed.from_json(link_figures(found.link)),
    )


def standing_message(standing: SiteStanding) -> pb.SiteStanding:
    return pb.SiteStanding(
        name=standing.name,
        state=standing.state,
        reason=standing.reason,
        capacity=capacity_message(standing.capacity),
        data_json=standing.data_json,
        link=link_message(standing.link),
    )


def link_figures(found: pb.Link) -> dict[str, float]:
    """The figures of a link by their names; those not known are 0."""
    return {field.name: getattr(found, field.name) for field in pb.Link.DESCRIPTOR.fields}


def link_message(link: LinkSpeed) -> pb.Link | None:
    """A link as a message; None if nothing is known of it."""
    return pb.Link(**link.to_json()) if link != LinkSpeed() else None


def check_order(order: pb.Order) -> OrderId:
    """Check an order and return its id; BadMessage says what is wrong."""
    found = order_id(order.id)
    if order.verb not in VERBS:
        raise BadMessage(
            f"an order's verb is one of {', '.join(sorted(VERBS))}; {order.verb!r:.80}"
        )
    blob_of(order.blob)
    return found


# -- payloads -------------------------------------------------------------------------------------


def done_message(payload: Payload, blobs: BlobStore) -> pb.Done:
    """Make a payload's message; its tensors become a blob of the store, for the caller to pin."""
    header, blob = write(payload, blobs)
    return pb.Done(kind=payload.kind, header_json=header, blob=blob_message(blob))


def payload_of(found: pb.Order | pb.Done | pb.Request, blobs: BlobStore) -> Payload:
    """Read the payload of a message whose blob is in the store. BadPayload, BadMessage."""
    blob = blob_of(found.blob)
    if blob is not None and not blobs.has(blob):
        raise MissingBlob(f"blob {blob.digest} is not there")
    path = None if blob is None else blobs.path(blob.digest)
    return read(found.kind, found.header_json, path)
