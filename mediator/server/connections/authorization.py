"""Guard: authorizes and audits calls, and turns errors into gRPC codes.

Every caller shows a certificate that the authority has signed and not revoked, with a role that may
make the call. Requests are parsed here, so malformed ones are refused and logged like others. Calls
that change something are audited.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ...core.rules.roles import (
    AUDITED_READS,
    Act,
    Role,
    act_of_change,
    act_of_command,
    may,
    refusal,
)
from ...errors import (
    BadRequest,
    MediatorError,
    NoSuchRun,
    NoSuchSite,
    NotPermitted,
    RequestRefused,
    RunExists,
    SiteUnreachable,
)
from ...identity import (
    Authority,
    IdentityError,
    NoSuchCertificate,
    PeerRefused,
    RenewalRefused,
    TokenRefused,
)
from ...identity.tls import Peer, peer_of
from ...proto import federation_pb2 as pb
from ...wire.blobs.errors import BadBlob, BlobBusy, NoRoom
from ...wire.blobs.full_disk import is_full
from ...wire.messages import BadMessage, ProtocolRefused, parsed
from ...wire.payloads import BadPayload
from ...wire.rpc import TOO_MANY_CALLS, snake
from ..settings import ServerSettings
from ..store import AuditEntry, StoreAway
from ..store.database import Database
from .rate_limiter import OpenCalls

log = logging.getLogger(__name__)

Call = Callable[..., Any]
FULL = "the mediator's disk is full; what runs waits until it has room"
LONGEST_REASON = 1_000
"""Characters of a refusal that the caller and the log get."""
FIRST_S = 30.0
"""How long the first message of a stream may take."""
FOLLOWED = frozenset({Act.FOLLOW_RUN, Act.RUN_LOG})
"""Streams that clients reopen every few minutes."""
NOTED_S = 3_600.0
"""Such a stream is audited once per this many seconds."""
MOST_NOTED = 10_000
SHOWN = 100
"""Longer fields appear in the audit log as their length only."""


class TooManyCalls(MediatorError):
    """A caller has as many calls open as it may have."""

    def __init__(self, who: str, most: int) -> None:
        super().__init__(who, most)
        self.who, self.most = who, most

    def __str__(self) -> str:
        return f"{TOO_MANY_CALLS}: {self.who} has {self.most} open; try again once some have ended"


_CODES: tuple[
    tuple[type[BaseException] | tuple[type[BaseException], ...], grpc.StatusCode], ...
] = (
    ((NoSuchRun, NoSuchSite, NoSuchCertificate), grpc.StatusCode.NOT_FOUND),
    (RunExists, grpc.StatusCode.ALREADY_EXISTS),
    (PeerRefused, grpc.StatusCode.UNAUTHENTICATED),
    ((NotPermitted, TokenRefused), grpc.StatusCode.PERMISSION_DENIED),
    ((RequestRefused, ProtocolRefused, RenewalRefused), grpc.StatusCode.FAILED_PRECONDITION),
    ((SiteUnreachable, TooManyCalls, StoreAway), grpc.StatusCode.UNAVAILABLE),
    ((BlobBusy, NoRoom), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (
        (BadMessage, BadRequest, BadPayload, BadBlob, IdentityError),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
)


def code_of(error: BaseException) -> grpc.StatusCode:
    """The gRPC code for a call that fails with this error."""
    if is_full(error):
        return grpc.StatusCode.UNAVAILABLE
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return grpc.StatusCode.INTERNAL


@dataclass(eq=False)
class Guard:
    """Admits callers, call by call."""

    _authority: Authority
    _database: Database
    _settings: ServerSettings
    _admitted: Callable[[str], None] = lambda peer: None
    """Called with the address of each caller whose certificate is valid."""
    _open: OpenCalls = field(default_factory=OpenCalls)
    _noted: dict[tuple[str, str, str, str], float] = field(default_factory=dict)
    """When streams of results were last audited, oldest first."""

    def peer(self, context: Any) -> Peer:
        """Identify a call's caller, once, and count the call. PeerRefused, TooManyCalls."""
        peer = peer_of(context)
        if objection := self.objection(peer):
            raise PeerRefused(objection)
        self._admitted(context.peer())
        limits, of_site = self._settings, peer.role is Role.SITE
        caller, most = (peer.role, peer.name), limits.site_calls if of_site else limits.user_calls
        if not self._open.begin(caller, most):
            raise TooManyCalls(f"{peer.role} {peer.name}", most)
        context.add_done_callback(lambda _: self._open.end(caller))
        return peer

    def objection(self, peer: Peer) -> str:
        """Say why a certificate is no longer valid; empty if it still is."""
        return self._authority.objection(peer.serial, time.time())

    def admit(self, context: Any, act: Act) -> Peer:
        """The caller, if its role permits `act`; PeerRefused or NotPermitted."""
        peer = self.peer(context)
        if not may(peer.role, act):
            raise NotPermitted(refusal(peer.name, peer.role, act))
        return peer

    def handlers(
        self, service: ServiceDescriptor, *implementations: object, only: tuple[str, ...] = ()
    ) -> grpc.GenericRpcHandler:
        """Serve a service's methods, or `only` some, by methods of the same names in snake case.

        They get the request and the caller. With a stream of requests they get the first one and
        the bytes of the others (a session: the bytes of all), the context and the caller.
        """
        made = {
            method.name: self._handler(method, _implemented(snake(method.name), implementations))
            for method in service.methods
            if method.name in only or not only
        }
        return grpc.method_handlers_generic_handler(service.full_name, made)

    def _handler(self, method: MethodDescriptor, act: Call) -> Any:
        answered = GetMessageClass(method.output_type).SerializeToString
        call = self.guarded(method, act)
        match method.client_streaming, method.server_streaming:
            case False, False:
                return grpc.unary_unary_rpc_method_handler(call, None, answered)
            case False, True:
                return grpc.unary_stream_rpc_method_handler(call, None, answered)
            case True, True:
                return grpc.stream_stream_rpc_method_handler(call, None, answered)
        raise TypeError(f"{method.full_name} is of a kind that no service has")

    def guarded(self, method: MethodDescriptor, act: Call) -> Call:
        """Wrap an implementation as in `handlers` for gRPC."""
        name = Act(snake(method.name))
        kind = GetMessageClass(method.input_type)

        async def read(data: Any, context: Any) -> tuple[Any, ...]:
            if name is Act.SESSION:
                return data, context
            if not method.client_streaming:
                return (parsed(kind, data),)
            async with asyncio.timeout(FIRST_S):
                first = await anext(data, b"")
            return parsed(kind, first), data, context

        def check(request: Any, peer: Peer) -> None:
            what = _act_of(name, request)
            if not may(peer.role, what):
                raise NotPermitted(refusal(peer.name, peer.role, what))

        async def answer(data: Any, context: Any) -> Any:
            request, peer, outcome = None, None, "the caller left meanwhile"
            try:
                try:
                    peer = self.peer(context)
                    asked = await read(data, context)
                    request = asked[0]
                    check(request, peer)
                    answered = await act(*asked, peer)
                    outcome = "done"
                    return answered
                except Exception as error:
                    outcome = str(error)
                    raise
                finally:  # on disk before the caller gets its answer
                    if name is not Act.SESSION:
                        await self._audit(name, request, peer, outcome)
            except Exception as error:
                await refuse(context, name, error, peer)

        async def answers(data: Any, context: Any) -> AsyncIterator[Any]:
            request, peer, told = None, None, False
            try:
                try:
                    peer = self.peer(context)
                    asked = await read(data, context)
                    request = asked[0]
                    check(request, peer)
                    async for each in act(*asked, peer):
                        if objection := self.objection(peer):
                            raise PeerRefused(objection)
                        if not told:
                            told = True
                            await self._audit_read(name, request, peer, "done")
                        yield each
                except Exception as error:
                    if not told:
                        await self._audit_read(name, request, peer, str(error))
                    raise
            except Exception as error:
                await refuse(context, name, error, peer)

        return answers if method.server_streaming and not method.client_streaming else answer

    async def _audit(self, name: Act, request: Any, peer: Peer | None, outcome: str) -> None:
        """Audit a call, done or refused, that a viewer may not make. StoreError."""
        act = name if request is None else _act_of(name, request)
        if peer is None or may(Role.VIEWER, act):
            return
        if peer.role is Role.SITE and (request is None or may(Role.SITE, act)):
            return  # usual calls of sites, and requests that could not be read
        await self._record(peer, act, _shown(request), outcome)

    async def _audit_read(self, name: Act, request: Any, peer: Peer | None, outcome: str) -> None:
        """Audit a call that reads a run's results, or its refusal, before it reads anything."""
        if peer is None or name not in AUDITED_READS:
            return
        what = _shown(request)
        if name in FOLLOWED:
            what = f"run={getattr(request, 'run', '')}"
            key, now = (peer.serial, name, what, outcome), time.monotonic()
            if now - self._noted.get(key, -NOTED_S) < NOTED_S:
                return
            self._noted.pop(key, None)
            self._noted[key] = now
            while len(self._noted) > MOST_NOTED:
                del self._noted[next(iter(self._noted))]
        await self._record(peer, name, what, outcome)

    async def _record(self, peer: Peer, act: Act, what: str, outcome: str) -> None:
        """Write an entry, even if the caller disconnects meanwhile."""
        entry = AuditEntry(
            at=time.time(),
            who=peer.name,
            role=peer.role,
            act=act,
            what=what,
            outcome=outcome[:LONGEST_REASON],
        )
        await asyncio.shield(asyncio.ensure_future(self._write(entry)))

    async def _write(self, entry: AuditEntry) -> None:
        record = self._database.store.record_audit
        try:
            await self._database.ask(record, entry)
        except StoreAway:
            self._database.write(record, entry)  # the caller gets a refusal
            raise


async def refuse(context: Any, act: str, error: Exception, peer: Peer | None) -> NoReturn:
    """End a call with an error, and log it; an unexpected error is logged with its traceback."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    code = code_of(error)
    who = f"{peer.name} ({peer.role})" if peer else "a stranger"
    if is_full(error):
        log.debug("refused %s of %s: %s", act, who, error)  # logged once already
        text = FULL
    elif code is grpc.StatusCode.INTERNAL and not isinstance(error, MediatorError):
        log.error("%s of %s at %s failed", act, who, context.peer(), exc_info=error)
        text = f"{act} failed in the mediator: its log tells more"
    else:
        text = " ".join(str(error).split())[:LONGEST_REASON]
        level = logging.DEBUG if isinstance(error, StoreAway) else logging.WARNING  # logged once
        log.log(level, "refused %s of %s at %s: %s: %s", act, who, context.peer(), code.name, text)
    try:
        await context.abort(code, text)
    except grpc.aio.InternalError as gone:
        # The caller has just disconnected: gRPC would log a traceback.
        raise asyncio.CancelledError(f"{who} has left") from gone
    raise AssertionError("abort does not return")


def _implemented(name: str, implementations: tuple[object, ...]) -> Call:
    """The method `name`, which exactly one of the objects must have."""
    found: list[Call] = [getattr(each, name) for each in implementations if hasattr(each, name)]
    (only,) = found
    return only


def _act_of(name: Act, request: Any) -> Act:
    """The act of a request: its method's, or a milder one because of its arguments."""
    match name:
        case Act.CHANGE_SITE if isinstance(request, pb.ChangeSiteRequest):
            return act_of_change(request.change)
        case Act.RUN_AT_SITE if isinstance(request, pb.RunAtSiteRequest):
            return act_of_command(request.arguments)
    return name


def _shown(request: Message | None) -> str:
    """The plain fields of a request, shortened; they hold no secrets."""
    if request is None:
        return ""
    plain: dict[str, Any] = {}
    for each, value in request.ListFields():
        if each.type == FieldDescriptor.TYPE_BYTES or each.message_type is not None:
            continue
        text = " ".join(map(str, value)) if each.is_repeated else str(value)
        plain[each.name] = text if len(text) <= SHOWN else f"{len(text)} characters"
    return ", ".join(f"{name}={value}" for name, value in plain.items())
