"""Estimates what a step of one client costs under each execution.

A cost is the sum of features of the model's structure times coefficients, in microseconds on the
core where they were fitted (`benchmarks/execution/cost_model_fit.py`). Only ratios matter. A
table never changes: a better one gets the next number, which `execution_model` records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from .facts import (
    COPIES,
    Circumstances,
    Execution,
    ExecutionKind,
    LayerKind,
    ModelFacts,
    bytes_per_client,
)

CACHE = 1 << 20
"""Bytes that stay in a core's cache between two operations."""
LANES = 5
"""Samples that the compiled kernel processes at a time."""

Coefficients = Mapping[str, float]
Table = Mapping[str, Mapping[ExecutionKind, Coefficients]]
"""By device and kind."""


def costs_of(
    executions: Iterable[Execution],
    model: ModelFacts,
    where: Circumstances,
    number: int | None = None,
) -> dict[Execution, float]:
    """Microseconds for a step of one client by table `number`; the newest table for None."""
    table = TABLES[NEWEST if number is None else number]
    by_kind = table["cpu" if where.device == "cpu" else "cuda"]
    return {each: cost(each, model, where, by_kind[each.kind]) for each in executions}


def cost(
    execution: Execution, model: ModelFacts, where: Circumstances, coefficients: Coefficients
) -> float:
    """Sum the features times their coefficients."""
    found = features(execution, model, where)
    return sum(coefficients.get(name, 0.0) * value for name, value in sorted(found.items()))


def features(execution: Execution, model: ModelFacts, where: Circumstances) -> dict[str, float]:
    """The features of a step of one client under this execution."""
    if execution.kind is ExecutionKind.COMPILED:
        return _compiled(model, where)
    width, batch = model.itemsize / 4, where.batch_size
    mates = 1 if execution.kind is ExecutionKind.SEQUENTIAL else execution.chunk_size
    calls = defaultdict[str, float](float)
    calls |= {"step": 1.0, f"tensors {where.rule}": model.tensors}
    work = defaultdict[str, float](float)
    work |= {"inputs": model.inputs * batch * width, f"weights {where.rule}": model.trained * width}
    for layer in model.layers:
        calls[f"{layer.kind} calls"] += layer.steps
        work[f"{layer.kind} outputs"] += layer.outputs * batch * width
        work[f"{layer.kind} products"] += layer.products * batch * width
        if layer.kind in ONE_BY_ONE:
            work[f"{layer.kind} parts"] += 1
    spilled = bytes_per_client(model, where) if mates > 1 else 0
    work["spilled"] = spilled if spilled * mates > CACHE else 0.0
    if any(layer.kind is LayerKind.BAG for layer in model.layers):
        work["bag crowd"] = model.trained * mates * width
    return {name: value / mates for name, value in calls.items()} | work


ONE_BY_ONE = frozenset({LayerKind.CONVOLUTION, LayerKind.DROPOUT, LayerKind.BAG})
"""Layers that run once per client even where clients train at once."""


def _compiled(model: ModelFacts, where: Circumstances) -> dict[str, float]:
    padded = -(-where.batch_size // LANES) * LANES
    width = model.itemsize / 4
    products = sum(a * b for a, b in zip(model.widths, model.widths[1:], strict=False))
    smooth = sum(each.outputs for each in model.layers if each.kind is LayerKind.SMOOTH)
    size = model.trained * model.itemsize * COPIES[where.rule]
    return {
        "step": 1.0,
        "layers": float(len(model.widths) - 1),
        "products": products * padded * width,
        "rows": float(padded * sum(model.widths[1:])),
        "inputs": model.inputs * padded * width,
        "smooth outputs": smooth * where.batch_size * width,
        f"weights {where.rule}": model.trained * width,
        "spilled": float(size) if size > CACHE else 0.0,
    }


NEWEST: Final = 1

Rows = Mapping[str, tuple[float, ...]]
"""By feature: a coefficient for each `ExecutionKind`, in its order; 0 where it costs nothing."""


def _by_kind(rows: Rows) -> dict[ExecutionKind, Coefficients]:
    return {
        kind: {name: value for name, value in zip(rows, column, strict=True) if value}
        for kind, column in zip(ExecutionKind, zip(*rows.values(), strict=True), strict=False)
    }


_CPU_1: Rows = {
    "attention outputs": (0, 0, 0.06181, 0),
    "bag calls": (0, 0, 344.9, 0),
    "bag crowd": (0.00279, 0, 0.0002287, 0),
    "bag outputs": (0.1841, 0, 0.09819, 0),
    "bag parts": (82.62, 0, 52.26, 0),
    "convolution calls": (459.1, 0, 0, 0),
    "convolution outputs": (0.001502, 0, 0, 0),
    "convolution parts": (0, 184.4, 0, 0),
    "convolution products": (1.511e-05, 6.568e-05, 0, 0),
    "dropout calls": (130.4, 177.4, 0, 0),
    "dropout outputs": (0, 0.01505, 0, 0),
    "dropout parts": (0, 5.604, 0, 0),
    "embedding calls": (14.04, 99.41, 391.3, 0),
    "embedding outputs": (0.03147, 0.01425, 0.004602, 0),
    "inputs": (0.005281, 0.002104, 0.001194, 0.0008955),
    "linear calls": (40.57, 56.59, 182.7, 0),
    "linear outputs": (0.004446, 0.004854, 0.003412, 0),
    "linear products": (1.681e-05, 0, 1.38e-05, 0),
    "norm calls": (14.85, 62.96, 73.96, 0),
    "norm outputs": (0.006209, 0.01066, 0.008041, 0),
    "pointwise calls": (1.679, 67.34, 21.65, 0),
    "pointwise outputs": (0.004957, 0.004273, 0.00428, 0),
    "pooling calls": (0, 438.7, 0, 0),
    "pooling outputs": (0, 0.006979, 0, 0),
    "products": (0, 0, 0, 6.6e-05),
    "recurrent calls": (68.21, 0, 0, 0),
    "recurrent products": (0.0007633, 0, 0, 0),
    "rows": (0, 0, 0, 0.00299),
    "smooth calls": (0, 78.52, 25.42, 0),
    "smooth outputs": (0.003255, 0.003776, 0.002772, 0.00758),
    "spilled": (0, 1.953e-05, 0, 0),
    "step": (163.7, 309.3, 471.8, 0.796),
    "tensors adam": (56.33, 68.58, 63.53, 0),
    "tensors momentum": (18.29, 15.83, 4.165, 0),
    "tensors plain": (14.71, 0, 9.687, 0),
    "view calls": (28.59, 18.73, 30.65, 0),
    "view outputs": (0.004397, 0, 0.00289, 0),
    "weights adam": (0.001564, 0.005107, 0.006938, 0.0006124),
    "weights momentum": (0.00249, 0.002442, 0.004506, 0.0007597),
    "weights plain": (0.001843, 0.001037, 0.004038, 0.0003533),
}
# Estimated, not measured: on a GPU launches cost, arithmetic hardly does.
_CUDA_1: Rows = {
    **{f"{kind} calls": (40.0, 40.0, 120.0) for kind in LayerKind},
    **{f"{kind} products": (3e-7, 3e-7, 3e-7) for kind in LayerKind},
    **{f"{kind} outputs": (2e-5, 2e-5, 2e-5) for kind in LayerKind},
    "attention calls": (150.0, 150.0, 450.0),
    "convolution products": (3e-7, 1e-6, 1e-6),
    "dropout parts": (0, 30.0, 0),
    "recurrent calls": (5.0, 5.0, 15.0),
    "step": (200.0, 300.0, 600.0),
    "tensors adam": (30.0, 35.0, 35.0),
    "tensors momentum": (15.0, 18.0, 18.0),
    "tensors plain": (12.0, 15.0, 15.0),
    "view calls": (5.0, 10.0, 30.0),
    "weights adam": (3e-5, 3e-5, 3e-5),
    "weights momentum": (2e-5, 2e-5, 2e-5),
    "weights plain": (1e-5, 1e-5, 1e-5),
}
TABLES: dict[int, Table] = {1: {"cpu": _by_kind(_CPU_1), "cuda": _by_kind(_CUDA_1)}}
