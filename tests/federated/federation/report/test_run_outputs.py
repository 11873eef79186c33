"""What a run leaves and tells: its folder, its traffic and its events."""

from __future__ import annotations

import csv
import io
import json

from federations import COHORT, ROUNDS, Lab, Log
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation, RunResult
from fedpilot.federated.federation.report.progress import JsonLines, PlainLines


def test_a_run_leaves_what_it_says_and_no_temporary_files(lab: Lab) -> None:
    result = lab.run(outputs__curves=True)
    names = {path.name for path in result.folder.iterdir()}
    assert {
        "config.yaml", "manifest.json", "metrics.jsonl", "metrics.csv", "traffic.csv",
        "model.safetensors", "best.safetensors", "checkpoints", "journal", "curves.png",
    } <= names  # fmt: skip
    assert not [path for path in result.folder.rglob("*") if path.name.endswith(".tmp")]
    kept = sorted(path.name for path in (result.folder / "checkpoints").iterdir())
    assert kept[-1] == "round-000004.safetensors"
    assert len(kept) <= 2  # of rounds that are faster than the disk, only the newest is written


def test_the_config_in_the_folder_gives_the_same_run(lab: Lab, reference: RunResult) -> None:
    path = reference.folder / "config.yaml"
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    with Federation(path, overrides=["resources.workers=3"], cluster=cluster) as federation:
        assert federation.run().digest == reference.digest


def test_a_model_goes_to_the_site_once_and_a_sum_comes_back(lab: Lab) -> None:
    with lab.federation() as federation:
        result = federation.run()
        numbers = federation.parameters
    with (result.folder / "traffic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    sent = {
        (int(row["round"]), row["direction"], row["purpose"]): int(row["bytes"]) for row in rows
    }
    for number in range(1, ROUNDS + 1):
        # Round 1 trains the first model; the others train what was evaluated before.
        assert sent[number, "to_site", "training"] == (4 * numbers if number == 1 else 0)
        assert sent[number, "to_site", "evaluation"] == 4 * numbers  # float32
        assert sent[number, "from_site", "training"] == 8 * numbers  # int64


def test_events_come_in_order_and_can_be_printed(lab: Lab) -> None:
    log, plain, lines = Log(), io.StringIO(), io.StringIO()
    result = lab.run(log, PlainLines(plain), JsonLines(lines))
    names = [event.name for event in log if event.name != "waiting"]
    assert names[0] == "run_started"
    assert names[-1] == "run_finished"
    assert [f["round"] for f in log.of("round_finished")] == list(range(1, ROUNDS + 1))
    for number in range(1, ROUNDS + 1):
        done = [f["done"] for f in log.of("clients_done") if f["round"] == number]
        assert done == sorted(done)
        assert all(0 < n < COHORT for n in done)
    assert log.of("run_finished")[0]["digest"] == result.digest
    last = json.loads(lines.getvalue().splitlines()[-1])
    assert (last["event"], last["status"], last["digest"]) == (
        "run_finished", "finished", result.digest
    )  # fmt: skip
    assert last["folder"] == str(result.folder)
    assert f"round {ROUNDS}/{ROUNDS}" in plain.getvalue()
