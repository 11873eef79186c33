"""A run that goes on where an earlier one stands ends as one run of that length."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from federations import (
    Lab,
    on_a_graph,
    raising,
    timeless,
)
from fedpilot.cli import main
from fedpilot.federated import Event, RunRefused, RunResult
from fedpilot.federated.core.state import digest
from fedpilot.federated.engine.tensor_files import read_tensors
from fedpilot.federated.federation.runs.continuing import as_if_longer
from pairings import paired

pytestmark = pytest.mark.timeout(120)

LONG = 6


def removing(lab: Lab, run: str) -> Callable[[Event], None]:
    """An observer that removes an earlier run once the new one is under way."""

    def observe(event: Event) -> None:
        if event.name == "round_started" and (lab.runs / run).exists():
            shutil.rmtree(lab.runs / run)

    return observe


def gone_on(lab: Lab, done: int, **keys: Any) -> RunResult:
    """A run of some rounds, and then all that a new one adds to it, while the first is removed."""
    lab.federation(federation__rounds=done, **keys).run(run_id="short")
    longer = lab.federation(removing(lab, "short"), federation__rounds=LONG, **keys)
    result = longer.run(run_id="long", parent="short")
    assert not (lab.runs / "short").exists()
    return result


@pytest.mark.parametrize(
    ("keys", "done"),
    paired(
        [
            pytest.param({}, id="plain"),
            pytest.param({"federation__server_learning_rate": 0.5}, id="the server has a rate"),
            pytest.param(
                {"federation__aggregation_strategy": "fedadam"}, id="the server remembers"
            ),
            pytest.param({"training__client_update": "remembering"}, id="clients remember"),
            pytest.param({"federation__aggregation_strategy": "median"}, id="every update"),
            pytest.param(
                {"evaluation__where": "sites", "evaluation__every": 2}, id="judged at sites"
            ),
            pytest.param({"outputs__client_digests": True}, id="with digests of clients"),
        ],
        ["1", "3"],
    ),
)
def test_it_ends_in_the_bits_and_the_rows_of_one_run_of_that_length(
    keys: dict[str, Any], done: str, lab: Lab, user_code: str
) -> None:
    if "training__client_update" in keys:
        keys = {"training__client_update": f"{user_code}:remembering"}
    whole = lab.run(federation__rounds=LONG, **keys)
    result = gone_on(lab, int(done), **keys)
    assert result.digest == whole.digest
    assert timeless(result.rows) == timeless(whole.rows)
    assert (result.best, result.best_round) == (whole.best, whole.best_round)
    manifest = json.loads((result.folder / "manifest.json").read_text())
    assert (manifest["parent"]["run_id"], manifest["parent"]["round"]) == ("short", int(done))
    assert (
        manifest["identity"] == json.loads((whole.folder / "manifest.json").read_text())["identity"]
    )
    for name in ("model", "best"):
        kept, made = (read_tensors(r.folder / f"{name}.safetensors") for r in (whole, result))
        assert digest(kept[1]) == digest(made[1])
    if "outputs__client_digests" in keys:
        assert (result.folder / "clients.jsonl").read_text() == (
            whole.folder / "clients.jsonl"
        ).read_text()


@pytest.mark.parametrize("every", [1, 2])
def test_what_was_waited_for_counts_where_a_run_stops_early(lab: Lab, every: int) -> None:
    """A run of three rounds judges its last, which a longer one would not, every other round."""
    keys = {
        "evaluation__every": every,
        "evaluation__early_stopping": {"patience": 2, "min_delta": 0.5},
        "outputs__checkpoint_every": 2,
    }
    whole = lab.run(federation__rounds=9, **keys)
    assert whole.rounds < 9
    lab.federation(federation__rounds=3, **keys).run(run_id="short")
    result = lab.federation(federation__rounds=9, **keys).run(run_id="long", parent="short")
    assert (result.rounds, result.reason, result.digest) == (
        whole.rounds,
        whole.reason,
        whole.digest,
    )
    assert timeless(result.rows) == timeless(whole.rows)


def test_the_scores_of_clients_models_are_those_of_one_long_run(lab: Lab) -> None:
    """The last round of the short run is evaluated, and the long one does not evaluate it."""
    keys = {**on_a_graph(), "evaluation__every": 3}
    whole = lab.run(**{**keys, "federation__rounds": 6})
    lab.federation(**{**keys, "federation__rounds": 4}).run(run_id="short")
    long = lab.federation(**{**keys, "federation__rounds": 6})
    result = long.run(run_id="long", parent="short")
    assert timeless(result.rows) == timeless(whole.rows)


def test_a_chain_of_runs_that_were_interrupted_and_resumed(lab: Lab, user_code: str) -> None:
    keys = {"training__client_update": f"{user_code}:remembering"}
    whole = lab.run(federation__rounds=LONG, **keys)
    stop = raising(KeyboardInterrupt(), "round_started", round=3)
    first = lab.federation(stop, federation__rounds=4, **keys)
    with first, pytest.raises(KeyboardInterrupt):
        first.run(run_id="first")
    stop = raising(KeyboardInterrupt(), "round_started", round=4)
    second = lab.federation(stop, federation__rounds=5, **keys)
    with second, pytest.raises(KeyboardInterrupt):
        second.run(run_id="second", parent="first")
    shutil.rmtree(lab.runs / "first")
    assert lab.federation(federation__rounds=5, **keys).resume("second").rounds == 5
    folder = str(lab.runs / "second")
    result = lab.federation(federation__rounds=LONG, **keys).run(parent=folder)
    assert result.digest == whole.digest
    assert timeless(result.rows) == timeless(whole.rows)


@pytest.mark.parametrize(
    ("keys", "parent", "told"),
    [
        pytest.param({}, "short", "has done 3 rounds.*federation.rounds is 3", id="no more"),
        pytest.param(
            {"federation__rounds": 9, "training__learning_rate": 0.5},
            "short",
            "training.learning_rate: .*only federation.rounds may",
            id="another rate",
        ),
        pytest.param({"federation__rounds": 9}, "nobody", "no run 'nobody'", id="no such run"),
    ],
)
def test_what_would_give_other_bits_is_refused_and_leaves_nothing(
    keys: dict[str, Any], parent: str, told: str, lab: Lab
) -> None:
    lab.federation(federation__rounds=3).run(run_id="short")
    with pytest.raises(RunRefused, match=told):
        lab.federation(**{"federation__rounds": 3, **keys}).run(run_id="long", parent=parent)
    assert [each.name for each in lab.runs.iterdir()] == ["short"]


def test_a_run_that_is_running_or_has_no_round_is_refused(lab: Lab) -> None:
    refused: list[str] = []

    def meddle(event: Event) -> None:
        if event.name == "round_finished":
            with pytest.raises(RunRefused) as error:
                lab.federation(federation__rounds=9).run(parent="short")
            refused.append(str(error.value))

    lab.federation(meddle, federation__rounds=1).run(run_id="short")
    assert "another process" in refused[0]
    stop = raising(KeyboardInterrupt(), "round_started", round=1)
    with lab.federation(stop) as none, pytest.raises(KeyboardInterrupt):
        none.run(run_id="none")
    shutil.rmtree(lab.runs / "none" / "checkpoints")
    with pytest.raises(RunRefused, match="has ended no round"):
        lab.federation(federation__rounds=9).run(parent="none")


def test_what_cannot_be_copied_is_no_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.federation(federation__rounds=2).run(run_id="short")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left"):
        lab.federation(federation__rounds=4).run(run_id="long", parent="short")
    assert [each.name for each in lab.runs.iterdir()] == ["short"]


def test_the_last_round_is_judged_only_where_it_is_due(lab: Lab) -> None:
    federation = lab.federation(federation__rounds=9, evaluation__every=2)
    rows = [
        {"round": 1, "clients": 3},
        {"round": 2, "accuracy": 0.5, "loss": 1.0, "best": 0.5, "best_round": 2},
        {"round": 3, "accuracy": 0.7, "loss": 0.9, "best": 0.7, "best_round": 3},
    ]
    assert as_if_longer(rows, federation.config) == [
        *rows[:2],
        {"round": 3, "best": 0.5, "best_round": 2},
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["x.yaml", "--from", "base"], "give exactly one", id="and a config"),
        pytest.param(["--resume", "a", "--from", "b"], "give exactly one", id="and a resume"),
        pytest.param(
            ["--from", "b", "--mediator", "m:1"], "needs a run folder here", id="elsewhere"
        ),
        pytest.param(["--from", "nobody"], "no run 'nobody'", id="no such run"),
    ],
)
def test_the_command_says_what_it_wants(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(main, ["run", *arguments])
    assert done.exit_code == 2
    assert told in done.stderr
