"""The events of a made-up run, as displays and drawings take them."""

from __future__ import annotations

from typing import Any

from fedpilot.federated.federation.events import Event, event
from fedpilot.federated.federation.runs.run_record import JUDGED


def row(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "round": number,
        "clients": 20,
        "samples": 400,
        "refused": 0,
        "train_loss": 2.0 / number,
        "seconds": 0.5,
        "clients_per_second": 40.0,
        "model": "abc",
        "accuracy": 0.5 + number / 1000,
        "loss": 1.0 / number,
        "best": 0.5 + number / 1000,
        "best_round": number,
    } | fields


def a_run(rounds: int, *, status: str = "finished", **fields: Any) -> list[Event]:
    events = [
        event(
            "run_started",
            run_id="try-1",
            folder="runs/try-1",
            resumed=False,
            rounds=rounds,
            clients=50,
            clients_per_round=20,
            samples_per_client=[3, 25.5, 90],
            labels_per_client=4.25,
            model="mlp",
            parameters=9610,
            dataset="digits",
            distribution="dirichlet",
        ),
        event("cluster_ready", seconds=2.5),
        event("gang_reserved", vnodes={"local": 2}, seconds=2.6),
        event("worker_ready", worker=0, pid=1, host="here"),
        event("workers_ready", workers=2, seconds=4.2),
    ]
    for n in range(1, rounds + 1):
        events += [
            event("round_started", round=n, of=rounds),
            event("clients_done", round=n, done=10, of=20),
            event("round_finished", of=rounds, **row(n, **fields)),
        ]
    last = {k: v for k, v in row(max(1, rounds), **fields).items() if k in JUDGED}
    events.append(
        event(
            "run_finished",
            run_id="try-1",
            folder="runs/try-1",
            status=status,
            failure="" if status == "finished" else "ClientFailed: client_3 failed",
            rounds=rounds,
            digest="0123456789abcdef" * 4,
            seconds=65.0,
            reason="all rounds are done" if status == "finished" else "",
            **(last if rounds else {}),
        )
    )
    return events


UNUSUAL = [
    event("worker_lost", worker=1, reason="its process died", held=["training 5 clients"]),
    event("worker_lost", worker=1, reason="its process died", held=[]),
    event("update_refused", round=2, client="client_3", reason="not finite"),
    event("grid_coarsened", round=2, tensors=["1.weight"], bits=8),
    event("site_lost", site="paris", reason="it is silent", clients=16),
    event("site_returned", site="paris"),
    event("site_passed_over", site="rome", reason="the data of the run lies elsewhere"),
    event("link_slow", site="oslo", round=2, seconds=106.8, bytes_per_second=125_000),
    event("late_counted", round=2, of_round=1, clients=3, weight=20, sites=["paris", "rome"]),
    event("late_discarded", round=2, of_round=1, site="paris", reason="it is too late"),
    event("round_quorum", round=2, clients=20, of=25, reason="the deadline has passed"),
]
