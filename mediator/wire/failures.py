"""Errors on a wire: class, message and arguments as JSON, never a pickle.

The receiver rebuilds an error if its class is fedpilot's and loaded; all others become WorkFailed.
A moved module keeps its name on the wire (`NAMED`), for peers of other versions. A site may send
anything: an error in another site's name is rejected, and texts lose control characters.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedpilot.common.text.plain_text import plain_line, plain_lines

from ..errors import AnswerUnreadable, SiteLost, WorkFailed
from ..proto import federation_pb2 as pb
from .blobs.errors import NoRoom
from .blobs.full_disk import is_full
from .messages import MissingBlob

OURS = "fedpilot."
NAMED = {
    "fedpilot.common.strict_yaml.errors:Problem": "fedpilot.federated.errors:Problem",
    "fedpilot.federated.core.population.federated_data.errors": "fedpilot.federated.core.union",
    "fedpilot.federated.core.population.partitions.partition": "fedpilot.federated.core.partition",
    "fedpilot.federated.core.rounds.participation": "fedpilot.federated.core.participation",
    "fedpilot.federated.core.sums.amounts:AnswerRefused": (
        "fedpilot.federated.core.partial_check:AnswerRefused"
    ),
    "fedpilot.federated.core.sums.partial_check": "fedpilot.federated.core.partial_check",
    "fedpilot.federated.core.user_code.registry": "fedpilot.federated.core.registry",
    "fedpilot.federated.engine.trainers.probe": "fedpilot.federated.engine.probe",
    "fedpilot.federated.federation.clients.publications": (
        "fedpilot.federated.federation.publications"
    ),
    "fedpilot.federated.federation.clients.topology_manager": (
        "fedpilot.federated.federation.topology_manager"
    ),
    "fedpilot.federated.federation.remote.query_server": "fedpilot.federated.answering",
    "fedpilot.mediator.agent.runner.errors": "fedpilot.mediator.runner.errors",
    "fedpilot.mediator.server.store.engines:StoreAway": "fedpilot.mediator.store.errors:StoreAway",
    "fedpilot.mediator.server.store.engines:StoreError": (
        "fedpilot.mediator.store.errors:StoreError"
    ),
    "fedpilot.mediator.wire.blobs.errors": "fedpilot.mediator.blobs",
    "fedpilot.mediator.wire.messages": "fedpilot.mediator.wire",
    "fedpilot.mediator.wire.payloads": "fedpilot.mediator.payloads",
    "fedpilot.mediator.wire.transfer.client": "fedpilot.mediator.transfer.client",
    "fedpilot.mediator.wire.transfer.pieces": "fedpilot.mediator.transfer.pieces",
}
"""Names on the wire of modules and single classes (`module:name`) that have moved."""
_MOVED_TO = {name: module for module, name in NAMED.items()}
LONGEST_TEXT = 4_000
"""How many of a message's last characters are kept; a traceback ends with the error."""
LARGEST_ARGS = 64 << 10
"""Bytes of an error's arguments; with more, only the text is sent."""
RECORD = "record"
BROKEN = frozenset({errno.EROFS, errno.EIO})
"""Errors of a broken disk: another site may do the work, as with a full disk."""


def machine_trouble(site: str, error: BaseException) -> BaseException:
    """Replace a disk error of the machine by SiteLost; return other errors unchanged."""
    if is_full(error):
        said = error.strerror if isinstance(error, OSError) else type(error).__name__
        return SiteLost(site, f"its disk is full: {said}")  # the site's log says where
    if isinstance(error, MissingBlob):
        return SiteLost(site, "what it was sent is not there any more")
    if isinstance(error, NoRoom):
        return SiteLost(site, "its store of models is full")
    if isinstance(error, OSError) and error.errno in BROKEN:
        return SiteLost(site, f"its disk is broken: {error.strerror or type(error).__name__}")
    return error


def told(error: BaseException) -> pb.Failure:
    cls = type(error)
    message = str(error) or cls.__name__
    if not _is_ours(cls):
        return pb.Failure(kind=cls.__qualname__, message=message[-LONGEST_TEXT:])
    try:
        args = json.dumps([_as_json(each) for each in error.args], allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        args = ""
    return pb.Failure(
        kind=_name_of(cls),
        message=message[-LONGEST_TEXT:],
        args_json=args if len(args) <= LARGEST_ARGS else "",
    )


def error_of(site: str, failure: pb.Failure) -> Exception:
    """Rebuild a site's error, in its own class if possible."""
    cls = _named(failure.kind)
    if cls is not None and issubclass(cls, Exception) and len(failure.args_json) > 0:
        try:
            values = json.loads(failure.args_json[:LARGEST_ARGS])
            made = cls(*(_made(value) for value in values))
            str(made)  # fails for wrong arguments
        except Exception:
            return _failed(site, failure)
        if (named := getattr(made, "site", site)) != site:
            return AnswerUnreadable(site, cls.__name__, f"it speaks in the name of {named!r:.80}")
        lost = machine_trouble(site, made)  # else it would look like trouble of our own disk
        return lost if isinstance(lost, SiteLost) else made
    return _failed(site, failure)


def _failed(site: str, failure: pb.Failure) -> WorkFailed:
    kind = plain_line(failure.kind.rpartition(":")[2][:200]) or "an error without a name"
    return WorkFailed(site, kind, plain_lines(failure.message[-LONGEST_TEXT:]))


def _is_ours(cls: type) -> bool:
    return issubclass(cls, Exception) and _named(_name_of(cls)) is cls


def _name_of(cls: type) -> str:
    path = f"{cls.__module__}:{cls.__qualname__}"
    return NAMED.get(path) or f"{NAMED.get(cls.__module__, cls.__module__)}:{cls.__qualname__}"


def _named(path: str) -> type | None:
    """Find a loaded fedpilot class that is defined in that module."""
    module, _, name = _MOVED_TO.get(path, path).partition(":")
    module = _MOVED_TO.get(module, module)
    if not module.startswith(OURS):
        return None
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and found.__module__ == module else None


def _as_json(value: Any) -> Any:
    """Convert to JSON; a record of an errors module includes its class name."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_as_json(each) for each in value]
        case Mapping():
            return {str(key): _as_json(each) for key, each in value.items()}
    cls = type(value)
    if not is_dataclass(value) or not _is_record(cls):
        raise TypeError(f"{cls.__name__} is no JSON value")
    values = {field.name: _as_json(getattr(value, field.name)) for field in fields(value)}
    return {RECORD: _name_of(cls), **values}


def _made(value: Any) -> Any:
    """The inverse of `_as_json`; lists become tuples."""
    match value:
        case str():
            return plain_lines(value)
        case list():
            return tuple(_made(each) for each in value)
        case dict():
            values = {plain_line(key): _made(each) for key, each in value.items()}
            cls = _named(str(values.pop(RECORD))) if RECORD in values else dict
            if cls is None or not (cls is dict or _is_record(cls)):
                raise TypeError("no record of ours")
            return cls(**values)
    return value


def _is_record(cls: type) -> bool:
    return is_dataclass(cls) and cls.__module__.endswith(".errors")
