"""The floor of eager PyTorch: one client after another, no framework; prints seconds per round.

Several processes share the global model and their sums in memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time

import torch
from models import build_model, train, train_lean
from workload import WORKLOADS


def work(workload, model, step, state, total, clients) -> int:
    """Sum n x weights of these clients into `total`; gives the sum of n."""
    weight = 0
    for value in total.values():
        value.zero_()
    for index in clients:
        x, y = workload.client(int(index))
        model.load_state_dict(state)
        step(model, x, y, workload.rate)
        with torch.no_grad():
            for name, value in model.state_dict().items():
                total[name].add_(value, alpha=len(y))
        weight += len(y)
    return weight


def serve(pipe, *job) -> None:
    """A process of the loop."""
    torch.set_num_threads(1)
    while (clients := pipe.recv()) is not None:
        pipe.send(work(*job, clients))


def begin(*job):
    """Start a process; the pipe to it."""
    here, there = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    fork.Process(target=serve, args=(there, *job), daemon=True).start()
    return here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    workload, step = WORKLOADS[arguments.workload], train_lean if arguments.lean else train
    sizes, _ = workload.table  # made before the clock starts, and before processes share it
    model = build_model(workload.model)
    state = {name: value.clone().share_memory_() for name, value in model.state_dict().items()}
    totals = [
        {name: torch.zeros_like(value).share_memory_() for name, value in state.items()}
        for _ in range(arguments.processes)
    ]
    jobs = [(workload, model, step, state, total) for total in totals]
    pipes = [begin(*job) for job in jobs] if len(jobs) > 1 else []
    seconds = []
    for number in range(arguments.rounds or workload.rounds):
        started = time.perf_counter()
        clients = workload.chosen(number)
        clients = clients[(-sizes[clients]).argsort(kind="stable")]  # equal work for each process
        for i, pipe in enumerate(pipes):
            pipe.send(clients[i :: len(pipes)])
        weight = sum(pipe.recv() for pipe in pipes) if pipes else work(*jobs[0], clients)
        for name, value in state.items():
            value.copy_(sum(total[name] for total in totals)).div_(weight)
        seconds.append(time.perf_counter() - started)
    for pipe in pipes:
        pipe.send(None)
    model.load_state_dict(state)
    result = {"cohort": workload.cohort, "seconds": seconds, "accuracy": workload.accuracy(model)}
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
