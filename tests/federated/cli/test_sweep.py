"""`fedpilot sweep` trains all trials, resumes what is left, and compares the points."""

from __future__ import annotations

import csv
import io
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedpilot
from command_line import invoke
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import ClientFailed, Federation, load_config
from fedpilot.federated.federation.sites import kept_ray
from fedpilot.federated.site.workers.node import FederatedNode

pytestmark = pytest.mark.usefixtures("own_folder", "fake_ray")

CONFIG = """
run: {name: rates}
federation: {number_of_clients: 6, rounds: 3}
model: {model_type: logistic_regression}
data:
  dataset_type: synthetic
  options: {samples: 90, features: 4, classes: 3}
training: {batch_size: 8, execution: sequential}
resources: {workers: 1}
outputs: {curves: false}
sweep:
  axes:
    training.learning_rate: [0.02, 0.5]
  seeds: [1, 2]
"""
TRIALS = [f"point-{point:03}-seed-{seed}" for point in (1, 2) for seed in (1, 2)]


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeCluster]]:
    """Each sweep gets a fake cluster, and leaves no gang on it."""
    made: list[FakeCluster] = []

    def enter_ray(*_: Any) -> FakeCluster:
        made.append(FakeCluster([fake_machine("a", CPU=4)]))
        return made[-1]

    monkeypatch.setattr(kept_ray, "begin_ray", lambda config: None)
    monkeypatch.setattr(kept_ray, "enter_ray", enter_ray)
    yield made
    assert not any(cluster.groups() for cluster in made)


@pytest.fixture(autouse=True)
def config(own_folder: None) -> None:
    Path("rates.yaml").write_text(CONFIG)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.parent.name: json.loads(path.read_text())["digest"]
        for path in folder.glob("*/manifest.json")
    }


def test_every_trial_is_a_run_of_its_config_and_all_share_one_ray(
    fake_ray: list[FakeCluster],
) -> None:
    result = invoke("sweep", "rates.yaml", "--name", "first")
    assert result.exit_code == 0, result.output
    assert len(fake_ray) == 1
    found = digests(Path("runs/first"))
    assert sorted(found) == TRIALS
    assert len(set(found.values())) == 4
    config = load_config(
        "rates.yaml", ["training.learning_rate=0.5", "run.random_seed=2", "sweep=null"]
    )
    with Federation(config, cluster=FakeCluster([fake_machine("a", CPU=4)])) as alone:
        assert alone.run().digest == found["point-002-seed-2"]
    lines = result.stdout.splitlines()
    assert lines[0] == "first: 4 trials"
    assert lines[1].startswith("1/4  learning_rate 0.02, seed 1: accuracy 0.")
    assert [line.split()[:2] for line in lines if line.startswith("0.")] == [
        ["0.02", "2"],
        ["0.5", "2"],
    ]
    assert Path("runs/first/comparison.png").read_bytes().startswith(b"\x89PNG")


def test_the_trials_after_the_first_train_in_its_workers_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, seen = FederatedNode.__init__, list[int]()

    def noted(self: FederatedNode, *args: Any) -> None:
        seen.append(threading.get_ident())  # of a fake worker: its process
        begin(self, *args)

    monkeypatch.setattr(FederatedNode, "__init__", noted)
    assert invoke("sweep", "rates.yaml").exit_code == 0
    assert (len(seen), len(set(seen))) == (4, 1)


def test_a_sweep_is_resumed_where_it_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("sweep", "rates.yaml", "--name", "whole").exit_code == 0
    begin = Federation.run
    calls: list[str] = []

    def interrupted(self: Federation, **options: Any) -> Any:
        calls.append(str(options["run_id"]))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return begin(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "run", interrupted)
        stopped = invoke("sweep", "rates.yaml", "--name", "cut")
    assert stopped.exit_code == 130
    assert "fedpilot sweep --resume runs/cut" in stopped.stderr
    events = invoke("sweep", "--resume", "cut", "--json").stdout.splitlines()
    begun = [each for each in map(json.loads, events) if each["event"] == "trial_started"]
    assert [each["run_id"] for each in begun] == TRIALS[2:]
    assert digests(Path("runs/cut")) == digests(Path("runs/whole"))


def test_a_trial_that_fails_does_not_end_the_sweep_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Federation.run

    def failing(self: Federation, **options: Any) -> Any:
        if options["run_id"] == TRIALS[1]:
            raise ClientFailed("client_3", "training", "it is too cold")
        return begin(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "run", failing)
        result = invoke("sweep", "rates.yaml", "--name", "cold")
    assert result.exit_code == 1
    assert "it is too cold" in result.stdout
    assert (
        f"1 of 4 trials failed: {TRIALS[1]}; `fedpilot sweep --resume runs/cold`" in result.stderr
    )
    assert sorted(digests(Path("runs/cold"))) == [TRIALS[0], *TRIALS[2:]]
    assert invoke("sweep", "--resume", "runs/cold").exit_code == 0
    assert sorted(digests(Path("runs/cold"))) == TRIALS


def test_a_sweep_of_which_every_trial_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Federation, **options: Any) -> Any:
        raise ClientFailed("client_3", "training", "it is too cold")

    monkeypatch.setattr(Federation, "run", failing)
    result = invoke("sweep", "rates.yaml", "--json")
    assert (result.exit_code, "4 of 4 trials failed" in result.stderr) == (1, True)
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["event"], last["points"], len(last["failed"])) == ("sweep_finished", [], 4)


def test_what_a_killed_sweep_left_half_made_is_made_again() -> None:
    assert invoke("sweep", "rates.yaml", "--name", "half").exit_code == 0
    shutil.rmtree("runs/half/" + TRIALS[3])
    Path("runs/half", TRIALS[3], "journal").mkdir(parents=True)
    Path("runs/half", TRIALS[2], "manifest.json").write_text("{")
    result = invoke("sweep", "--resume", "half")
    assert result.exit_code == 1
    assert f"1 of 4 trials failed: {TRIALS[2]}" in result.stderr
    assert (
        json.loads(Path("runs/half", TRIALS[3], "manifest.json").read_text())["status"]
        == "finished"
    )


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format": 1}', '{"format": 9}'])
def test_a_sweep_whose_record_is_spoilt_is_refused(content: str | None) -> None:
    assert invoke("sweep", "rates.yaml", "--name", "s").exit_code == 0
    record = Path("runs/s/sweep.json")
    if content is None:
        record.unlink()
    else:
        record.write_text(content)
    result = invoke("sweep", "--resume", "s")
    assert (result.exit_code, "runs/s/sweep.json cannot be read" in result.stderr) == (2, True)


def test_a_sweep_whose_config_was_changed_is_refused() -> None:
    assert invoke("sweep", "rates.yaml", "--name", "s").exit_code == 0
    config = Path("runs/s/sweep.yaml")
    config.write_text(config.read_text().replace("0.02", "0.03"))
    result = invoke("sweep", "--resume", "s")
    assert (result.exit_code, "begin another sweep" in result.stderr) == (2, True)


def test_nothing_is_made_of_a_sweep_that_is_wrong_at_any_point() -> None:
    wrong = invoke("sweep", "rates.yaml", "--set", "sweep.axes={training.batch_size: [8, 0]}")
    assert wrong.exit_code == 2
    assert "point 2 of the sweep, training.batch_size=0: training.batch_size" in wrong.stderr
    assert not Path("runs").exists()


def test_a_dry_run_lists_the_trials_and_trains_none() -> None:
    document = json.loads(invoke("sweep", "rates.yaml", "--dry-run", "--json").stdout)
    assert [each["run_id"] for each in document["trials"]] == TRIALS
    assert TRIALS[0] in invoke("sweep", "rates.yaml", "--dry-run").stdout
    assert not Path("runs").exists()


def test_a_name_that_is_taken_and_a_sweep_that_is_unknown_are_refused() -> None:
    Path("runs/taken").mkdir(parents=True)
    taken = invoke("sweep", "rates.yaml", "--name", "taken")
    assert (taken.exit_code, "runs/taken exists already" in taken.stderr) == (2, True)
    unknown = invoke("sweep", "--resume", "nothing")
    assert (unknown.exit_code, "no sweep 'nothing' in runs" in unknown.stderr) == (2, True)
    assert (
        invoke("sweep").exit_code == invoke("sweep", "rates.yaml", "--resume", "x").exit_code == 2
    )


def test_a_config_with_a_sweep_can_be_run_by_itself_too() -> None:
    with Federation("rates.yaml", cluster=FakeCluster([fake_machine("a", CPU=4)])) as federation:
        assert federation.run(run_id="alone").rounds == 3


def test_runs_are_compared_in_a_table_as_csv_as_json_and_as_a_data_frame() -> None:
    invoke("sweep", "rates.yaml", "--name", "first")
    table = invoke("runs", "compare", "first").stdout.splitlines()
    assert table[0].split()[:3] == ["learning_rate", "runs", "accuracy"]
    rows = list(csv.DictReader(io.StringIO(invoke("runs", "compare", "first", "--csv").stdout)))
    assert [row["run_id"] for row in rows] == TRIALS
    document = json.loads(invoke("runs", "compare", "first", "--json").stdout)
    first = document["points"][0]
    mean = (float(rows[0]["accuracy"]) + float(rows[1]["accuracy"])) / 2
    assert first["accuracy"]["mean"] == pytest.approx(mean)
    assert first["point"] == {"training.learning_rate": 0.02}
    frame = fedpilot.runs("first")
    assert list(frame["run_id"]) == TRIALS
    assert frame.groupby("training.learning_rate")["accuracy"].mean()[0.02] == pytest.approx(mean)
    some = invoke("runs", "compare", f"first/{TRIALS[0]}", f"runs/first/{TRIALS[3]}", "--csv")
    assert len(some.stdout.splitlines()) == 3


def test_runs_are_drawn_and_unknown_runs_and_metrics_are_refused() -> None:
    invoke("sweep", "rates.yaml", "--name", "first")
    drawn = invoke("runs", "plot", "first", "--metric", "loss", "--to", "loss.png")
    assert drawn.stdout == "wrote loss.png\n"
    assert Path("loss.png").read_bytes().startswith(b"\x89PNG")
    metric = invoke("runs", "plot", "first", "--metric", "f2")
    assert (metric.exit_code, "no round of these runs has 'f2'" in metric.stderr) == (2, True)
    assert invoke("runs", "compare", "nothing").exit_code == 2
    assert "there are no runs in runs; name a sweep: first" in invoke("runs", "compare").stderr
    for wrong in ("loss.jpg", "nowhere/loss.png", "runs"):
        assert invoke("runs", "plot", "first", "--to", wrong).exit_code == 2


def test_a_run_that_cannot_be_read_is_left_out_unless_it_was_named() -> None:
    invoke("sweep", "rates.yaml", "--name", "first")
    Path("runs/first", TRIALS[0], "metrics.jsonl").write_text("no JSON\n")
    result = invoke("runs", "compare", "--folder", "runs/first", "--csv")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 4)
    assert "left out: " in result.stderr
    named = invoke("runs", "compare", f"first/{TRIALS[0]}")
    assert (named.exit_code, "cannot be read" in named.stderr) == (2, True)


def test_a_run_comes_before_a_folder_of_its_name_elsewhere() -> None:
    invoke("sweep", "rates.yaml", "--name", "first", "--folder", ".")
    with Federation("rates.yaml", cluster=FakeCluster([fake_machine("a", CPU=4)])) as federation:
        federation.run(run_id="first")
    rows = invoke("runs", "compare", "first", "--csv").stdout.splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["first"]
