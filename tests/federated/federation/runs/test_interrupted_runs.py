"""An interrupted run goes on to the same bits, and only where it is safe to go on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from federations import (
    ROUNDS,
    SOON_S,
    Lab,
    federation_rows,
    in_time,
    open_gate,
    raising,
    shut_gate,
    timeless,
)
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Event, Federation, RunRefused, RunResult
from fedpilot.federated.core.state import digest
from fedpilot.federated.federation.coordinator.gather import Gather
from pairings import paired


@pytest.mark.parametrize(
    ("at", "number", "every"),
    paired(
        [
            pytest.param(at, number, id=f"{at}-{number}")
            for at in ("round_started", "round_finished")
            for number in (1, 2, ROUNDS)
        ],
        ["1", "3"],
    ),
)
def test_an_interrupted_run_resumes_to_the_same_bits(
    at: str, number: int, every: str, lab: Lab, reference: RunResult
) -> None:
    stop = raising(KeyboardInterrupt(), at, round=number)
    federation = lab.federation(stop, outputs__checkpoint_every=int(every))
    with pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    federation.close()
    manifest = json.loads((lab.runs / "r" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    result = lab.federation(resources__workers=3).resume("r")
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)
    manifest = json.loads((lab.runs / "r" / "manifest.json").read_text())
    assert (manifest["status"], manifest["digest"]) == ("finished", reference.digest)
    assert len(manifest["resumed"]) == 1


def test_a_run_may_be_interrupted_and_resumed_many_times(lab: Lab, reference: RunResult) -> None:
    for number in range(1, ROUNDS):
        stop = raising(KeyboardInterrupt(), "round_finished", round=number)
        with lab.federation(stop) as federation, pytest.raises(KeyboardInterrupt):
            federation.resume("r") if number > 1 else federation.run(run_id="r")
    result = lab.federation().resume("r")
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)


def test_a_finished_run_that_is_resumed_stays_as_it_is(lab: Lab) -> None:
    finished = lab.run()
    result = lab.federation().resume(finished.run_id)
    assert result.digest == finished.digest
    assert timeless(result.rows) == timeless(finished.rows)


def test_the_model_that_an_interrupted_federation_holds_is_that_of_its_rounds(lab: Lab) -> None:
    stop = raising(KeyboardInterrupt(), "round_started", round=3)
    with lab.federation(stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    assert federation.round == 2
    assert digest(federation.state) == federation_rows(lab, "r")[-1]["model"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param({"training__learning_rate": 0.5}, "training.learning_rate", id="the config"),
        pytest.param({"run__random_seed": 9}, "run.random_seed", id="the seed"),
    ],
)
def test_a_run_is_not_resumed_by_a_config_that_gives_other_bits(
    keys: dict[str, Any], words: str, lab: Lab
) -> None:
    finished = lab.run()
    with pytest.raises(RunRefused, match=words):
        lab.federation(**keys).resume(finished.run_id)
    assert lab.federation().resume(finished.run_id).digest == finished.digest


def test_a_run_that_is_running_is_not_resumed(lab: Lab) -> None:
    refused: list[BaseException] = []

    def meddle(event: Event) -> None:
        if event.name == "round_finished" and event.fields["round"] == 2:
            other = Federation(lab.config(), cluster=FakeCluster([fake_machine("b", CPU=2)]))
            try:
                other.resume("r")
            except RunRefused as error:
                refused.append(error)

    lab.federation(meddle).run(run_id="r")
    assert "another process" in str(refused[0])


def test_a_checkpoint_that_cannot_be_read_is_refused_by_name(lab: Lab) -> None:
    run = lab.run()
    for path in (run.folder / "checkpoints").iterdir():
        path.write_bytes(b"nonsense")
    with pytest.raises(RunRefused, match="checkpoints"):
        lab.federation().resume(run.run_id)


@pytest.mark.parametrize("at", ["round_started", "round_finished"])
def test_an_interrupted_run_resumes_in_the_same_federation(
    at: str, lab: Lab, reference: RunResult
) -> None:
    federation = lab.federation(raising(KeyboardInterrupt(), at, round=2))
    with pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    assert in_time(lambda: federation.resume("r")).digest == reference.digest


def test_a_run_that_was_interrupted_amid_a_round_resumes_in_the_same_federation(
    lab: Lab, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: Ctrl-C while clients train, then `resume` at once."""
    keys = {"model__model_type": f"{user_code}:Slow", "resources__workers": 1}
    code = open_gate(user_code)
    whole = lab.run(**keys)
    shut_gate(user_code)
    federation = lab.federation(**keys)
    calls = itertools.count()

    wait = Gather._wait

    def waiting(self: Gather, seconds: float | None) -> None:
        if next(calls) == 0:
            assert code.ARRIVED.acquire(timeout=SOON_S)  # the first client is at work
            raise KeyboardInterrupt
        code.GATE.set()
        wait(self, seconds)

    monkeypatch.setattr(Gather, "_wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    result = in_time(lambda: federation.resume("r"))
    assert result.digest == whole.digest
    assert timeless(result.rows) == timeless(whole.rows)
