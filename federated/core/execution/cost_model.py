"""What a step of one client costs each way: tables of coefficients, numbered and never changed.

A cost is a sum of features of the model's structure times coefficients, in microseconds on the core
that they were fitted on (`benchmarks/execution/cost_model_fit.py`). Only ratios matter. A better
table gets the next number: a run's `execution_model` says which one decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
"""Bytes that stay near a core between two operations."""
LANES = 5
"""Samples that the compiled kernel works on at a time."""

Coefficients = Mapping[str, float]
Table = Mapping[str, Mapping[ExecutionKind, Coefficients]]
"""By device and kind."""


def costs_of(
    executions: Iterable[Execution],
    model: ModelFacts,
    where: Circumstances,
    number: int | None = None,
) -> dict[Execution, float]:
    """Microseconds of a step of one client, by the table of that number; the newest for None."""
    table = TABLES[NEWEST if number is None else number]
    by_kind = table["cpu" if where.device == "cpu" else "cuda"]
    return {each: cost(each, model, where, by_kind[each.kind]) for each in executions}


def cost(
    execution: Execution, model: ModelFacts, where: Circumstances, coefficients: Coefficients
) -> float:
    """The sum of features times coefficients."""
    found = features(execution, model, where)
    return sum(coefficients.get(name, 0.0) * value for name, value in sorted(found.items()))


def features(execution: Execution, model: ModelFacts, where: Circumstances) -> dict[str, float]:
    """What a step of one client consists of, this way."""
    if execution.kind is ExecutionKind.COMPILED:
        return _compiled(model, where)
    width, batch = model.itemsize / 4, where.batch_size
    mates = 1 if execution.kind is ExecutionKind.SEQUENTIAL else execution.chunk_size
    calls: dict[str, float] = {
        "step": 1.0,
        f"tensors {where.rule}": float(model.tensors),
    }
    work: dict[str, float] = {
        "inputs": model.inputs * batch * width,
        f"weights {where.rule}": model.trained * width,
    }
    for layer in model.layers:
        _add(calls, f"{layer.kind} calls", layer.steps)
        _add(work, f"{layer.kind} outputs", layer.outputs * batch * width)
        if layer.products:
            _add(work, f"{layer.kind} products", layer.products * batch * width)
        if layer.kind in ONE_BY_ONE:
            _add(work, f"{layer.kind} parts", 1.0)
    spilled = bytes_per_client(model, where) if mates > 1 else 0
    work["spilled"] = spilled if spilled * mates > CACHE else 0.0
    if any(layer.kind is LayerKind.BAG for layer in model.layers):
        work["bag crowd"] = model.trained * mates * width
    return {name: value / mates for name, value in calls.items()} | work


ONE_BY_ONE = frozenset({LayerKind.CONVOLUTION, LayerKind.DROPOUT, LayerKind.BAG})
"""Layers that are called for each client even where clients train at once."""


def _compiled(model: ModelFacts, where: Circumstances) -> dict[str, float]:
    padded = -(-where.batch_size // LANES) * LANES
    width = model.itemsize / 4
    products = sum(a * b for a, b in zip(model.widths, model.widths[1:], strict=False))
    smooth = sum(each.outputs for each in model.layers if each.kind is LayerKind.SMOOTH)
    return {
        "step": 1.0,
        "layers": float(len(model.widths) - 1),
        "products": products * padded * width,
        "rows": float(padded * sum(model.widths[1:])),
        "inputs": model.inputs * padded * width,
        "smooth outputs": smooth * where.batch_size * width,
        f"weights {where.rule}": model.trained * width,
        "spilled": _beyond(model.trained * model.itemsize * COPIES[where.rule]),
    }


def _beyond(size: int) -> float:
    return float(size) if size > CACHE else 0.0


def _add(found: dict[str, float], name: str, value: float) -> None:
    found[name] = found.get(name, 0.0) + value


NEWEST = 1

# Of a GPU nothing was measured: launches of operations cost, arithmetic hardly does.
_CUDA_CALLS = {
    **{f"{kind} calls": 40.0 for kind in LayerKind if kind is not LayerKind.VIEW},
    "recurrent calls": 5.0,
    "attention calls": 150.0,
}
_CUDA_WORK = {
    **{f"{kind} products": 3e-7 for kind in LayerKind},
    **{f"{kind} outputs": 2e-5 for kind in LayerKind},
    "weights plain": 1e-5,
    "weights momentum": 2e-5,
    "weights adam": 3e-5,
}
TABLES: dict[int, Table] = {
    1: {
        "cpu": {
            ExecutionKind.SEQUENTIAL: {
                "bag crowd": 0.00279,
                "bag outputs": 0.1841,
                "bag parts": 82.62,
                "convolution calls": 459.1,
                "convolution outputs": 0.001502,
                "convolution products": 1.511e-05,
                "dropout calls": 130.4,
                "embedding calls": 14.04,
                "embedding outputs": 0.03147,
                "inputs": 0.005281,
                "linear calls": 40.57,
                "linear outputs": 0.004446,
                "linear products": 1.681e-05,
                "norm calls": 14.85,
                "norm outputs": 0.006209,
                "pointwise calls": 1.679,
                "pointwise outputs": 0.004957,
                "recurrent calls": 68.21,
                "recurrent products": 0.0007633,
                "smooth outputs": 0.003255,
                "step": 163.7,
                "tensors adam": 56.33,
                "tensors momentum": 18.29,
                "tensors plain": 14.71,
                "view calls": 28.59,
                "view outputs": 0.004397,
                "weights adam": 0.001564,
                "weights momentum": 0.00249,
                "weights plain": 0.001843,
            },
            ExecutionKind.FOLDED: {
                "convolution parts": 184.4,
                "convolution products": 6.568e-05,
                "dropout calls": 177.4,
                "dropout outputs": 0.01505,
                "dropout parts": 5.604,
                "embedding calls": 99.41,
                "embedding outputs": 0.01425,
                "inputs": 0.002104,
                "linear calls": 56.59,
                "linear outputs": 0.004854,
                "norm calls": 62.96,
                "norm outputs": 0.01066,
                "pointwise calls": 67.34,
                "pointwise outputs": 0.004273,
                "pooling calls": 438.7,
                "pooling outputs": 0.006979,
                "smooth calls": 78.52,
                "smooth outputs": 0.003776,
                "spilled": 1.953e-05,
                "step": 309.3,
                "tensors adam": 68.58,
                "tensors momentum": 15.83,
                "view calls": 18.73,
                "weights adam": 0.005107,
                "weights momentum": 0.002442,
                "weights plain": 0.001037,
            },
            ExecutionKind.MAPPED: {
                "attention outputs": 0.06181,
                "bag calls": 344.9,
                "bag crowd": 0.0002287,
                "bag outputs": 0.09819,
                "bag parts": 52.26,
                "embedding calls": 391.3,
                "embedding outputs": 0.004602,
                "inputs": 0.001194,
                "linear calls": 182.7,
                "linear outputs": 0.003412,
                "linear products": 1.38e-05,
                "norm calls": 73.96,
                "norm outputs": 0.008041,
                "pointwise calls": 21.65,
                "pointwise outputs": 0.00428,
                "smooth calls": 25.42,
                "smooth outputs": 0.002772,
                "step": 471.8,
                "tensors adam": 63.53,
                "tensors momentum": 4.165,
                "tensors plain": 9.687,
                "view calls": 30.65,
                "view outputs": 0.00289,
                "weights adam": 0.006938,
                "weights momentum": 0.004506,
                "weights plain": 0.004038,
            },
            ExecutionKind.COMPILED: {
                "inputs": 0.0008955,
                "products": 6.6e-05,
                "rows": 0.00299,
                "smooth outputs": 0.00758,
                "step": 0.796,
                "weights adam": 0.0006124,
                "weights momentum": 0.0007597,
                "weights plain": 0.0003533,
            },
        },
        "cuda": {
            ExecutionKind.SEQUENTIAL: {
                "step": 200.0,
                "view calls": 5.0,
                "tensors plain": 12.0,
                "tensors momentum": 15.0,
                "tensors adam": 30.0,
                **_CUDA_CALLS,
                **_CUDA_WORK,
            },
            ExecutionKind.FOLDED: {
                "step": 300.0,
                "view calls": 10.0,
                "tensors plain": 15.0,
                "tensors momentum": 18.0,
                "tensors adam": 35.0,
                "dropout parts": 30.0,
                **_CUDA_CALLS,
                **_CUDA_WORK,
                "convolution products": 1e-6,
            },
            ExecutionKind.MAPPED: {
                "step": 600.0,
                "view calls": 30.0,
                "tensors plain": 15.0,
                "tensors momentum": 18.0,
                "tensors adam": 35.0,
                **{name: 3 * cost for name, cost in _CUDA_CALLS.items()},
                **_CUDA_WORK,
                "convolution products": 1e-6,
            },
        },
    }
}
"""By number; a table is never changed."""
