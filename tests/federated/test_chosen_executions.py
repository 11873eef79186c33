"""The execution of a run is found out once, written down and kept, or refused with words."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from federations import COHORT, ROUNDS, Lab, Log, raising, timeless
from fedpilot.federated import ClientFailed, ConfigError, Event, ExecutionRefused, RunRefused
from fedpilot.federated.config import load_config

pytestmark = pytest.mark.timeout(60)


def pretend(patch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Trials find these seconds per client, by kind."""

    def time_of(trainer: Any, chunk: Any, _model: Any) -> float:
        kind = {
            "SequentialTrainer": "sequential",
            "FoldedModule": "folded",
            "MappedModule": "mapped",
            "CompiledTrainer": "compiled",
        }[type(getattr(trainer, "_stacked", trainer)).__name__]
        steps = int((-(-chunk.sizes // trainer._training.batch_size)).sum())
        return seconds.get(kind, 1.0) * steps + 1e-6

    patch.setattr("fedpilot.federated.engine.trainers._time", time_of)


def test_auto_is_found_out_once_said_and_written_down(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, sequential=0.01, folded=0.001)
    log = Log()
    auto = {"training__execution": "auto", "training__batch_size": 7}
    with lab.federation(log, **auto) as federation:
        before = federation.identity
        result = federation.run(run_id="r")
        federation.run()
    (chosen,) = log.of("execution_chosen")
    assert (chosen["execution"], chosen["chunk_size"]) == ("folded", COHORT)
    assert "10.0x as fast" in chosen["reason"]
    written = load_config(result.folder / "config.yaml").training
    assert (written.execution, written.chunk_size) == ("folded", COHORT)
    manifest = json.loads((result.folder / "manifest.json").read_text())
    named = {"training__execution": "folded", "training__chunk_size": COHORT}
    asked = lab.federation(**named, training__batch_size=7)
    assert manifest["identity"] == asked.identity != before
    assert asked.run().digest == result.digest


def test_sites_are_told_the_same_before_and_after_it_was_found_out(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, sequential=0.01, folded=0.001)
    with lab.federation(training__execution="auto", training__batch_size=11) as federation:
        before = federation.spec_of("local").header["config"]
        federation.start()
        assert federation.config.training.execution == "folded"
        assert federation.spec_of("local").header["config"] == before


def test_a_long_trial_is_spoken_of(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def time_of(*_: Any) -> float:
        assert let_go.wait(60)
        return 1.0

    def on(event: Event) -> None:
        if event.name == "execution_trial":
            let_go.set()

    monkeypatch.setattr("fedpilot.federated.engine.trainers._time", time_of)
    monkeypatch.setattr("fedpilot.federated.federation.TRIAL_SAID_S", 0.05)
    log = Log()
    with lab.federation(log, on, training__execution="auto") as federation:
        federation.start()
    names = [each.name for each in log]
    assert names.index("workers_ready") < names.index("execution_trial")
    assert names.index("execution_trial") < names.index("execution_chosen")


def test_auto_may_mean_compiled(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, sequential=0.01, folded=0.001, compiled=0.0005)
    log = Log()
    with lab.federation(log, training__execution="auto", training__batch_size=9) as federation:
        result = federation.run(run_id="r")
    (chosen,) = log.of("execution_chosen")
    assert (chosen["execution"], chosen["chunk_size"]) == ("compiled", COHORT)
    assert "20.0x as fast" in chosen["reason"]
    written = load_config(result.folder / "config.yaml").training
    assert (written.execution, written.chunk_size) == ("compiled", COHORT)
    named = {"training__execution": "compiled", "training__chunk_size": COHORT}
    assert lab.run(**named, training__batch_size=9).digest == result.digest


@pytest.mark.parametrize("own", ["client_update", "loss_function"])
@pytest.mark.parametrize("execution", ["folded", "mapped", "compiled"])
def test_code_that_sees_one_client_at_a_time_rules_out_the_ways_for_many(
    own: str, execution: str, lab: Lab, user_code: str
) -> None:
    keys = {f"training__{own}": f"{user_code}:anything", "training__execution": execution}
    with pytest.raises(ConfigError, match=f"`execution: {execution}` with") as caught:
        lab.federation(**keys)
    assert "`auto` or `sequential`" in str(caught.value)


def test_a_resumed_run_keeps_what_auto_meant(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    auto = {"training__execution": "auto", "training__batch_size": 6}
    pretend(monkeypatch, sequential=0.01, folded=0.001)
    whole = lab.run(**auto)
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with lab.federation(stop, **auto) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    pretend(monkeypatch, sequential=0.001, folded=0.01)  # another machine would choose otherwise
    monkeypatch.setattr("fedpilot.federated.engine.trial_cache.recall", lambda _key: None)
    log = Log()
    result = lab.federation(log, **auto, resources__workers=3).resume("r")
    assert [fields["execution"] for fields in log.of("execution_chosen")] == ["folded"]
    assert result.digest == whole.digest
    assert timeless(result.rows) == timeless(whole.rows)


def test_a_run_that_died_while_it_wrote_down_what_auto_means_is_resumed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.yaml says it already, its manifest not yet."""
    pretend(monkeypatch, sequential=0.01, folded=0.001)
    auto = {"training__execution": "auto", "training__batch_size": 5}
    whole = lab.run(**auto)
    asked = lab.federation(**auto).identity
    stop = raising(KeyboardInterrupt(), "round_started", round=1)
    with lab.federation(stop, **auto) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    path = lab.runs / "r" / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["identity"] != asked
    path.write_text(json.dumps(manifest | {"identity": asked, "status": "running"}))
    assert lab.federation(**auto).resume("r").digest == whole.digest


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param({"training__execution": "mapped"}, r"training\.execution", id="another way"),
        pytest.param(
            {"training__execution": "folded", "training__chunk_size": 2},
            r"training\.chunk_size",
            id="another chunk size",
        ),
    ],
)
def test_a_run_is_not_resumed_with_another_execution(
    keys: dict[str, Any], words: str, lab: Lab
) -> None:
    result = lab.run(training__execution="folded", training__chunk_size=4)
    with pytest.raises(RunRefused, match=words):
        lab.federation(**keys).resume(result.run_id)
    named = lab.federation(training__execution="folded", training__chunk_size=4)
    assert named.resume(result.run_id).digest == result.digest


def test_an_execution_that_does_not_suit_the_model_is_refused_before_anything_starts(
    lab: Lab, user_code: str
) -> None:
    keys = {"model__model_type": f"{user_code}:WithBatchNorm", "training__execution": "folded"}
    with pytest.raises(ConfigError, match=r"BatchNorm1d\) has no folded form") as caught:
        lab.federation(**keys)
    assert caught.value.problems[0].key == "training.execution"
    assert "`sequential`" in caught.value.problems[0].allowed


@pytest.mark.parametrize("execution", ["folded", "mapped"])
def test_an_execution_that_a_trial_finds_wrong_ends_the_start_with_words(
    execution: str, lab: Lab, user_code: str
) -> None:
    keys = {"model__model_type": f"{user_code}:Mixing", "training__execution": execution}
    with pytest.raises(ExecutionRefused, match=r"mates|influence each other") as caught:
        lab.run(**keys)
    assert caught.value.execution == execution
    assert "`sequential`" in str(caught.value), "it says what is allowed"
    assert lab.cluster.groups() == ()
    assert not list(lab.runs.iterdir()), "and leaves no run"


@pytest.mark.parametrize("model", ["WithBatchNorm", "WithScalar", "Fragile", "Explosive"])
def test_auto_finds_a_way_for_every_model(model: str, lab: Lab, user_code: str) -> None:
    keys = {
        "model__model_type": f"{user_code}:{model}",
        "training__execution": "auto",
        "data__data_distribution_kind": "iid",
        "data__dirichlet_beta": None,
    }
    log = Log()
    result = lab.run(log, **keys)
    assert result.rounds == ROUNDS
    (chosen,) = log.of("execution_chosen")
    if model != "WithScalar":
        assert chosen["execution"] == "sequential"
        assert "compiled" in chosen["reason"]
        assert "folded" in chosen["reason"]


def test_what_goes_wrong_with_a_client_is_its_own_and_not_the_trials(
    lab: Lab, user_code: str
) -> None:
    """A client whose training raises is found in its round, as without a trial."""
    keys = {
        "model__model_type": f"{user_code}:Fragile",
        "model__options": {"limit": -9.0},
        "training__execution": "auto",
    }
    with pytest.raises(ClientFailed, match="too much for me") as caught:
        lab.federation(**keys).run(run_id="r")
    assert "round 1" in str(caught.value)
    assert json.loads((lab.runs / "r" / "manifest.json").read_text())["status"] == "failed"
