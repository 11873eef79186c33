from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("protocol", "site", "token", "certificate_request")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    site: str
    token: str
    certificate_request: str
    def __init__(self, protocol: _Optional[int] = ..., site: _Optional[str] = ..., token: _Optional[str] = ..., certificate_request: _Optional[str] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("certificate", "authority")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    certificate: str
    authority: str
    def __init__(self, certificate: _Optional[str] = ..., authority: _Optional[str] = ...) -> None: ...

class FromSite(_message.Message):
    __slots__ = ("number", "hello", "heartbeat", "taken", "answer", "happened")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    HAPPENED_FIELD_NUMBER: _ClassVar[int]
    number: int
    hello: Hello
    heartbeat: Heartbeat
    taken: Taken
    answer: Answer
    happened: Happened
    def __init__(self, number: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., happened: _Optional[_Union[Happened, _Mapping]] = ...) -> None: ...

class ToSite(_message.Message):
    __slots__ = ("number", "welcome", "renewal", "order", "answer_taken", "farewell")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TAKEN_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    number: int
    welcome: Welcome
    renewal: Renewal
    order: Order
    answer_taken: AnswerTaken
    farewell: Farewell
    def __init__(self, number: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., renewal: _Optional[_Union[Renewal, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., answer_taken: _Optional[_Union[AnswerTaken, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "site", "version", "agent", "capacity", "data_json", "held", "runs", "link")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    site: str
    version: str
    agent: str
    capacity: Capacity
    data_json: str
    held: _containers.RepeatedCompositeFieldContainer[OrderId]
    runs: _containers.RepeatedScalarFieldContainer[str]
    link: Link
    def __init__(self, protocol: _Optional[int] = ..., site: _Optional[str] = ..., version: _Optional[str] = ..., agent: _Optional[str] = ..., capacity: _Optional[_Union[Capacity, _Mapping]] = ..., data_json: _Optional[str] = ..., held: _Optional[_Iterable[_Union[OrderId, _Mapping]]] = ..., runs: _Optional[_Iterable[str]] = ..., link: _Optional[_Union[Link, _Mapping]] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("up", "down", "round_trip_s", "up_measured_at", "down_measured_at")
    UP_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    UP_MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    DOWN_MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    up: float
    down: float
    round_trip_s: float
    up_measured_at: float
    down_measured_at: float
    def __init__(self, up: _Optional[float] = ..., down: _Optional[float] = ..., round_trip_s: _Optional[float] = ..., up_measured_at: _Optional[float] = ..., down_measured_at: _Optional[float] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "heartbeat_s", "lease_s", "piece_bytes", "largest_blob_bytes")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    PIECE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_BLOB_BYTES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    heartbeat_s: float
    lease_s: float
    piece_bytes: int
    largest_blob_bytes: int
    def __init__(self, protocol: _Optional[int] = ..., heartbeat_s: _Optional[float] = ..., lease_s: _Optional[float] = ..., piece_bytes: _Optional[int] = ..., largest_blob_bytes: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("capacity", "trouble", "round_trip_s")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    capacity: Capacity
    trouble: str
    round_trip_s: float
    def __init__(self, capacity: _Optional[_Union[Capacity, _Mapping]] = ..., trouble: _Optional[str] = ..., round_trip_s: _Optional[float] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("total", "free", "machines")
    class TotalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class FreeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    total: _containers.ScalarMap[str, float]
    free: _containers.ScalarMap[str, float]
    machines: int
    def __init__(self, total: _Optional[_Mapping[str, float]] = ..., free: _Optional[_Mapping[str, float]] = ..., machines: _Optional[int] = ...) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, runs: _Optional[_Iterable[str]] = ...) -> None: ...

class OrderId(_message.Message):
    __slots__ = ("run", "key")
    RUN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    run: str
    key: str
    def __init__(self, run: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("id", "verb", "kind", "header_json", "blob", "round", "purpose")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEADER_JSON_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    id: OrderId
    verb: str
    kind: str
    header_json: str
    blob: Blob
    round: int
    purpose: str
    def __init__(self, id: _Optional[_Union[OrderId, _Mapping]] = ..., verb: _Optional[str] = ..., kind: _Optional[str] = ..., header_json: _Optional[str] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ..., round: _Optional[int] = ..., purpose: _Optional[str] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ("digest", "size")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size: int
    def __init__(self, digest: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: OrderId
    def __init__(self, id: _Optional[_Union[OrderId, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "done", "failure")
    ID_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    id: OrderId
    done: Done
    failure: Failure
    def __init__(self, id: _Optional[_Union[OrderId, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("kind", "header_json", "blob")
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEADER_JSON_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    kind: str
    header_json: str
    blob: Blob
    def __init__(self, kind: _Optional[str] = ..., header_json: _Optional[str] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "args_json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    args_json: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., args_json: _Optional[str] = ...) -> None: ...

class AnswerTaken(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: OrderId
    def __init__(self, id: _Optional[_Union[OrderId, _Mapping]] = ...) -> None: ...

class Happened(_message.Message):
    __slots__ = ("run", "kind", "header_json")
    RUN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEADER_JSON_FIELD_NUMBER: _ClassVar[int]
    run: str
    kind: str
    header_json: str
    def __init__(self, run: _Optional[str] = ..., kind: _Optional[str] = ..., header_json: _Optional[str] = ...) -> None: ...

class Farewell(_message.Message):
    __slots__ = ("reason", "final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    final: bool
    def __init__(self, reason: _Optional[str] = ..., final: _Optional[bool] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("digest", "offset")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("blob", "order")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    blob: Blob
    order: OrderId
    def __init__(self, blob: _Optional[_Union[Blob, _Mapping]] = ..., order: _Optional[_Union[OrderId, _Mapping]] = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("digest", "offset", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    data: bytes
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("protocol", "certificate_request")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    certificate_request: str
    def __init__(self, protocol: _Optional[int] = ..., certificate_request: _Optional[str] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: str
    def __init__(self, certificate: _Optional[str] = ...) -> None: ...

class FromCoordinator(_message.Message):
    __slots__ = ("attach", "order", "event_json", "withdraw", "reply", "alive")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    EVENT_JSON_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
    order: SiteOrder
    event_json: str
    withdraw: Withdraw
    reply: Reply
    alive: Alive
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., order: _Optional[_Union[SiteOrder, _Mapping]] = ..., event_json: _Optional[str] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Attach(_message.Message):
    __slots__ = ("run", "protocol")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    run: str
    protocol: int
    def __init__(self, run: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class SiteOrder(_message.Message):
    __slots__ = ("site", "order")
    SITE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    site: str
    order: Order
    def __init__(self, site: _Optional[str] = ..., order: _Optional[_Union[Order, _Mapping]] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("site", "id")
    SITE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    site: str
    id: OrderId
    def __init__(self, site: _Optional[str] = ..., id: _Optional[_Union[OrderId, _Mapping]] = ...) -> None: ...

class ToCoordinator(_message.Message):
    __slots__ = ("sites", "answer", "happened", "stop", "request", "bytes")
    SITES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    HAPPENED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    sites: Sites
    answer: SiteAnswer
    happened: SiteHappened
    stop: Stop
    request: Request
    bytes: Bytes
    def __init__(self, sites: _Optional[_Union[Sites, _Mapping]] = ..., answer: _Optional[_Union[SiteAnswer, _Mapping]] = ..., happened: _Optional[_Union[SiteHappened, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., bytes: _Optional[_Union[Bytes, _Mapping]] = ...) -> None: ...

class Sites(_message.Message):
    __slots__ = ("sites",)
    SITES_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedCompositeFieldContainer[SiteStanding]
    def __init__(self, sites: _Optional[_Iterable[_Union[SiteStanding, _Mapping]]] = ...) -> None: ...

class SiteStanding(_message.Message):
    __slots__ = ("name", "state", "reason", "capacity", "data_json", "link")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    reason: str
    capacity: Capacity
    data_json: str
    link: Link
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., capacity: _Optional[_Union[Capacity, _Mapping]] = ..., data_json: _Optional[str] = ..., link: _Optional[_Union[Link, _Mapping]] = ...) -> None: ...

class SiteAnswer(_message.Message):
    __slots__ = ("site", "answer")
    SITE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    site: str
    answer: Answer
    def __init__(self, site: _Optional[str] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class SiteHappened(_message.Message):
    __slots__ = ("site", "happened")
    SITE_FIELD_NUMBER: _ClassVar[int]
    HAPPENED_FIELD_NUMBER: _ClassVar[int]
    site: str
    happened: Happened
    def __init__(self, site: _Optional[str] = ..., happened: _Optional[_Union[Happened, _Mapping]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Bytes(_message.Message):
    __slots__ = ("flows", "links")
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[FlowBytes]
    links: _containers.RepeatedCompositeFieldContainer[LinkSeconds]
    def __init__(self, flows: _Optional[_Iterable[_Union[FlowBytes, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkSeconds, _Mapping]]] = ...) -> None: ...

class LinkSeconds(_message.Message):
    __slots__ = ("round", "site", "bytes", "seconds")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    round: int
    site: str
    bytes: int
    seconds: float
    def __init__(self, round: _Optional[int] = ..., site: _Optional[str] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class FlowBytes(_message.Message):
    __slots__ = ("round", "site", "direction", "purpose", "bytes")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    round: int
    site: str
    direction: str
    purpose: str
    bytes: int
    def __init__(self, round: _Optional[int] = ..., site: _Optional[str] = ..., direction: _Optional[str] = ..., purpose: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "kind", "header_json", "blob")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEADER_JSON_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    header_json: str
    blob: Blob
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., header_json: _Optional[str] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("id", "done", "failure")
    ID_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    id: str
    done: Done
    failure: Failure
    def __init__(self, id: _Optional[str] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("protocol", "run", "config_yaml", "name", "interactive", "code", "shared", "priority_class", "ask_json")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CONFIG_YAML_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    ASK_JSON_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    config_yaml: str
    name: str
    interactive: bool
    code: bytes
    shared: bool
    priority_class: str
    ask_json: str
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., config_yaml: _Optional[str] = ..., name: _Optional[str] = ..., interactive: _Optional[bool] = ..., code: _Optional[bytes] = ..., shared: _Optional[bool] = ..., priority_class: _Optional[str] = ..., ask_json: _Optional[str] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class RunReply(_message.Message):
    __slots__ = ("run_json",)
    RUN_JSON_FIELD_NUMBER: _ClassVar[int]
    run_json: str
    def __init__(self, run_json: _Optional[str] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("most", "after")
    MOST_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    most: int
    after: str
    def __init__(self, most: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListRunsReply(_message.Message):
    __slots__ = ("run_json", "more")
    RUN_JSON_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    run_json: _containers.RepeatedScalarFieldContainer[str]
    more: int
    def __init__(self, run_json: _Optional[_Iterable[str]] = ..., more: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("run", "after", "follow")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    run: str
    after: int
    follow: bool
    def __init__(self, run: _Optional[str] = ..., after: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "event_json")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EVENT_JSON_FIELD_NUMBER: _ClassVar[int]
    number: int
    event_json: str
    def __init__(self, number: _Optional[int] = ..., event_json: _Optional[str] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("run", "follow")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    run: str
    follow: bool
    def __init__(self, run: _Optional[str] = ..., follow: _Optional[bool] = ...) -> None: ...

class LogPart(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ListFilesReply(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[File]
    def __init__(self, files: _Optional[_Iterable[_Union[File, _Mapping]]] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("path", "size")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    path: str
    size: int
    def __init__(self, path: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("run", "path")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    run: str
    path: str
    def __init__(self, run: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class AskRunRequest(_message.Message):
    __slots__ = ("run", "kind", "header_json", "tensors", "blob")
    RUN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HEADER_JSON_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    run: str
    kind: str
    header_json: str
    tensors: bytes
    blob: Blob
    def __init__(self, run: _Optional[str] = ..., kind: _Optional[str] = ..., header_json: _Optional[str] = ..., tensors: _Optional[bytes] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ...) -> None: ...

class AskRunReply(_message.Message):
    __slots__ = ("done", "failure", "tensors")
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    done: Done
    failure: Failure
    tensors: bytes
    def __init__(self, done: _Optional[_Union[Done, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., tensors: _Optional[bytes] = ...) -> None: ...

class ListSitesRequest(_message.Message):
    __slots__ = ("site",)
    SITE_FIELD_NUMBER: _ClassVar[int]
    site: str
    def __init__(self, site: _Optional[str] = ...) -> None: ...

class ListSitesReply(_message.Message):
    __slots__ = ("site_json",)
    SITE_JSON_FIELD_NUMBER: _ClassVar[int]
    site_json: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, site_json: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeSiteRequest(_message.Message):
    __slots__ = ("site", "change", "timeout_s")
    SITE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    site: str
    change: str
    timeout_s: float
    def __init__(self, site: _Optional[str] = ..., change: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class SiteReply(_message.Message):
    __slots__ = ("site_json",)
    SITE_JSON_FIELD_NUMBER: _ClassVar[int]
    site_json: str
    def __init__(self, site_json: _Optional[str] = ...) -> None: ...

class RunAtSiteRequest(_message.Message):
    __slots__ = ("site", "arguments")
    SITE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    site: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, site: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ...) -> None: ...

class RunAtSiteReply(_message.Message):
    __slots__ = ("exit_code", "out", "err")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    ERR_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    out: str
    err: str
    def __init__(self, exit_code: _Optional[int] = ..., out: _Optional[str] = ..., err: _Optional[str] = ...) -> None: ...

class MakeTokenRequest(_message.Message):
    __slots__ = ("site", "valid_s")
    SITE_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    site: str
    valid_s: float
    def __init__(self, site: _Optional[str] = ..., valid_s: _Optional[float] = ...) -> None: ...

class MakeTokenReply(_message.Message):
    __slots__ = ("token", "expires_at")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires_at: float
    def __init__(self, token: _Optional[str] = ..., expires_at: _Optional[float] = ...) -> None: ...

class RevokeRequest(_message.Message):
    __slots__ = ("which",)
    WHICH_FIELD_NUMBER: _ClassVar[int]
    which: str
    def __init__(self, which: _Optional[str] = ...) -> None: ...

class RevokeReply(_message.Message):
    __slots__ = ("serials",)
    SERIALS_FIELD_NUMBER: _ClassVar[int]
    serials: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, serials: _Optional[_Iterable[str]] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("last",)
    LAST_FIELD_NUMBER: _ClassVar[int]
    last: int
    def __init__(self, last: _Optional[int] = ...) -> None: ...

class ListAuditReply(_message.Message):
    __slots__ = ("entry_json",)
    ENTRY_JSON_FIELD_NUMBER: _ClassVar[int]
    entry_json: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entry_json: _Optional[_Iterable[str]] = ...) -> None: ...

class ToRunner(_message.Message):
    __slots__ = ("greeting", "order", "answer_taken", "lease", "farewell")
    GREETING_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TAKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    greeting: Greeting
    order: Order
    answer_taken: AnswerTaken
    lease: Lease
    farewell: Farewell
    def __init__(self, greeting: _Optional[_Union[Greeting, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., answer_taken: _Optional[_Union[AnswerTaken, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("protocol", "lease")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    lease: Lease
    def __init__(self, protocol: _Optional[int] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_s",)
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    lease_s: float
    def __init__(self, lease_s: _Optional[float] = ...) -> None: ...

class FromRunner(_message.Message):
    __slots__ = ("held", "answer", "happened", "farewell")
    HELD_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    HAPPENED_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    held: Held
    answer: Answer
    happened: Happened
    farewell: Farewell
    def __init__(self, held: _Optional[_Union[Held, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., happened: _Optional[_Union[Happened, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("protocol", "run", "site", "at_work", "answered")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    AT_WORK_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    site: str
    at_work: _containers.RepeatedCompositeFieldContainer[OrderId]
    answered: _containers.RepeatedCompositeFieldContainer[OrderId]
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., site: _Optional[str] = ..., at_work: _Optional[_Iterable[_Union[OrderId, _Mapping]]] = ..., answered: _Optional[_Iterable[_Union[OrderId, _Mapping]]] = ...) -> None: ...
