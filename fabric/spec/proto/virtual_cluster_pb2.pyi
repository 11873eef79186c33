from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SchedulingPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PACK: _ClassVar[SchedulingPolicy]
    SPREAD: _ClassVar[SchedulingPolicy]
    STRICT_SPREAD: _ClassVar[SchedulingPolicy]
    STRICT_PACK: _ClassVar[SchedulingPolicy]
PACK: SchedulingPolicy
SPREAD: SchedulingPolicy
STRICT_SPREAD: SchedulingPolicy
STRICT_PACK: SchedulingPolicy

class VirtualCluster(_message.Message):
    __slots__ = ("flex_resource_min", "flex_resource_max", "fixed_size_nodes", "max_actors_without_resources")
    class FlexResourceMinEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class FlexResourceMaxEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FLEX_RESOURCE_MIN_FIELD_NUMBER: _ClassVar[int]
    FLEX_RESOURCE_MAX_FIELD_NUMBER: _ClassVar[int]
    FIXED_SIZE_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTORS_WITHOUT_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    flex_resource_min: _containers.ScalarMap[str, float]
    flex_resource_max: _containers.ScalarMap[str, float]
    fixed_size_nodes: _containers.RepeatedCompositeFieldContainer[FixedSizeNodes]
    max_actors_without_resources: int
    def __init__(self, flex_resource_min: _Optional[_Mapping[str, float]] = ..., flex_resource_max: _Optional[_Mapping[str, float]] = ..., fixed_size_nodes: _Optional[_Iterable[_Union[FixedSizeNodes, _Mapping]]] = ..., max_actors_without_resources: _Optional[int] = ...) -> None: ...

class FixedSizeNodes(_message.Message):
    __slots__ = ("nodes", "scheduling_policy", "max_nodes")
    NODES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_POLICY_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[FixedSizeNode]
    scheduling_policy: SchedulingPolicy
    max_nodes: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[FixedSizeNode, _Mapping]]] = ..., scheduling_policy: _Optional[_Union[SchedulingPolicy, str]] = ..., max_nodes: _Optional[int] = ...) -> None: ...

class FixedSizeNode(_message.Message):
    __slots__ = ("resources", "parent_node_selector", "labels")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    PARENT_NODE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.ScalarMap[str, float]
    parent_node_selector: LabelMatchExpressions
    labels: _containers.ScalarMap[str, str]
    def __init__(self, resources: _Optional[_Mapping[str, float]] = ..., parent_node_selector: _Optional[_Union[LabelMatchExpressions, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LabelMatchExpressions(_message.Message):
    __slots__ = ("expressions",)
    EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    expressions: _containers.RepeatedCompositeFieldContainer[LabelMatchExpression]
    def __init__(self, expressions: _Optional[_Iterable[_Union[LabelMatchExpression, _Mapping]]] = ...) -> None: ...

class LabelMatchExpression(_message.Message):
    __slots__ = ("key", "operator")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: LabelOperator
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[_Union[LabelOperator, _Mapping]] = ...) -> None: ...

class LabelOperator(_message.Message):
    __slots__ = ("label_in", "label_not_in", "label_exists", "label_does_not_exist")
    LABEL_IN_FIELD_NUMBER: _ClassVar[int]
    LABEL_NOT_IN_FIELD_NUMBER: _ClassVar[int]
    LABEL_EXISTS_FIELD_NUMBER: _ClassVar[int]
    LABEL_DOES_NOT_EXIST_FIELD_NUMBER: _ClassVar[int]
    label_in: LabelIn
    label_not_in: LabelNotIn
    label_exists: LabelExists
    label_does_not_exist: LabelDoesNotExist
    def __init__(self, label_in: _Optional[_Union[LabelIn, _Mapping]] = ..., label_not_in: _Optional[_Union[LabelNotIn, _Mapping]] = ..., label_exists: _Optional[_Union[LabelExists, _Mapping]] = ..., label_does_not_exist: _Optional[_Union[LabelDoesNotExist, _Mapping]] = ...) -> None: ...

class LabelIn(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class LabelNotIn(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class LabelExists(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LabelDoesNotExist(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
