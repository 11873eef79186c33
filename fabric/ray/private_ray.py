"""All private parts of Ray that the fabric uses, and whether the installed Ray has them.

They were tested on the Rays from FLOOR to TRIED (`make floor`, decision 27). `require` checks
names, parameters and message fields before their first use, and names what a changed Ray lacks.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from ..errors import UnsupportedRay

FLOOR, TRIED = "2.52.0", "2.60.0"
"""The oldest and the newest Ray on which the tests pass."""

MANAGER, INSIDE, JOBS, STATE = "the manager", "work inside", "jobs", "the state of work"
DECLARED = "declared Ray clusters"
"""The purposes of the private parts."""


@dataclass(frozen=True, slots=True)
class PrivateName:
    """A part of Ray, with the parameters (of a function) or fields (of a message) in use."""

    module: str
    name: str
    takes: tuple[str, ...] = ()
    in_python: bool = False
    """Whether it must be a function whose code can be replaced (`patching.reroute`)."""

    def lacks(self) -> list[str]:
        """The names of what is missing."""
        full = f"{self.module}.{self.name}"
        try:
            found: Any = importlib.import_module(self.module)
            for each in self.name.split("."):
                found = getattr(found, each)
        except (ImportError, AttributeError):
            return [full]
        if self.in_python and not inspect.isfunction(inspect.unwrap(found)):
            return [f"{full} as a function in Python"]
        known = _accepted(found)
        return [f"{full}({name})" for name in self.takes if known is not None and name not in known]


def _accepted(found: Any) -> Iterable[str] | None:
    """The parameters or fields of a part; None if it takes any, or if that is unknown."""
    if hasattr(found, "DESCRIPTOR"):
        return [field.name for field in found.DESCRIPTOR.fields]
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return None
    return parameters


_CHANNEL = PrivateName(
    "ray._private.grpc_utils", "init_grpc_channel", ("address", "options", "asynchronous")
)
_GENERATED = "ray.core.generated"
_RPCS = {
    "PlacementGroupInfo": (
        "CreatePlacementGroup",
        "GetAllPlacementGroup",
        "GetPlacementGroup",
        "RemovePlacementGroup",
        "WaitPlacementGroupUntilReady",
    ),
    "NodeInfo": ("GetAllNodeInfo", "UnregisterNode"),
    "NodeResourceInfo": ("GetAllAvailableResources", "GetAllResourceUsage"),
    "ActorInfo": ("GetAllActorInfo",),
    "TaskInfo": ("GetTaskEvents",),
    "JobInfo": ("GetAllJobInfo",),
    "WorkerInfo": ("GetWorkerInfo",),
}

NEEDS: Mapping[str, Sequence[PrivateName]] = {
    MANAGER: (
        _CHANNEL,
        *(
            PrivateName(f"{_GENERATED}.gcs_service_pb2_grpc", f"{name}GcsServiceStub")
            for name in _RPCS
        ),
        *(
            PrivateName(f"{_GENERATED}.gcs_service_pb2", f"{call}Request")
            for calls in _RPCS.values()
            for call in calls
        ),
        PrivateName(
            f"{_GENERATED}.common_pb2",
            "PlacementGroupSpec",
            ("placement_group_id", "name", "strategy", "bundles", "creator_job_id", "is_detached"),
        ),
        PrivateName(f"{_GENERATED}.common_pb2", "Bundle", ("unit_resources", "label_selector")),
        PrivateName(f"{_GENERATED}.common_pb2", "NodeDeathInfo", ("reason", "reason_message")),
        PrivateName(
            f"{_GENERATED}.gcs_pb2", "PlacementGroupTableData", ("state", "bundles", "stats")
        ),
        PrivateName(f"{_GENERATED}.gcs_pb2", "PlacementGroupStats", ("scheduling_state",)),
        PrivateName(
            f"{_GENERATED}.gcs_pb2", "GcsNodeInfo", ("node_id", "resources_total", "labels")
        ),
        PrivateName("ray._private.state", "state.node_table"),
        PrivateName("ray._private.worker", "global_worker.node"),
        PrivateName("ray._private.ray_constants", "AUTOSCALER_RESOURCE_REQUEST_CHANNEL"),
        PrivateName("ray.autoscaler.v2.utils", "is_autoscaler_v2"),
        PrivateName("ray.experimental.internal_kv", "_internal_kv_get"),
        PrivateName(
            "ray.experimental.internal_kv", "_internal_kv_put", ("key", "value", "overwrite")
        ),
        PrivateName(f"{_GENERATED}.autoscaler_pb2_grpc", "AutoscalerStateServiceStub"),
        PrivateName(
            f"{_GENERATED}.autoscaler_pb2", "ClusterResourceConstraint", ("resource_requests",)
        ),
        PrivateName(f"{_GENERATED}.autoscaler_pb2", "ResourceRequestByCount", ("request", "count")),
    ),
    INSIDE: (
        PrivateName("ray.remote_function", "RemoteFunction._remote"),
        PrivateName("ray.remote_function", "RemoteFunction.options"),
        PrivateName("ray.actor", "ActorClass._remote"),
        PrivateName("ray.actor", "ActorClass.options"),
        PrivateName(
            "ray.util.placement_group",
            "placement_group",
            ("bundles", "strategy", "name", "lifetime", "bundle_label_selector"),
            in_python=True,
        ),
        PrivateName("ray.util.placement_group", "remove_placement_group", in_python=True),
        PrivateName("ray.util.placement_group", "PlacementGroup", ("id", "bundle_cache")),
        PrivateName("ray", "shutdown", in_python=True),
        PrivateName("ray._private.state", "cluster_resources", in_python=True),
        PrivateName("ray._private.state", "available_resources", in_python=True),
        PrivateName("ray._private.state", "nodes", in_python=True),
        PrivateName("ray._private.worker", "WORKER_MODE"),
        PrivateName("ray._private.worker", "Worker.should_capture_child_tasks_in_placement_group"),
        PrivateName("ray._raylet", "PlacementGroupID"),
        PrivateName("ray._raylet", "CoreWorker.get_placement_group_id"),
        PrivateName("ray._raylet", "CoreWorker.resource_ids"),
    ),
    JOBS: (PrivateName("ray._private.worker", "get_dashboard_url"),),
    DECLARED: (
        PrivateName(f"{_GENERATED}.gcs_service_pb2_grpc", "NodeInfoGcsServiceStub"),
        PrivateName(f"{_GENERATED}.gcs_service_pb2_grpc", "InternalKVGcsServiceStub"),
        PrivateName(f"{_GENERATED}.gcs_service_pb2", "GetAllNodeInfoRequest", ("state_filter",)),
        PrivateName(f"{_GENERATED}.gcs_service_pb2", "InternalKVGetRequest", ("key",)),
        PrivateName(f"{_GENERATED}.gcs_service_pb2", "UnregisterNodeRequest", ("node_id",)),
        PrivateName(
            f"{_GENERATED}.gcs_pb2",
            "GcsNodeInfo",
            ("node_name", "is_head_node", "node_manager_hostname"),
        ),
        PrivateName(f"{_GENERATED}.autoscaler_pb2_grpc", "AutoscalerStateServiceStub"),
        PrivateName(f"{_GENERATED}.autoscaler_pb2", "GetClusterResourceStateRequest"),
        PrivateName(
            f"{_GENERATED}.autoscaler_pb2",
            "NodeState",
            ("node_id", "status", "idle_duration_ms", "available_resources"),
        ),
        PrivateName(f"{_GENERATED}.autoscaler_pb2", "GangResourceRequest", ("requests", "details")),
        PrivateName("ray._private.node", "get_session_key_from_storage"),
        PrivateName(
            "ray._private.services",
            "start_ray_process",
            ("command", "process_type", "env_updates"),
        ),
        PrivateName(
            "ray._private.gcs_utils",
            "cleanup_redis_storage",
            ("host", "port", "password", "use_ssl", "storage_namespace", "username"),
        ),
        PrivateName(
            f"{_GENERATED}.autoscaler_pb2",
            "DrainNodeRequest",
            ("node_id", "reason", "reason_message", "deadline_timestamp_ms"),
        ),
    ),
    STATE: (
        _CHANNEL,
        PrivateName("ray.dashboard.state_aggregator", "StateAPIManager"),
        PrivateName(
            "ray.util.state.state_manager", "StateDataSourceClient", ("gcs_channel", "gcs_client")
        ),
        PrivateName("ray.util.state.common", "ListApiOptions", ("limit", "timeout", "detail")),
    ),
}


@lru_cache
def missing(purpose: str) -> tuple[str, ...]:
    """What the installed Ray lacks for a purpose."""
    return tuple(lack for part in NEEDS[purpose] for lack in part.lacks())


def require(*purposes: str) -> None:
    """Raise UnsupportedRay, with the missing names, if the installed Ray lacks any."""
    for purpose in purposes:
        if lacks := missing(purpose):
            raise UnsupportedRay(version("ray"), purpose, lacks, FLOOR, TRIED)


# -- the control plane ----------------------------------------------------------------------------


def channel(address: str) -> Any:
    """A channel to the GCS for coroutines, with Ray's credentials but not gRPC's limit of 4 MB."""
    options = (("grpc.max_receive_message_length", -1),)
    return module(_CHANNEL.module).init_grpc_channel(address, options, asynchronous=True)


def generated(name: str) -> Any:
    """A module of Ray's messages, such as `gcs_service_pb2`."""
    return module(f"{_GENERATED}.{name}")


def gcs_calls(channel: Any) -> dict[str, Any]:
    """The GCS calls that the manager makes, by name."""
    stubs = generated("gcs_service_pb2_grpc")
    return {
        call: getattr(getattr(stubs, f"{service}GcsServiceStub")(channel), call)
        for service, calls in _RPCS.items()
        for call in calls
    }


def node_table() -> list[dict[str, Any]]:
    """All machines; inside a virtual cluster, `ray.nodes` lists only the cluster's nodes."""
    found: list[dict[str, Any]] = state().state.node_table()
    return found


def session_folder() -> str:
    """The folder of this Ray cluster's session, with the same path on all machines."""
    return str(_worker().node.get_session_dir_path())


def dashboard_url() -> str | None:
    """The address of this Ray cluster's dashboard; None without one."""
    return module("ray._private.worker").get_dashboard_url() or None


class AutoscalerRequests:
    """The single request of Ray's autoscaler, which version 2 of the autoscaler stores elsewhere.

    Each part is a text that only Ray understands; others' parts go back to Ray unchanged.
    """

    TIMEOUT_S = 10.0

    def __init__(self, address: str) -> None:
        self._address = address

    def read(self) -> list[str]:
        if not self._second:
            found = self._kv._internal_kv_get(self._key)
            return [json.dumps(each, sort_keys=True) for each in json.loads(found or b"[]")]
        asked = generated("autoscaler_pb2").GetClusterResourceStateRequest()
        with self._service() as service:
            state = service.GetClusterResourceState(asked, timeout=self.TIMEOUT_S)
        constraints = state.cluster_resource_state.cluster_resource_constraints
        return [
            each.SerializeToString(deterministic=True).hex()
            for constraint in constraints
            for each in constraint.resource_requests
        ]

    def write(self, requests: Sequence[str]) -> None:
        """Replace the whole request."""
        if not self._second:
            value = json.dumps([json.loads(each) for each in requests])
            self._kv._internal_kv_put(self._key, value, overwrite=True)
            return
        messages = generated("autoscaler_pb2")
        asked = messages.RequestClusterResourceConstraintRequest()
        for each in requests:
            part = messages.ResourceRequestByCount.FromString(bytes.fromhex(each))
            asked.cluster_resource_constraint.resource_requests.append(part)
        with self._service() as service:
            service.RequestClusterResourceConstraint(asked, timeout=self.TIMEOUT_S)

    def encode(self, amounts: Sequence[Mapping[str, float]]) -> list[str]:
        """The parts of a request for these amounts."""
        if not self._second:
            return [json.dumps(dict(each), sort_keys=True) for each in amounts]
        messages, found = generated("autoscaler_pb2"), []
        for shape, count in Counter(tuple(sorted(each.items())) for each in amounts).items():
            part = messages.ResourceRequestByCount(count=count)
            part.request.resources_bundle.update(dict(shape))
            found.append(part.SerializeToString(deterministic=True).hex())
        return found

    @property
    def _second(self) -> bool:
        return bool(module("ray.autoscaler.v2.utils").is_autoscaler_v2())

    @staticmethod
    def put_value(key: bytes, value: bytes) -> None:
        """Write a value of Ray's key-value store, which is read from outside without a driver."""
        module("ray.experimental.internal_kv")._internal_kv_put(key, value, overwrite=True)

    @property
    def _kv(self) -> Any:
        return module("ray.experimental.internal_kv")

    @property
    def _key(self) -> bytes:
        key: bytes = module("ray._private.ray_constants").AUTOSCALER_RESOURCE_REQUEST_CHANNEL
        return key

    @contextmanager
    def _service(self) -> Iterator[Any]:
        with module(_CHANNEL.module).init_grpc_channel(self._address) as open_channel:
            yield generated("autoscaler_pb2_grpc").AutoscalerStateServiceStub(open_channel)


def processes_of(actor: str) -> set[str]:
    """The ids in hex of the worker processes of an actor, present and past."""
    accessor = state().state._connect_and_get_accessor()
    found = accessor.get_actor_info(module("ray._raylet").ActorID(bytes.fromhex(actor)))
    told = generated("gcs_pb2").ActorTableData.FromString(found)
    before = getattr(told, "previous_incarnations", ())  # older Rays lack it
    return {told.address.worker_id.hex(), *(each.worker_id.hex() for each in before)}


def printed_lines() -> Any:
    """Ray's filter of the lines that a driver prints; None if Ray has changed."""
    try:
        found = module("ray._private.ray_logging").stdout_deduplicator
        return found if hasattr(found, "skip_re") else None
    except (ImportError, AttributeError):
        return None


# -- this process ---------------------------------------------------------------------------------


def own_group() -> str | None:
    """The placement group that this worker runs in; None in a driver."""
    worker = _worker()
    if not worker.connected or worker.mode != module("ray._private.worker").WORKER_MODE:
        return None
    id = worker.core_worker.get_placement_group_id()
    return None if id.is_nil() else str(id.hex())


def captures() -> bool:
    """Whether work that this worker submits goes into its own placement group."""
    return bool(_worker().should_capture_child_tasks_in_placement_group)


def resource_names() -> Iterable[str]:
    """The names of the resources that this worker holds, in Ray's internal form."""
    held: Mapping[str, Any] = _worker().core_worker.resource_ids()
    return held


def group_handle(id: str, sizes: Sequence[Mapping[str, float]]) -> Any:
    """A handle of a placement group, made without asking Ray for its bundles."""
    group = module("ray._raylet").PlacementGroupID(bytes.fromhex(id))
    known = [dict(size) for size in sizes]
    return module("ray.util.placement_group").PlacementGroup(group, bundle_cache=known)


def state() -> Any:
    """The module behind `ray.nodes` and similar functions."""
    return module("ray._private.state")


def reread_authentication() -> None:
    """Make Ray read its authentication settings again, as on import."""
    raylet = module("ray._raylet")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    raylet.Config.initialize("")


def module(name: str) -> Any:
    """Import a module by name, since `ray.util` hides the module `placement_group`."""
    return importlib.import_module(name)


def starting() -> tuple[Any, Any, Any, Any]:
    """The modules that start a Ray (`embedded.KNOWN`): `node`, `services`, `worker`, `_raylet`."""
    names = ("node", "services", "worker")
    node, services, worker = (module(f"ray._private.{name}") for name in names)
    return node, services, worker, module("ray._raylet")


def redis_cleanup() -> Any:
    """The function that removes all that one Ray cluster has in a Redis."""
    return module("ray._private.gcs_utils").cleanup_redis_storage


def _worker() -> Any:
    return module("ray._private.worker").global_worker
