"""Measures, fits and judges the cost model (`federated/core/execution/cost_model.py`).

    python benchmarks cost_model_fit measure fit.json --seed 1 --models 90
    python benchmarks cost_model_fit measure held_out.json --seed 2 --models 40
    python benchmarks cost_model_fit fit fit.json         # prints coefficients
    python benchmarks cost_model_fit judge held_out.json  # chosen against the best

The figures of `execution_model: 1` are in `costs`.

Figures are CPU time of the thread that trains, the ways of one model in turn, the least of some
turns: what else the machine does hardly shows. A table that has a number is never changed: a better
one gets the next.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpilot.federated.config.schema import Training
from fedpilot.federated.core.execution import cost_model
from fedpilot.federated.core.execution.execution import decide
from fedpilot.federated.core.execution.facts import (
    Circumstances,
    Execution,
    ExecutionKind,
    Layer,
    LayerKind,
    ModelFacts,
)
from fedpilot.federated.core.population.partitions.bootstrap import bootstrap
from fedpilot.federated.engine.choosing import refusals
from fedpilot.federated.engine.stacking import NotStackable
from fedpilot.federated.engine.structure import facts_of
from fedpilot.federated.engine.trainers.probe import check, example
from fedpilot.federated.engine.trainers.resident import ResidentModule
from fedpilot.federated.engine.trainers.trainer_factory import TrainerFactory
from fedpilot.federated.engine.trainers.trainers import Trainers
from fedpilot.federated.engine.training.modules import loss_function, state_of, to_tensors
from fedpilot.federated.engine.training.samples import Samples
from fedpilot.federated.engine.training.training import Start
from fedpilot.federated.prepare.execution.execution_choice import rule_of

from .zoo import CLASSES, Specimen, zoo

CPU = torch.device("cpu")
POOL = 512
TURNS = 7
PATIENCE_S = 3.0
"""CPU time of a model's turns."""


def measure(specimen: Specimen) -> dict[str, Any]:
    """CPU microseconds of a step of one client, each way that is right."""
    torch.manual_seed(1)
    training = Training(**specimen.training)
    batch = training.batch_size
    dice = np.random.default_rng(3)
    shape = (POOL, *specimen.input_shape)
    x = (
        dice.integers(0, specimen.words, shape)
        if specimen.words
        else dice.random(shape, dtype=np.float32)
    )
    y = dice.integers(0, CLASSES, POOL)
    clients = bootstrap(y, specimen.cohort, (batch, 3 * batch), 5)
    samples = Samples(x, y, clients, training, seed=1, device=CPU)
    module = specimen.make()
    like = example(module, specimen.input_shape, samples.x.dtype)
    facts = facts_of(module, like)
    where = Circumstances(batch, rule_of(training), specimen.cohort)
    resident = ResidentModule(module, loss_function("cross_entropy"), CPU, example=samples.x[:2])
    trainers = Trainers(
        TrainerFactory(resident=resident, samples=samples, training=training, seed=1, device=CPU)
    )
    model = resident.laid_out(to_tensors(state_of(module), CPU))
    chunk = samples.chunk(np.arange(min(specimen.cohort, 64)))
    most = len(chunk)
    ways = [Execution(ExecutionKind.SEQUENTIAL, 64)]
    kinds = (ExecutionKind.COMPILED, ExecutionKind.FOLDED, ExecutionKind.MAPPED)
    refused = refusals(kinds, module, training, where, facts, like)
    for kind in kinds:
        if kind in refused:
            continue
        try:
            check(Execution(kind, most), resident, training, like=like, device=CPU)
            ways += [Execution(kind, size) for size in sorted({most, max(1, most // 4)})]
        except NotStackable as error:
            refused[kind] = str(error)
    chunks = {
        way: samples.chunk(
            np.arange(min(most, 6 if way.kind is ExecutionKind.SEQUENTIAL else way.chunk_size))
        )
        for way in ways
    }
    found: dict[Execution, list[float]] = {way: [] for way in ways}
    began = time.thread_time()
    for turn in range(TURNS + 1):
        for way in ways:
            trainer, mine = trainers.get(way), chunks[way]
            started = time.thread_time()
            for _ in trainer.train(mine, 0, Start(model), {}):
                pass
            taken = time.thread_time() - started
            if turn:
                steps = int((-(-mine.sizes // batch)).sum())
                found[way].append(1e6 * taken / steps)
        if turn > 2 and time.thread_time() - began > PATIENCE_S:
            break
    return {
        "name": specimen.name,
        "facts": {
            **asdict(facts),
            "layers": [[str(e.kind), e.outputs, e.products, e.steps] for e in facts.layers],
        },
        "where": [batch, where.rule, where.cohort],
        "refused": refused,
        "costs": [[str(w.kind), w.chunk_size, min(times)] for w, times in found.items()],
    }


Case = tuple[str, ModelFacts, Circumstances, dict[ExecutionKind, str], dict[Execution, float]]


def read(path: Path) -> list[Case]:
    cases = []
    for each in json.loads(path.read_text()):
        told = each["facts"]
        layers = tuple(Layer(LayerKind(k), *rest) for k, *rest in told["layers"])
        facts = ModelFacts(**(told | {"layers": layers, "widths": tuple(told["widths"])}))
        batch, rule, cohort = each["where"]
        refused = {ExecutionKind(kind): why for kind, why in each["refused"].items()}
        costs = {Execution(ExecutionKind(k), size): cost for k, size, cost in each["costs"]}
        cases.append((each["name"], facts, Circumstances(batch, rule, cohort), refused, costs))
    return cases


def fit(cases: list[Case]) -> dict[ExecutionKind, dict[str, float]]:
    """Coefficients of least squares of relative errors, none below zero.

    A noisy neighbour slows all ways of a model alike: each model has a factor of its own.
    """
    slowed = dict.fromkeys((case[0] for case in cases), 1.0)
    for _ in range(12):
        table = {kind: _fit(kind, cases, slowed) for kind in ExecutionKind}
        for name, facts, where, _, costs in cases:
            off = [
                math.log(cost / cost_model.cost(way, facts, where, table[way.kind]))
                for way, cost in costs.items()
            ]
            slowed[name] = math.exp(statistics.median(off)) if len(off) > 1 else 1.0
        middle = statistics.median(slowed.values())
        slowed = {name: factor / middle for name, factor in slowed.items()}
    for kind in ExecutionKind:
        off = [
            cost_model.cost(way, facts, where, table[kind]) * slowed[name] / cost
            for name, facts, where, _, costs in cases
            for way, cost in costs.items()
            if way.kind is kind
        ]
        spread = np.quantile(off, [0.05, 0.25, 0.5, 0.75, 0.95]).round(2)
        print(f"# {kind}: {len(off)} rows, predicted/measured {spread}")
    return table


def _fit(kind: ExecutionKind, cases: list[Case], slowed: dict[str, float]) -> dict[str, float]:
    from scipy.optimize import nnls

    rows = [
        (cost_model.features(way, facts, where), cost / slowed[name])
        for name, facts, where, _, costs in cases
        for way, cost in costs.items()
        if way.kind is kind
    ]
    names = sorted({name for features, _ in rows for name in features})
    matrix = np.array([[features.get(n, 0.0) / cost for n in names] for features, cost in rows])
    scale = np.maximum(np.abs(matrix).max(0), 1e-30)
    weights = np.ones(len(rows))
    for _ in range(6):  # what lies far off counts less
        solution, _ = nnls(matrix / scale * weights[:, None], weights)
        off = np.abs(matrix / scale @ solution - 1)
        weights = 1 / np.sqrt(np.maximum(off, 0.05))
    found = zip(names, solution, scale, strict=True)
    return {name: float(f"{c / s:.4g}") for name, c, s in found if c > 0}


def judge(
    cases: list[Case], coefficients: dict[ExecutionKind, dict[str, float]] | None = None
) -> None:
    if coefficients is not None:
        cost_model.TABLES[0] = {"cpu": coefficients}  # type: ignore[index]
        cost_model.NEWEST = 0
    ratios = []
    for name, facts, where, refused, costs in cases:
        way = decide(facts, where, refused).execution
        best = min(costs, key=costs.__getitem__)
        if way not in costs:
            print("not measured:", name, way)
            continue
        ratios.append(costs[way] / costs[best])
        print(
            f"{ratios[-1]:5.2f}  {name:46} {way.kind:10} {way.chunk_size:3}  best {best.kind:10} "
            f"{best.chunk_size:3}  {costs[best]:8.1f} us  one by one "
            f"{costs[Execution(ExecutionKind.SEQUENTIAL, 64)]:8.1f} us"
        )
    print(
        f"chosen against the best of {len(ratios)} models: median "
        f"{statistics.median(ratios):.2f}, worst {max(ratios):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "fit", "judge"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", type=int, default=40)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if args.what == "measure":
        found = []
        for specimen in zoo(args.seed, args.models):
            try:
                found.append(measure(specimen))
                print(
                    specimen.name,
                    {f"{k} {n}": round(c, 1) for k, n, c in found[-1]["costs"]},
                    flush=True,
                )
            except Exception as error:
                print(specimen.name, "FAILED", type(error).__name__, error, flush=True)
            args.files[0].write_text(json.dumps(found, indent=None) + "\n")
        return
    cases = [case for path in args.files for case in read(path)]
    if args.what == "fit":
        table = fit(cases)
        for kind, coefficients in table.items():
            print(f"ExecutionKind.{kind.name}: {{")
            for name, value in coefficients.items():
                print(f'    "{name}": {value!r},')
            print("},")
        judge(cases, table)
    else:
        judge(cases)
