"""Submits tasks and actors inside a virtual cluster to the places that its manager chooses."""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..core.pickle_names import travels
from ..core.places.groups import GroupId, group_id
from ..core.records import NODE_LABEL, ClusterId, WorkId
from ..core.resources import Resources
from ..core.routing.work import alike
from ..core.selectors import Condition, DoesNotExist, Exists, In, Selector, parse
from ..errors import SpecError, TooLarge
from ..manager.routing.messages import Ask, Placed
from ..ray.private_ray import captures, group_handle, own_group
from .context import current_id, is_placement_group, own_bundle
from .introspection import attainable_of
from .manager_client import ask, clusters, reporter
from .patching import originals

OURS = "fedpilot.fabric.manager_actor"

_SIZING = "_AutoscalingCoordinatorActor"
"""Ray's actor that reports the cluster's size to Ray's libraries, and requests more machines."""

A_MACHINE = "node:"
"""The prefix of resources that name machines: `node:<ip>`, `node:__internal_head__`."""

_WHERE = ("scheduling_strategy", "label_selector", "fallback_strategy")
"""Options that say where work runs."""

_BESIDE = frozenset({_SIZING, "_StatsActor", "_UsageCollectionActor"})
"""Actors of Ray's libraries that hold no resources, and run outside the virtual clusters."""


def submission(actor: bool) -> Callable[..., Any]:
    def submit(original: Callable[..., Any], self: Any, *given: Any, **options: Any) -> Any:
        import ray

        cluster = None if _is_ours(self) else current_id()
        if cluster is None:
            return original(self, *given, **options)
        if not ray.is_initialized():
            ray.init()
        if options.get("get_if_exists"):  # if it does not exist, Ray calls this again
            if _class_name(self) == _SIZING:
                given, options = (), _sizing(cluster, self, options)
            return original(self, *given, **options)
        if _class_name(self) in _BESIDE:
            return original(self, *given, **{"scheduling_strategy": "DEFAULT", **options})
        sent = _route(cluster, options, actor=actor, function=getattr(self, "_function_name", ""))
        if sent is None:
            return original(self, *given, **options)
        work, options = sent
        silent = not actor and options.get("num_returns") == 0
        if silent:  # its end must be observable
            options["num_returns"] = 1
        try:
            made = original(self, *given, **options)
        except BaseException:
            reporter().ended([work])
            raise
        if actor:
            reporter().follow_actor(work, made._actor_id.hex())
        else:
            reporter().follow(work, made)
        return None if silent else made

    return submit


def _is_ours(target: Any) -> bool:
    meta = getattr(target, "__ray_metadata__", None)
    return getattr(getattr(meta, "modified_class", None), "__module__", "") == OURS


def _class_name(target: Any) -> str:
    meta = getattr(target, "__ray_metadata__", None)
    return str(getattr(meta, "class_name", ""))


def _sizing(cluster: str, target: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Make one for this process only, which shows its virtual cluster and requests no machines."""
    nodes = functools.partial(attainable_nodes, cluster)
    answers = {"get_cluster_nodes": nodes, "send_resources_request": ask_for_nothing}
    known = inspect.signature(target.__ray_metadata__.modified_class.__init__).parameters
    return {
        **options,
        "namespace": f"{options.get('namespace')}@{cluster}@{reporter().owner}",
        "lifetime": None,
        "kwargs": {name: answer for name, answer in answers.items() if name in known},
    }


@travels
def attainable_nodes(cluster: str) -> list[dict[str, Any]]:
    """The machines of a virtual cluster, each as large as its part of it could be now."""
    machines = originals["nodes"]()
    return attainable_of(clusters(), cluster, machines)


@travels
def ask_for_nothing(bundles: Any, label_selectors: Any = None) -> None:
    """Request no machines: work without room is already demand."""


def _route(
    cluster: str, options: Mapping[str, Any], *, actor: bool, function: str
) -> tuple[WorkId, dict[str, Any]] | None:
    """The id and the options that send work to its place; None to submit it unchanged.

    Nested work without room elsewhere waits for the room of its parent, which Ray frees while the
    parent waits for the work, or when the parent ends.
    """
    from ray.util.scheduling_strategies import (
        NodeAffinitySchedulingStrategy,
        PlacementGroupSchedulingStrategy,
    )

    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, PlacementGroupSchedulingStrategy) and strategy.placement_group:
        return None  # the caller has chosen a placement group
    here = own_group()
    if here is not None and is_placement_group(here) and strategy is None and captures():
        return None  # inside a placement group that captures its child tasks
    demand = _demand(options, actor=actor)
    selector = {k: parse(text) for k, text in (options.get("label_selector") or {}).items()}
    soft = False
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        wanted, soft = {**selector, NODE_LABEL: In(strategy.node_id)}, bool(strategy.soft)
    else:
        wanted = {**selector, **named_by(demand, originals["nodes"])}
    demand = demand.without({name for name, _ in demand.units if name.startswith(A_MACHINE)})
    nested = here is not None
    if not (actor or nested or soft):
        return _sent(options, *_place_in_burst(cluster, demand, wanted, function), demand)
    asked = Ask(
        id=_new_work(ClusterId(cluster)),
        cluster=ClusterId(cluster),
        demand=demand,
        selector=wanted,
        owner=reporter().owner,
        actor=actor,
        function=function,
        wait=not nested,
    )
    elsewhere = selector if soft else None
    placed = _place(asked, elsewhere)
    if placed is None:  # no room elsewhere: it waits for its parent's place
        inside = _own_place() if not wanted and demand.fits(_assigned()) else None
        placed = _place(replace(asked, wait=True, inside=inside), elsewhere)
    assert placed is not None
    sent = _sent(options, asked.id, placed, demand)
    if actor and options.get("num_cpus") is None:
        sent[1]["num_cpus"] = 0
    return sent


def _sent(
    options: Mapping[str, Any], id: WorkId, placed: Placed, demand: Resources
) -> tuple[WorkId, dict[str, Any]]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    sent = {k: v for k, v in options.items() if k not in _WHERE}
    if sent.get("resources"):
        sent["resources"] = {
            name: amount
            for name, amount in sent["resources"].items()
            if not name.startswith(A_MACHINE)
        }
    sizes = [dict(size) for size in placed.sizes] or [demand.to_ray() or {"CPU": 0.0001}]
    sent["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
        placement_group=group_handle(placed.group, sizes),
        placement_group_bundle_index=placed.bundle,
        placement_group_capture_child_tasks=True,
    )
    return id, sent


def _place_in_burst(
    cluster: str, demand: Resources, selector: Selector, function: str
) -> tuple[WorkId, Placed]:
    """The place of a task that may wait: a promised one, or one requested from the manager."""
    promises = reporter().promises
    kind = (cluster, function, alike(demand, selector))
    if (promised := promises.take(kind)) is not None:
        return promised
    id, *more = (_new_work(ClusterId(cluster)) for _ in range(1 + promises.wanted(kind)))
    asked = Ask(
        id=id,
        cluster=ClusterId(cluster),
        demand=demand,
        selector=selector,
        function=function,
        owner=reporter().owner,
    )
    try:
        placed, *also = ask("place_all", asked, more)
    except TooLarge as error:
        raise _never_runs(cluster, error) from error
    promises.keep(kind, zip(more, also, strict=False))
    return id, placed


def _never_runs(cluster: str, error: TooLarge) -> ValueError:
    return ValueError(f"this cannot run in virtual cluster {cluster!r}: {error}")


def _own_place() -> tuple[GroupId, int] | None:
    """The bundle that this worker runs in; None in a placement group that a user requested."""
    here = own_group()
    if here is None or is_placement_group(here):
        return None
    bundle = own_bundle(here)
    return None if bundle is None else (GroupId(here), bundle)


def _new_work(cluster: ClusterId) -> WorkId:
    """A new id for a task or an actor, and for a placement group of its own."""
    import ray

    job = ray.get_runtime_context().get_job_id()
    return WorkId(group_id(cluster, secrets.token_hex(10), job))


def _place(asked: Ask, elsewhere: Selector | None) -> Placed | None:
    """Ask where work runs; if its own selector can never be met, use the selector `elsewhere`."""
    try:
        placed: Placed | None = ask("place", asked)
        return placed
    except TooLarge as error:
        if elsewhere is None:
            raise _never_runs(asked.cluster, error) from error
    return _place(replace(asked, selector=elsewhere), None)


def _demand(options: Mapping[str, Any], *, actor: bool) -> Resources:
    """The resources that Ray would hold for it while it runs."""
    cpus = options.get("num_cpus")
    amounts: dict[str, float] = {"CPU": (0 if actor else 1) if cpus is None else cpus}
    if options.get("num_gpus"):
        amounts["GPU"] = options["num_gpus"]
    if options.get("memory"):
        amounts["memory"] = options["memory"]
    if options.get("accelerator_type"):
        amounts[f"accelerator_type:{options['accelerator_type']}"] = 0.001
    amounts.update(options.get("resources") or {})
    for name in amounts:
        if "_group_" in name:
            raise ValueError(f"{name}: what a placement group has cannot be asked for by name")
    return Resources.of(amounts)


def named_by(
    demand: Resources, nodes: Callable[[], Iterable[Mapping[str, Any]]]
) -> dict[str, Condition]:
    """The machines that work names by resources such as `node:10.0.0.7`, which Ray gives each one.

    ValueError if no machine has all of them.
    """
    wanted = [name for name, _ in demand.units if name.startswith(A_MACHINE)]
    if not wanted:
        return {}
    alive = [node for node in nodes() if node["Alive"]]
    there = [node["NodeID"] for node in alive if all(name in node["Resources"] for name in wanted)]
    if not there:
        raise ValueError(f"no machine of this Ray cluster has {' and '.join(wanted)}")
    return {NODE_LABEL: In(*there)}


def with_labels(original: Callable[..., Any], self: Any, *given: Any, **options: Any) -> Any:
    """Accept `node_labels`, the proposal's name for Ray's `label_selector`."""
    labels = options.pop("node_labels", None)
    if labels:
        if current_id() is None:
            raise SpecError("node_labels: there are no virtual nodes here; enter a virtual cluster")
        for label, condition in labels.items():
            if isinstance(condition, Exists | DoesNotExist):
                raise SpecError(f"node_labels.{label}: wanted In or NotIn, found {condition}")
        said = {label: str(condition) for label, condition in labels.items()}
        options["label_selector"] = {**(options.get("label_selector") or {}), **said}
    return original(self, *given, **options)


def _assigned() -> Resources:
    """What the running task or actor holds; its children may use it while it waits."""
    import ray

    context: Any = ray.get_runtime_context()
    found: Mapping[str, float] = context.get_assigned_resources()
    return Resources.of({k: v for k, v in found.items() if "_group_" not in k})
