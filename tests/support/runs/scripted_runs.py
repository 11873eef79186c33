"""Runs as a scripted mediator tells of them, and the `fedpilot` command that asks for them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from click.testing import CliRunner, Result

from fedpilot.cli import main
from user_service import Served

CONFIG = """
federation: {number_of_clients: 50, clients_per_round: 20, rounds: 2}
model: {model_type: mlp}
data: {dataset_type: digits}
"""
TIME = "2026-01-02T03:04:05.000+00:00"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="fedpilot")


def events_of(result: Any) -> list[dict[str, Any]]:
    """What was printed: events, each with its moment."""
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(datetime.fromisoformat(each["time"]).tzinfo for each in told)
    return told


def happened(name: str, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": TIME, **fields}


def started(run: str, *, resumed: bool = False) -> dict[str, Any]:
    return happened(
        "run_started",
        run_id=run,
        folder=f"/state/runs/{run}",
        resumed=resumed,
        rounds=2,
        clients=50,
        clients_per_round=20,
        samples_per_client=[1, 2, 3],
        labels_per_client=2.0,
        model="mlp",
        parameters=10,
        dataset="digits",
        distribution="iid",
    )


def a_round(number: int) -> dict[str, Any]:
    return happened(
        "round_finished",
        round=number,
        of=2,
        train_loss=0.5,
        clients_per_second=10.0,
        refused=0,
        accuracy=number / 10,
        loss=0.1,
    )


def finished(run: str, status: str = "finished", failure: str = "") -> dict[str, Any]:
    return happened(
        "run_finished",
        run_id=run,
        folder=f"/state/runs/{run}",
        status=status,
        failure=failure,
        reason=failure or "all rounds are done",
        rounds=2,
        digest="d" * 64,
        seconds=1.5,
    )


def trains(served: Served, status: str = "finished", failure: str = "") -> None:
    """Have the mediator train what is submitted, at once."""

    def train(run: str) -> None:
        service = served.service
        service.say(run, started(run), a_round(1), a_round(2), finished(run, status, failure))
        ended = "stopped" if status == "interrupted" else status
        service.end(run, ended, failure=failure)

    served.service.on_submit = train
