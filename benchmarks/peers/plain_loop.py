"""The floor of eager PyTorch: one client after another, no framework; prints seconds per round."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time

import torch
from workload import WORKLOADS, build_model, train


def work(workload, model, state, clients):
    """(sum of n x weights, sum of n) over these clients."""
    total, weight = {name: torch.zeros_like(value) for name, value in state.items()}, 0
    for index in clients:
        x, y = workload.client(int(index))
        model.load_state_dict(state)
        train(model, x, y)
        with torch.no_grad():
            for name, value in model.state_dict().items():
                total[name].add_(value, alpha=len(y))
        weight += len(y)
    return total, weight


def serve(workload, pipe):
    """A process of the two-process loop."""
    torch.set_num_threads(1)
    model = build_model()
    while (order := pipe.recv()) is not None:
        pipe.send(work(workload, model, *order))


def main(name: str, processes: int) -> None:
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    workload.table  # noqa: B018  made before the clock starts
    model = build_model()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    pipes = []
    for _ in range(processes if processes > 1 else 0):
        here, there = multiprocessing.Pipe()
        multiprocessing.get_context("fork").Process(
            target=serve, args=(workload, there), daemon=True
        ).start()
        pipes.append(here)
    seconds = []
    for number in range(workload.rounds):
        started = time.perf_counter()
        clients = workload.chosen(number)
        if pipes:
            order = clients[(-workload.table[0][clients]).argsort(kind="stable")]
            for i, pipe in enumerate(pipes):
                pipe.send((state, order[i :: len(pipes)]))
            parts = [pipe.recv() for pipe in pipes]
        else:
            parts = [work(workload, model, state, clients)]
        weight = sum(part[1] for part in parts)
        state = {key: sum(part[0][key] for part in parts) / weight for key in state}
        seconds.append(time.perf_counter() - started)
    for pipe in pipes:
        pipe.send(None)
    print("RESULT", json.dumps({"cohort": workload.cohort, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
