"""The execution of a run is settled once, written down and kept, or refused with words."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from federations import COHORT, ROUNDS, Lab, Log, raising, timeless
from fedpilot.federated import ClientFailed, ConfigError, ExecutionRefused, RunRefused
from fedpilot.federated.config import load_config
from fedpilot.federated.engine.stacking import NotStackable

AUTO = {"training__execution": "auto"}
DENSE = {"model__model_type": "logistic_regression"}


def test_auto_is_settled_before_sites_start_and_written_down(lab: Lab) -> None:
    log = Log()
    with lab.federation(log, **AUTO, training__batch_size=7) as federation:
        before = federation.identity
        result = federation.run(run_id="r")
        federation.run()
    (chosen,) = log.of("execution_chosen")
    assert (chosen["execution"], chosen["chunk_size"]) == ("compiled", COHORT)
    assert chosen["execution_model"] == 1
    names = [each.name for each in log]
    assert names.index("execution_chosen") < names.index("cluster_ready")
    written = load_config(result.folder / "config.yaml").training
    assert (written.execution, written.chunk_size) == ("compiled", COHORT)
    assert (written.execution_model, written.execution_reason) == (1, chosen["reason"])
    manifest = json.loads((result.folder / "manifest.json").read_text())
    named = {"training__execution": "compiled", "training__chunk_size": COHORT}
    asked = lab.federation(**named, training__batch_size=7)
    assert manifest["identity"] == asked.identity != before
    assert asked.run().digest == result.digest


def test_sites_and_workers_are_told_what_was_settled(lab: Lab) -> None:
    with lab.federation(**AUTO, training__batch_size=11) as federation:
        federation.start()
        told = federation.gang.spec_of("local").header["config"]["training"]
    assert (told["execution"], told["chunk_size"]) == ("compiled", COHORT)
    assert not {"execution_model", "execution_reason"} & set(told), "what only explains stays here"


def test_a_slow_clock_little_memory_and_other_clients_settle_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One config, one execution: on a busy machine, on a small one, with other data at a site."""

    def settled(**keys: Any) -> tuple[str, int | str]:
        log = Log()
        with lab.federation(log, **AUTO, **keys) as federation:
            federation.start()
        (chosen,) = log.of("execution_chosen")
        return chosen["execution"], chosen["chunk_size"]

    undisturbed = settled()
    monkeypatch.setattr("os.sysconf", lambda _name: 1)
    monkeypatch.setattr("os.cpu_count", lambda: 512)
    clock = time.thread_time
    monkeypatch.setattr(time, "thread_time", lambda: 1e4 * clock())
    assert settled() == undisturbed
    monkeypatch.undo()
    assert settled(run__random_seed=99, data__dirichlet_beta=0.2) == undisturbed


def test_a_worker_that_finds_otherwise_fails_by_name(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never chooses another way: that would be another model."""

    def differ(*_: Any) -> None:
        raise NotStackable("a client's bits depend on its mates")

    with lab.federation(**AUTO) as federation:
        federation.start()
        monkeypatch.setattr("fedpilot.federated.engine.trainers.probe._check_mates", differ)
        with pytest.raises(ExecutionRefused, match=r"as the worker on .* finds") as caught:
            federation.run()
    assert caught.value.execution == "compiled"


@pytest.mark.parametrize("own", ["client_update", "loss_function"])
@pytest.mark.parametrize("execution", ["folded", "mapped", "compiled"])
def test_code_that_sees_one_client_at_a_time_rules_out_the_ways_for_many(
    own: str, execution: str, lab: Lab, user_code: str
) -> None:
    keys = {f"training__{own}": f"{user_code}:anything", "training__execution": execution}
    with pytest.raises(ConfigError, match=f"`execution: {execution}` with") as caught:
        lab.federation(**keys)
    assert "`auto` or `sequential`" in str(caught.value)


@pytest.mark.parametrize("recorded", ["folded", "sequential"])
def test_a_resumed_run_keeps_what_auto_meant(recorded: str, lab: Lab) -> None:
    """Also one of an earlier fedpilot, which had tried it out."""
    named = {"training__execution": recorded, "training__chunk_size": 3}
    whole = lab.run(**named)
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with lab.federation(stop, **named) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    assert "execution_model" not in (lab.runs / "r" / "config.yaml").read_text()
    log = Log()
    result = lab.federation(log, **AUTO, resources__workers=3).resume("r")
    assert [fields["execution"] for fields in log.of("execution_chosen")] == [recorded]
    assert result.digest == whole.digest
    assert timeless(result.rows) == timeless(whole.rows)


def test_a_run_that_died_while_it_wrote_down_what_auto_means_is_resumed(lab: Lab) -> None:
    """Its config.yaml says it already, its manifest not yet."""
    auto = {**AUTO, "training__batch_size": 5}
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
def test_an_execution_that_the_probe_finds_wrong_ends_the_start_with_words(
    execution: str, lab: Lab, user_code: str
) -> None:
    keys = {"model__model_type": f"{user_code}:Mixing", "training__execution": execution}
    with pytest.raises(ConfigError, match=r"mates|influence each other") as caught:
        lab.run(**keys)
    assert caught.value.problems[0].key == "training.execution"
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


def test_what_goes_wrong_with_a_client_is_found_in_its_round(lab: Lab, user_code: str) -> None:
    keys = {
        "model__model_type": f"{user_code}:Fragile",
        "model__options": {"limit": -9.0},
        "training__execution": "auto",
    }
    with pytest.raises(ClientFailed, match="too much for me") as caught:
        lab.federation(**keys).run(run_id="r")
    assert "round 1" in str(caught.value)
    assert json.loads((lab.runs / "r" / "manifest.json").read_text())["status"] == "failed"
