"""Ray as a `Cluster`: the one place that talks to Ray.

A process has one Ray at most. Nothing here outlives the process: groups and actors have driver
lifetime, so Ray removes them when the process ends, however it ends.

Ray is imported by the functions that need it, because it reads its settings while it is imported.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import pickle
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..core.records import Bundle, Machine, MachineId, SchedulingPolicy, VNode
from ..core.resources import Resources
from ..core.selectors import to_ray
from ..errors import (
    ClusterStartFailed,
    ClusterUnreachable,
    FabricError,
    GangExists,
    NotInstalled,
    SpecError,
    WorkerFailed,
    WorkerLost,
)
from ..host.machine import load, niceness_of_workers, usable_cpus, usable_gpus
from . import home, private_ray
from .machine_check import not_installed
from .probe import answers, auth_mode_of, probe
from .protocol import GroupState
from .start import NICENESS, QUIET, START_S, RayThread, TooSlow, niceness, quick_settings

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

CONNECT_S = 120.0
"""How long a Ray that runs may take to answer, and to let us in."""
LOOK_S = 5.0
"""How long its control plane may take to answer once more, when it did not let us in."""
HALF_UP = (
    "its control plane answers, but no raylet has let us in {}. The raylet of its head, or of this "
    "machine, is dead, hangs or is overloaded: raylet.out in the logs of its session tells, and a "
    "new start helps"
)
REASON_LENGTH = 400
SMALL_ANSWER = 95_000
"""Bytes up to which an answer comes without the object store: Ray moves 100 KB at most so."""
SECOND_RAY = (
    "this process uses a Ray cluster already, and can use one only: attach() to it, or close it "
    "first"
)

_one_ray = threading.Lock()
"""Held from the start of this process's Ray to its end."""


class RayCluster:
    """The Ray cluster that this process uses."""

    def __init__(
        self, undo: ExitStack, started: RayThread | None = None, *, shared: bool = False
    ) -> None:
        self.shared = shared
        self._undo = undo
        self._started = started
        self._groups: set[RayGroup] = set()
        self._as_actor: Callable[[Any], Any] = functools.cache(_as_actor)
        self._closed = False
        atexit.register(self.close)

    @classmethod
    def embedded(
        cls,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        object_store_memory: int | None = None,
        timeout_s: float = START_S,
    ) -> RayCluster:
        """Start a Ray of our own, on this machine, that nobody else can enter."""
        with ExitStack() as undo:
            cluster = cls.starting(num_cpus, num_gpus, object_store_memory)
            undo.callback(cluster.close)
            cluster.wait(timeout_s)
            undo.pop_all()
        return cluster

    @classmethod
    def starting(
        cls,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        object_store_memory: int | None = None,
        *,
        processes: int = 0,
        preload: Sequence[str] = (),
    ) -> RayCluster:
        """Begin to start what `embedded` starts, and return at once: whoever uses it waits for it.

        So many of its processes begin with it, and import the modules of `preload` meanwhile.
        """
        with ExitStack() as undo:
            _claim(undo)
            folder = undo.enter_context(home.own_folder())
            own = {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(home.write_token(folder)),
                NICENESS: str(niceness()),
                # Workers import what this process can import.
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            }
            _set_environment(undo, {**QUIET, **quick_settings(preload), **own})
            ray = RayThread(
                private=True,
                processes=processes,
                address="local",
                num_cpus=usable_cpus() if num_cpus is None else num_cpus,
                num_gpus=usable_gpus() if num_gpus is None else num_gpus,
                object_store_memory=object_store_memory,
                include_dashboard=False,
                _temp_dir=str(folder),
            )
            undo.callback(ray.end)
            return cls(undo.pop_all(), ray)

    @classmethod
    def connect(
        cls, address: str, auth_mode: str | None = None, timeout_s: float = CONNECT_S
    ) -> RayCluster:
        """Attach to a Ray cluster that runs already: `host:port` of its head, or `auto`.

        Without an authentication mode, RAY_AUTH_MODE decides, and where that is not set, none is
        used. In mode `token`, RAY_AUTH_TOKEN_PATH names the file of the token. Raises
        ClusterUnreachable at once where no Ray is, and after `timeout_s` where one is too slow.
        """
        deadline = time.monotonic() + timeout_s
        mode = auth_mode_of(auth_mode)
        with ExitStack() as undo:
            _claim(undo)
            _set_environment(undo, {**QUIET, "RAY_AUTH_MODE": mode})
            found = address_of_this_machine() if address == "auto" else address
            probe(found, mode, timeout_s)
            ray = _attached(found, mode, deadline, timeout_s)
            undo.callback(ray.end)
            return cls(undo.pop_all(), ray, shared=True)

    @classmethod
    def attach(cls) -> RayCluster:
        """Use the Ray that this process has initialized, and leave it running on close."""
        import ray

        if not ray.is_initialized():
            raise FabricError("no Ray to attach to: call ray.init() first, or use embedded()")
        return cls(ExitStack())

    def wait(self, timeout_s: float = START_S) -> None:
        """Wait until this cluster can be used; ClusterStartFailed if it cannot be started."""
        self._check_open()
        if self._started is None:
            return
        try:
            self._started.wait(timeout_s)
        except TooSlow:
            raise ClusterStartFailed(f"it was not up after {timeout_s:g} s ({load()})") from None
        except Exception as error:
            raise ClusterStartFailed(_brief(str(error))) from error

    def machines(self) -> tuple[Machine, ...]:
        self.wait()
        import ray

        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return tuple(
            Machine(
                id=MachineId(node["NodeID"]),
                hostname=node["NodeManagerHostname"],
                total=_offered(node["Resources"]),
                labels=dict(node.get("Labels") or {}),
            )
            for node in sorted(nodes, key=lambda node: str(node["NodeID"]))
            if node["Alive"]
        )

    def create_group(
        self, name: str, bundles: Sequence[Bundle], policy: SchedulingPolicy
    ) -> RayGroup:
        self.wait()
        from ray.exceptions import RayError
        from ray.util import placement_group

        if _is_taken(name):  # Ray would refuse it too, but print that
            raise GangExists(name)
        labels = [machine.labels for machine in self.machines()] if _asks(bundles) else []
        try:
            made = placement_group(
                bundles=[bundle.resources.to_ray() for bundle in bundles],
                strategy=policy.value,
                name=name,
                bundle_label_selector=[to_ray(bundle.selector, labels) for bundle in bundles],
            )
        except ValueError as error:
            raise SpecError(f"Ray refuses the group {name!r}: {_brief(str(error))}") from error
        except RayError as error:
            if "already exists" in str(error):  # somebody was faster
                raise GangExists(name) from error
            raise FabricError(f"Ray refuses the group {name!r}: {_brief(str(error))}") from error
        group = RayGroup(made, self._as_actor, self._groups.discard)
        self._groups.add(group)
        return group

    def adopt_group(self, id: str, bundles: Sequence[Resources]) -> RayGroup:
        made = private_ray.group_handle(id, [bundle.to_ray() for bundle in bundles])
        group = RayGroup(made, self._as_actor, self._groups.discard, adopted=True)
        self._groups.add(group)
        return group

    def worker_niceness(self) -> int | None:
        if self._started is not None and not self.shared:
            return os.nice(0) + niceness()
        import ray

        return niceness_of_workers(ray.get_runtime_context().gcs_address)

    def put(self, value: Any) -> Any:
        self.wait()
        import ray

        return ray.put(value)

    def close(self) -> None:
        """End everything we started, and Ray itself if we started or joined it; may be repeated."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        with self._undo, ExitStack() as groups:
            for group in tuple(self._groups):
                groups.callback(group.remove)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise FabricError("this cluster is closed; open it again to use it")


class RayGroup:
    """A placement group with driver lifetime, and the workers on it."""

    def __init__(
        self,
        made: PlacementGroup,
        as_actor: Callable[[Any], Any],
        forget: Callable[[RayGroup], None],
        *,
        adopted: bool = False,
    ) -> None:
        self._made = made
        self._adopted = adopted
        self._ready = made.ready()
        self._as_actor = as_actor
        self._forget = forget
        self._workers: set[RayWorker] = set()
        self._removed = False

    def state(self) -> GroupState:
        if self._removed:
            return GroupState.REMOVED
        table = self._table()
        match table.get("state", "REMOVED"):
            case "CREATED":
                return GroupState.READY
            case "REMOVED":
                return GroupState.REMOVED
            case _:
                infeasible = table["stats"]["scheduling_state"] == "INFEASIBLE"
                if infeasible or _is_too_large(table["bundles"].values()):
                    return GroupState.INFEASIBLE
                return GroupState.PENDING

    def wait(self, timeout_s: float) -> tuple[MachineId, ...] | None:
        import ray

        ready, _ = ray.wait([self._ready], timeout=timeout_s)
        table = self._table()
        if not ready or table.get("state") != "CREATED":
            return None
        hosts = table["bundles_to_node_id"]
        return tuple(MachineId(hosts[bundle]) for bundle in sorted(hosts))

    def start_worker(
        self, vnode: VNode, bundle: int, name: str, cls: type[Any], args: Sequence[Any]
    ) -> RayWorker:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        amounts = vnode.resources.to_ray()
        options = {
            "name": name,
            "num_cpus": amounts.pop("CPU", 0),
            "num_gpus": amounts.pop("GPU", 0),
            "memory": amounts.pop("memory", None),
            "resources": amounts,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._made, placement_group_bundle_index=bundle
            ),
        }
        actor = self._as_actor(cls).options(**options).remote(*args)
        worker = RayWorker(name, vnode, actor, self._workers.discard)
        self._workers.add(worker)
        return worker

    def remove(self) -> None:
        import ray
        from ray.util import remove_placement_group

        if self._removed:
            return
        self._removed = True
        for worker in tuple(self._workers):
            worker.kill()
        if ray.is_initialized() and not self._adopted:
            remove_placement_group(self._made)
        self._forget(self)

    def _table(self) -> dict[str, Any]:
        from ray.util import placement_group_table

        table: dict[str, Any] = placement_group_table(self._made)
        return table


class RayWorker:
    """An actor and the calls that it has not answered yet."""

    def __init__(
        self, name: str, vnode: VNode, actor: Any, forget: Callable[[RayWorker], None]
    ) -> None:
        self.name, self.vnode = name, vnode
        self._actor = actor
        self._forget = forget
        self._open: set[Future[Any]] = set()
        self._killed = False
        self._lock = threading.Lock()

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()
        with self._lock:
            killed = self._killed
            self._open.add(answer)
        if killed:
            self._settle(answer, error=self._was_killed())
            return answer
        try:
            asked = self._actor.packed_call.remote(*_packed(method, args)).future()
        except Exception as error:
            self._settle(answer, error=_explained(self.name, method, error))
            return answer
        asked.add_done_callback(functools.partial(self._on_answer, answer, method))
        return answer

    def kill(self) -> None:
        import ray

        with self._lock:
            if self._killed:
                return
            self._killed = True
            unanswered = tuple(self._open)
        if ray.is_initialized():
            ray.kill(self._actor)
        for answer in unanswered:
            self._settle(answer, error=self._was_killed())
        self._forget(self)

    def _on_answer(self, answer: Future[Any], method: str, asked: Future[Any]) -> None:
        error = asked.exception()
        if error is None:
            self._settle(answer, result=_unpacked(asked.result()))
        else:
            self._settle(answer, error=_explained(self.name, method, error))

    def _settle(
        self, answer: Future[Any], *, result: Any = None, error: FabricError | None = None
    ) -> None:
        """Answer a call once: a kill and Ray may both know its end."""
        with self._lock:
            if answer not in self._open:
                return
            self._open.remove(answer)
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def _was_killed(self) -> WorkerLost:
        return WorkerLost(self.name, "it was killed")


@dataclass(frozen=True, slots=True)
class _Referred:
    """Stands for an argument that Ray fetches."""

    number: int


def _packed(method: str, args: Sequence[Any]) -> tuple[Any, ...]:
    """A call as one argument, followed by the references in it.

    Ray pickles every argument by itself, which costs more than a short call's work.
    """
    from ray import ObjectRef

    references: list[Any] = []
    placed: list[Any] = []
    for arg in args:
        if isinstance(arg, ObjectRef):
            placed.append(_Referred(len(references)))
            references.append(arg)
        else:
            placed.append(arg)
    return (_pickled((method, placed)), *references)


def _pickled(value: Any) -> bytes:
    """Pickle quickly, or by value what the other side could not import."""
    from ray import cloudpickle

    try:
        quick = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if b"__main__" not in quick:
            return quick
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    thorough: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return thorough


@dataclass(frozen=True, slots=True)
class _Whole:
    """An answer that is left to Ray: it is large, or plain pickle refuses it."""

    answer: Any


def _packed_answer(answer: Any) -> bytes | _Whole:
    """A small answer as bytes, which Ray sends as they are."""
    arrays: list[pickle.PickleBuffer] = []
    try:
        rest = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append)
    except (pickle.PicklingError, AttributeError, TypeError):
        return _Whole(answer)
    contents = [array.raw() for array in arrays]
    if len(rest) + sum(content.nbytes for content in contents) > SMALL_ANSWER:
        return _Whole(answer)
    return pickle.dumps((rest, [bytes(content) for content in contents]))


def _unpacked(answer: bytes | _Whole) -> Any:
    if isinstance(answer, _Whole):
        return answer.answer
    rest, contents = pickle.loads(answer)
    return pickle.loads(rest, buffers=contents)


def _hosted(cls: type[Any]) -> type[Any]:
    """The class with one method more, which makes a packed call.

    What a worker holds once it is made, it holds to its end. It is hidden from the search for
    garbage, which Ray starts now and then and which would stop a worker with PyTorch for 0.1 s.
    """

    def __init__(self: Any, *args: Any) -> None:
        cls.__init__(self, *args)
        gc.freeze()

    def packed_call(self: Any, packed: bytes, *fetched: Any) -> Any:
        method, args = pickle.loads(packed)
        return _packed_answer(
            getattr(self, method)(
                *(fetched[arg.number] if isinstance(arg, _Referred) else arg for arg in args)
            )
        )

    added = {"__init__": __init__, "packed_call": packed_call, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), added)


def _explained(
    worker: str, method: str, error: BaseException
) -> WorkerFailed | WorkerLost | NotInstalled:
    """Say what an error of Ray's means: the code raised, or nobody is there to run it."""
    from ray.exceptions import RayActorError, RayError, RayTaskError

    explained: WorkerFailed | WorkerLost
    if isinstance(error, RayTaskError):
        cause: BaseException = error.cause
        explained = WorkerFailed(worker, method, *_kind_and_message(cause), _plain(str(error)))
        explained.__cause__ = cause
        return explained
    if isinstance(error, RayActorError) and error.actor_init_failed:
        trace = _plain(str(error))  # all that Ray keeps of it
        if lacks := not_installed(trace):
            lacks.__cause__ = error
            return lacks
        kind, _, message = trace.strip().rpartition("\n")[2].partition(": ")
        explained = WorkerFailed(worker, "__init__", kind, message, trace)
    elif isinstance(error, RayError):
        reason, _, _ = str(error).partition(" Some common causes")
        explained = WorkerLost(worker, _brief(reason))
    else:  # it was never sent: no such method, or an argument that cannot be pickled
        explained = WorkerFailed(worker, method, *_kind_and_message(error), "")
    explained.__cause__ = error
    return explained


def _kind_and_message(error: BaseException) -> tuple[str, str]:
    """Say what was raised, even where the exception cannot say it itself."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return type(error).__name__, text.partition(": ")[2]


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _brief(text: str) -> str:
    """Put the message of an error of Ray's on one line, without its indented fields."""
    lines = [line.strip() for line in _plain(text).splitlines() if not line.startswith("\t")]
    line = " ".join(line for line in lines if line)
    return line if len(line) <= REASON_LENGTH else f"{line[:REASON_LENGTH]}..."


def _offered(resources: Mapping[str, float]) -> Resources:
    """Drop what Ray counts for itself: where a node is, and its object store."""
    return Resources.of(
        {
            name: amount
            for name, amount in resources.items()
            if not name.startswith("node:") and name != "object_store_memory"
        }
    )


def _asks(bundles: Sequence[Bundle]) -> bool:
    """Whether labels matter."""
    return any(bundle.selector for bundle in bundles)


def _is_taken(name: str) -> bool:
    from ray.util import get_placement_group

    try:
        get_placement_group(name)
    except ValueError:
        return False
    return True


def _attached(address: str, mode: str, deadline: float, timeout_s: float) -> RayThread:
    """Ray, attached to a cluster; once more where Ray gives up early on one that answers."""
    while True:
        ray = RayThread(private=False, address=address)
        try:
            ray.wait(deadline - time.monotonic())
        except BaseException as error:
            ray.end()
            if isinstance(error, TooSlow):
                reason = f"within {timeout_s:g} s ({load()} here)"
                raise ClusterUnreachable(address, HALF_UP.format(reason)) from None
            if not isinstance(error, Exception):
                raise
            reason = _brief(str(error))
            if isinstance(error, ConnectionError) and answers(address, mode, LOOK_S):
                if time.monotonic() < deadline:
                    continue
                reason = HALF_UP.format(f"({reason})")
            raise ClusterUnreachable(address, reason) from error
        return ray


def _claim(undo: ExitStack) -> None:
    """Make this process's one Ray ours until the undoing, without importing Ray to find out."""
    running = getattr(sys.modules.get("ray"), "is_initialized", bool)
    if not _one_ray.acquire(blocking=False):
        raise FabricError(SECOND_RAY)
    undo.callback(_one_ray.release)
    if running():
        raise FabricError(SECOND_RAY)


def _is_too_large(bundles: Iterable[Mapping[str, float]]) -> bool:
    """Whether a bundle fits no machine, even an idle one: Ray 2.53 and older do not say so."""
    machines = [each["Resources"] for each in private_ray.node_table() if each["Alive"]]
    return any(
        all(any(amount > has.get(name, 0.0) for name, amount in bundle.items()) for has in machines)
        for bundle in bundles
    )


def _as_actor(cls: type[Any]) -> Any:
    import ray

    return ray.remote(_hosted(cls))


def _set_environment(undo: ExitStack, values: Mapping[str, str]) -> None:
    """Set variables until the undoing, and make Ray see them both times."""
    undo.callback(_reread_environment)
    undo.enter_context(home.environment(values))
    _reread_environment()


def _reread_environment() -> None:
    """Have a Ray that is imported already look again, as `ray.init` itself does.

    Ray reads its authentication mode when it is imported, and a token once per process.
    """
    if "ray" not in sys.modules:
        return
    with suppress(AttributeError):  # a Ray from before token authentication
        private_ray.reread_authentication()


def address_of_this_machine() -> str:
    """Find what `auto` means: RAY_ADDRESS, or the Ray that was started last on this machine."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        return file.read_text().strip()
    except OSError as error:
        reason = "RAY_ADDRESS is not set, and no Ray was started on this machine"
        raise ClusterUnreachable("auto", reason) from error
