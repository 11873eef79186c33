"""What decides a run's plan besides its sites: its work, its graph, its pace and its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedpilot.mediator.core.assignment import Exchange, RoundWork

from ..config.schema import RunConfig, WorkersRange
from ..config.schema.vnode_classes import device_of
from ..core.execution.cost_model import NEWEST, costs_of
from ..core.execution.facts import Execution, ExecutionKind, ModelFacts, bytes_per_client
from ..core.planning.class_parts import PlannedClass
from ..core.planning.measured import Measured
from ..core.planning.plan import UNKNOWN, Known, PlanInputs, PlannedMemory
from ..core.population.sampling import Indices
from ..core.rounds.exchange_costs import crossing_sizes
from .assigning import strategy_of
from .gang_request import object_store_bytes
from .grouping import steps_of
from .topology import exchange_of

if TYPE_CHECKING:
    from ..core.topology.graphs import Topology
    from .inputs.run_inputs import RunInputs

COUNTED_UP_TO = 100_000
"""Clients of a star whose samples are counted one by one; beyond, a site has its part of them."""
LOOKED_AT = 10_000
"""Clients whose samples make the mean."""
GRAPHS_LOOKED_AT = 8
"""Rounds of a graph that is drawn anew in each."""


def plan_inputs(
    config: RunConfig,
    inputs: RunInputs,
    *,
    name: str,
    cohort: int,
    kept_bytes: int,
    facts: ModelFacts | None,
    like: Measured | None = None,
) -> PlanInputs:
    """All that decides a plan besides its sites.

    `cohort`: clients per round; `kept_bytes`: of the updates that a round keeps; `facts`: of the
    model, if an execution was chosen by them; `like`: what another run measured.
    """
    federation, union = config.federation, inputs.union
    graphs = inputs.graphs
    counts = union is not None or graphs is not None or inputs.population <= COUNTED_UP_TO
    work = inputs.round_work(config, counted=counts)
    sizes = work.samples if counts else _some_sizes(inputs)
    if (steps := steps_of(config)) is not None:
        work = replace(work, trained=cohort * steps.per_round / inputs.population)
    if like is not None:
        work = _as_measured(work, like)
    mean = None if sizes is None else float(sizes.mean())
    return PlanInputs(
        name=name,
        population=inputs.population,
        clients_per_round=cohort,
        rounds=federation.rounds,
        assignment=strategy_of(config),
        work=work,
        mean_samples=mean,
        exchanges=() if graphs is None else _exchanges(config, graphs),
        lasting=graphs is None or not graphs.changes,
        pinned={} if union is None else union.pinned,
        labels=inputs.labels,
        pace=_pace(config, inputs, facts, sizes, like, device_of(config.resources.classes[0])),
        memory=_memory(config, inputs, facts, kept_bytes),
        bytes_source=(
            "tensors, without headers"
            if like is None or like.model_bytes is None
            else f"measured in run {like.run}"
        ),
        replicate_every=config.participation.replicate_every,
        reassign_every=config.participation.reassign_every,
        state_bytes=crossing_sizes(inputs.initial, inputs.roles, pushes=federation.pushes).state,
        measured=like,
        classes=_planned_classes(config, inputs, facts, sizes, like),
        class_of=inputs.classes.of(np.arange(inputs.population)).astype(np.int64)
        if inputs.classes is not None and counts
        else None,
    )


def _planned_classes(
    config: RunConfig,
    inputs: RunInputs,
    facts: ModelFacts | None,
    sizes: Indices | None,
    like: Measured | None,
) -> tuple[PlannedClass, ...]:
    """The vnode classes of a run; none if all vnodes are of one."""
    groups, classes = config.resources.groups, inputs.classes
    if groups is None:
        return ()
    parts = np.full(len(groups), 1 / len(groups))
    if classes is not None:
        parts = np.bincount(classes.of(_some_clients(inputs)), minlength=len(groups))
    made = []
    for each, part in zip(groups, parts / parts.sum(), strict=True):
        workers = each.workers
        if isinstance(workers, int):
            workers = WorkersRange(min=workers, max=workers)
        pace = _pace(config, inputs, facts, sizes, like, device_of(each)).value
        made.append(
            PlannedClass(
                name=each.name,
                least=workers.min,
                most=workers.max,
                part=float(part),
                seconds_per_sample=pace,
            )
        )
    return tuple(made)


def _some_sizes(inputs: RunInputs) -> Indices:
    """The samples of clients that are evenly spaced."""
    return inputs.data.partition.sizes(_some_clients(inputs))


def _some_clients(inputs: RunInputs) -> Indices:
    """Clients that are evenly spaced."""
    looked_at = min(inputs.population, LOOKED_AT)
    return np.arange(looked_at, dtype=np.int64) * inputs.population // looked_at


def _exchanges(config: RunConfig, graphs: Topology) -> tuple[Exchange, ...]:
    """Who exchanges in the rounds that a plan looks at: until they repeat, or a few."""
    count = 1
    if graphs.changes:
        period = max(1, (graphs.nodes - 1).bit_length())
        count = period if config.federation.topology == "exponential" else GRAPHS_LOOKED_AT
    rounds = range(1, min(count, config.federation.rounds) + 1)
    return tuple(exchange_of(graphs, number) for number in rounds)


def _as_measured(work: RoundWork, like: Measured) -> RoundWork:
    model, answer = like.model_bytes, like.sum_bytes
    return replace(
        work,
        model_bytes=work.model_bytes if model is None else round(model),
        sum_bytes=work.sum_bytes if answer is None else round(answer),
        update_bytes=work.update_bytes if answer is None else 0,
    )


def _pace(
    config: RunConfig,
    inputs: RunInputs,
    facts: ModelFacts | None,
    sizes: Indices | None,
    like: Measured | None,
    device: str,
) -> Known:
    """The seconds of a vnode for a client's sample in a round, all epochs of it."""
    training = config.training
    if like is not None and like.seconds_per_sample is not None:
        differs = f", with {like.like}" if like.like else ""
        source = f"measured in {like.rounds} rounds of run {like.run}{differs}"
        return Known(like.seconds_per_sample * training.number_of_epochs, source)
    if sizes is None:
        return Known(None, "not known: sites do not disclose the clients' samples")
    if facts is None or training.execution == "auto":
        return Known(None, f"{UNKNOWN}: this model's training is not estimated")
    from .execution.execution_choice import circumstances

    where = replace(circumstances(config, inputs), device=device)
    way = Execution(ExecutionKind(training.execution), int(training.chunk_size))
    table = training.execution_model or NEWEST
    step_s = 1e-6 * costs_of([way], facts, where, table)[way]
    steps = int((-(-sizes // training.batch_size)).sum()) * training.number_of_epochs
    device = "a GPU" if where.device != "cpu" else "one core"
    source = f"estimated by cost table {table} for {device}"
    return Known(step_s * steps / max(1, int(sizes.sum())), source)


def _memory(
    config: RunConfig, inputs: RunInputs, facts: ModelFacts | None, kept_bytes: int
) -> PlannedMemory:
    from .execution.execution_choice import circumstances

    size = config.training.chunk_size
    clients = 1 if size == "auto" or config.training.execution == "sequential" else int(size)
    each = None if facts is None else bytes_per_client(facts, circumstances(config, inputs))
    keeps = inputs.bytes_of_update if config.federation.is_graph else 0
    return PlannedMemory(
        chunk_bytes=None if each is None else clients * each,
        chunk_clients=clients,
        store_bytes=object_store_bytes(inputs) + kept_bytes,
        model_bytes_of_client=keeps,
    )
