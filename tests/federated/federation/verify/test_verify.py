"""`runs verify` finds what is spoilt in a run, and trains it again."""

from __future__ import annotations

import csv
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from federations import ROUNDS, on_a_graph
from fedpilot.federated import RunConfig, RunRefused
from fedpilot.federated.core.proof.run_check import Record, check, environment_differences
from fedpilot.federated.core.proof.run_comparison import Verdict
from fedpilot.federated.engine.tensor_files import read_tensors, write_tensors
from fedpilot.federated.federation.events import Event
from fedpilot.federated.federation.verify import Replay
from fedpilot.federated.federation.verify.reading import reading
from records import Archive, edit_manifest, edit_rows, flip, nudging

USER_CODE = """
import torch


def remembering(client):
    \"\"\"SGD whose step shrinks every time that the client takes part.\"\"\"
    turns = int(client.memory["turns"][0]) if "turns" in client.memory else 0
    client.memory["turns"] = torch.tensor([turns + 1])
    optimizer = torch.optim.SGD(client.module.parameters(), lr=0.1 / (1 + turns))
    for x, y in client.batches():
        optimizer.zero_grad()
        client.loss(client.module(x), y).backward()
        optimizer.step()
"""


def test_a_run_that_nothing_happened_to_is_verified(archive: Archive, base: Path) -> None:
    found = archive.verify("base")
    assert not found.differs
    assert not found.refused
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (ROUNDS - 1, ROUNDS)
    assert "base is verified" in archive.text.getvalue()


def test_all_rounds_can_be_trained_again(archive: Archive, base: Path) -> None:
    found = archive.verify("base", how=Replay.ALL)
    assert not found.differs
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (0, ROUNDS)


def test_without_training_nothing_is_started(archive: Archive, base: Path) -> None:
    found = archive.verify("base", how=Replay.NONE)
    assert not found.differs
    assert found.replayed is None
    assert archive.told == []
    assert "without training" in archive.text.getvalue()


def edit_table(folder: Path, column: str, value: str) -> None:
    path = folder / "metrics.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[1][column] = value
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def last(folder: Path) -> Path:
    return folder / "checkpoints" / f"round-{ROUNDS:06d}.safetensors"


def older(folder: Path) -> Path:
    return folder / "checkpoints" / f"round-{ROUNDS - 1:06d}.safetensors"


def renumbered(folder: Path) -> None:
    header, tensors = read_tensors(last(folder))
    write_tensors(older(folder), tensors, header)


SPOILT = [
    pytest.param(
        lambda folder: flip(folder / "model.safetensors"),
        [("different", "model.safetensors", 4, "the row of round 4")],
        id="a bit of the last model",
    ),
    pytest.param(
        lambda folder: flip(last(folder)),
        [("different", "checkpoints/round-000004.safetensors", 4, "the row of round 4")],
        id="a bit of a checkpoint",
    ),
    pytest.param(
        lambda folder: flip(older(folder)),
        [("different", "checkpoints/round-000003.safetensors", 3, "the row of round 3")],
        id="a bit of the older checkpoint",
    ),
    pytest.param(
        lambda folder: flip(folder / "model.safetensors", 12),
        [("unreadable", "model.safetensors", None, "cannot be read")],
        id="a bit of a file's head",
    ),
    pytest.param(
        lambda folder: (folder / "best.safetensors").write_bytes(b""),
        [("unreadable", "best.safetensors", None, "cannot be read")],
        id="an empty file",
    ),
    pytest.param(
        lambda folder: edit_rows(folder, lambda rows: rows[3].update(model="0" * 64)),
        [("different", "metrics.jsonl", 4, "model.safetensors")],
        id="a digest in the rows, against everybody",
    ),
    pytest.param(
        lambda folder: edit_rows(folder, lambda rows: rows[0].update(model="0" * 64)),
        [("different", "metrics.csv", 1, "says model")],
        id="a digest in the rows, against one",
    ),
    pytest.param(
        lambda folder: edit_rows(folder, lambda rows: rows[1].pop("model")),
        [("missing", "metrics.jsonl", 2, "no digest")] * 2,
        id="a row without a digest",
    ),
    pytest.param(
        lambda folder: edit_rows(folder, lambda rows: rows.pop(1)),
        [
            ("missing", "metrics.jsonl", 2, "round 3, where 2 follows"),
            ("missing", "metrics.jsonl", 2, "metrics.csv speak"),
            ("different", "metrics.csv", None, "has 4 rounds"),
        ],
        id="a row that is gone",
    ),
    pytest.param(
        lambda folder: edit_rows(folder, lambda rows: rows[1].update(accuracy=0.125)),
        [
            ("different", "metrics.jsonl", 2, "by accuracy it is"),
            ("different", "metrics.csv", 2, "says accuracy"),
        ],
        id="an accuracy in the rows",
    ),
    pytest.param(
        lambda folder: edit_rows(folder, lambda rows: rows[2].update(best_round=1)),
        [("different", "metrics.jsonl", 3, "in round 1; by accuracy")],
        id="a best round that was none",
    ),
    pytest.param(
        lambda folder: edit_table(folder, "train_loss", "1.5"),
        [("different", "metrics.csv", 2, "says train_loss 1.5")],
        id="a cell of the table",
    ),
    pytest.param(
        lambda folder: edit_manifest(folder, digest="0" * 64),
        [("different", "manifest.json", 4, "says model 000000000000")],
        id="the digest in the manifest",
    ),
    pytest.param(
        lambda folder: edit_manifest(folder, rounds=5),
        [("different", "manifest.json", None, "says 5 rounds")],
        id="the rounds in the manifest",
    ),
    pytest.param(
        lambda folder: (folder / "model.safetensors").unlink(),
        [("missing", "model.safetensors", 4, "not there")],
        id="the last model is gone",
    ),
    pytest.param(
        lambda folder: last(folder).unlink(),
        [("missing", "checkpoints/round-000004.safetensors", 4, "not there")],
        id="the last checkpoint is gone",
    ),
    pytest.param(
        renumbered,
        [("different", "checkpoints/round-000003.safetensors", 3, "it is of round 4")],
        id="a checkpoint of another round",
    ),
    pytest.param(
        lambda folder: (folder / "metrics.jsonl").write_text("{\n"),
        [("unreadable", "metrics.jsonl", None, "line 1")],
        id="rows that are no JSON",
    ),
    pytest.param(
        lambda folder: (folder / "manifest.json").write_text("{"),
        [("unreadable", "manifest.json", None, "cannot be read")],
        id="a manifest that is no JSON",
    ),
    pytest.param(
        lambda folder: (folder / "config.yaml").write_text("{"),
        [("unreadable", "config.yaml", None, "cannot be read")],
        id="a config that is none",
    ),
]


@pytest.mark.parametrize(("spoil", "expected"), SPOILT)
def test_what_is_spoilt_is_named(
    spoil: Callable[[Path], object],
    expected: list[tuple[str, str, int | None, str]],
    archive: Archive,
    base: Path,
) -> None:
    spoil(base)
    found = archive.verify("base", how=Replay.NONE)
    findings = [(str(f.kind), f.file, f.round_number) for f in found.checks[0].findings]
    assert findings[: len(expected)] == [each[:3] for each in expected]
    for finding, each in zip(found.checks[0].findings, expected, strict=False):
        assert each[3] in finding.text
    assert found.differs
    assert "not verified: what it left behind is spoilt" in archive.text.getvalue()


def test_a_spoilt_file_is_compared_with_a_sound_one_of_its_round(
    archive: Archive, base: Path
) -> None:
    flip(base / "model.safetensors")
    (finding,) = archive.verify("base", how=Replay.NONE).checks[0].findings
    assert finding.twin == "best.safetensors"
    (tensor,) = finding.tensors
    assert (tensor.name, tensor.elements, tensor.differing) == ("0.weight", 18, 1)
    assert "1 of 18" in archive.text.getvalue()


def test_a_spoilt_file_without_a_twin_is_compared_with_the_round_trained_again(
    archive: Archive, base: Path
) -> None:
    flip(last(base))
    for name in ("model", "best"):
        (base / f"{name}.safetensors").unlink(missing_ok=True)
    found = archive.verify("base")
    assert found.replayed is not None
    assert found.replayed.departure is None
    (finding,) = found.replayed.findings
    assert finding.file == "checkpoints/round-000004.safetensors"
    assert [tensor.name for tensor in finding.tensors] == ["0.weight"]


def test_a_replay_does_not_begin_with_a_spoilt_checkpoint(
    archive: Archive, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(older(base))
    found = archive.verify("base")
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (0, ROUNDS), "it is a short run"
    monkeypatch.setattr("fedpilot.federated.federation.verify.one_run.SHORT_S", 0.0)
    found = archive.verify("base")
    assert found.replayed is not None
    assert "--replay all" in found.replayed.not_done
    assert found.replayed.departure is None


def test_a_model_swapped_for_an_earlier_one_is_recognised(archive: Archive, base: Path) -> None:
    header, _ = read_tensors(base / "model.safetensors")
    _, tensors = read_tensors(older(base))
    earlier = {n.removeprefix("model/"): a for n, a in tensors.items() if n.startswith("model/")}
    write_tensors(base / "model.safetensors", earlier, header)
    (finding,) = archive.verify("base", how=Replay.NONE).checks[0].findings
    assert "the model of round 3" in finding.text
    assert finding.tensors


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            lambda folder: edit_manifest(folder, data_digest="0" * 64), "the data are", id="data"
        ),
        pytest.param(
            lambda folder: edit_manifest(folder, code_digest="0" * 64), "the code is", id="code"
        ),
        pytest.param(
            lambda folder: edit_manifest(folder, identity="0" * 64), "config.yaml", id="identity"
        ),
        pytest.param(
            lambda folder: (folder / "config.yaml").write_text(
                (folder / "config.yaml").read_text().replace("batch_size: 8", "batch_size: 9")
            ),
            "config.yaml is not what was run",
            id="config",
        ),
        pytest.param(
            lambda folder: edit_manifest(folder, initial_model="0" * 64),
            "the model of round 0",
            id="initial model",
        ),
    ],
)
def test_what_keeps_a_run_from_being_trained_again_is_said(
    change: Callable[[Path], object], said: str, archive: Archive, base: Path
) -> None:
    change(base)
    found = archive.verify("base")
    assert found.refused
    assert found.replayed is None
    assert said in archive.text.getvalue()


def test_data_that_are_gone_are_no_failure_of_the_record(archive: Archive, tmp_path: Path) -> None:
    file, rng = tmp_path / "data.npz", np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)).astype("f4"), rng.integers(0, 3, 90)
    np.savez(file, x=x, y=y)
    archive.record("base", data__dataset_type="npz", data__options={"path": str(file)})
    assert not archive.verify("base").refused
    np.savez(file, x=x + 1, y=y)
    changed = archive.verify("base")
    assert changed.refused
    assert not changed.differs
    assert "the data are not what was run" in archive.text.getvalue()
    file.unlink()
    gone = archive.verify("base")
    assert gone.refused
    assert "data.npz" in archive.text.getvalue()


def test_a_run_on_a_graph_from_a_file_is_verified_on_that_graph_alone(
    archive: Archive, tmp_path: Path
) -> None:
    file = tmp_path / "ring.edges"
    pairs = [f"{i} {(i + 1) % 12}" for i in range(12)]
    file.write_text("\n".join(pairs))
    folder = archive.record("base", **on_a_graph("custom", graph__file=str(file)))
    found = archive.verify("base")
    assert (found.refused, found.differs) == (False, False), archive.text.getvalue()
    file.write_text("\n".join([*pairs, "0 6"]))
    assert archive.verify("base").refused
    assert "the graph is not what was run" in archive.text.getvalue()
    edit_manifest(folder, graph_digest="")
    assert archive.verify("base").refused
    without = json.loads((folder / "manifest.json").read_text())
    del without["graph_digest"]  # as 0.1 wrote it
    (folder / "manifest.json").write_text(json.dumps(without))
    assert archive.verify("base").refused
    file.write_text("\n".join(pairs))
    assert not archive.verify("base").refused


def test_a_run_that_cannot_be_reproduced_says_at_which_round_and_in_which_tensors(
    archive: Archive, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudging(monkeypatch, at_round=4)
    found = archive.verify("base")
    assert found.differs
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert departure.round_number == 4
    (tensor,) = departure.tensors or ()
    assert (tensor.name, tensor.differing) == ("0.bias", 1)
    assert tensor.largest == pytest.approx(1e-3, rel=1e-3)
    assert "another model" in archive.text.getvalue()


def test_it_stops_at_the_first_round_that_differs(
    archive: Archive, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudging(monkeypatch, at_round=2)
    found = archive.verify("base", how=Replay.ALL)
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert (departure.round_number, departure.tensors) == (2, None)
    assert "was not kept" in archive.text.getvalue()
    assert not archive.verify("base").differs, "from the checkpoint of round 3 it is the same"


def test_a_spoilt_digest_in_the_rows_is_confirmed_by_training(archive: Archive, base: Path) -> None:
    edit_rows(base, lambda rows: rows[3].update(model="0" * 64))
    found = archive.verify("base")
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert "model.safetensors" in departure.confirmed_by
    assert "the row is what is wrong" in archive.text.getvalue()


def test_a_metric_that_is_not_what_training_gives_is_named(archive: Archive, base: Path) -> None:
    edit_rows(base, lambda rows: rows[3].update(train_loss=9.5))
    found = archive.verify("base")
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert departure.metrics["train_loss"][0] == 9.5
    assert not departure.model_differs


def test_a_run_of_one_round_is_trained_again_from_the_start(archive: Archive) -> None:
    archive.record("one", federation__rounds=1)
    found = archive.verify("one")
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (0, 1)


def test_an_interrupted_run_is_verified_as_far_as_it_came(archive: Archive) -> None:
    def stop(event: Event) -> None:
        if event.name == "round_finished" and event.fields["round"] == 2:
            raise KeyboardInterrupt

    with archive.make(archive.config()) as federation:
        federation._events.observers.append(stop)
        with pytest.raises(KeyboardInterrupt):
            federation.run(run_id="broken")
    found = archive.verify("broken", how=Replay.ALL)
    assert not found.differs
    assert found.replayed is not None
    assert found.replayed.last == 2
    with archive.make(archive.config()) as federation:
        federation.resume("broken")
    archive.record("whole")
    found = archive.verify("broken", "whole")
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.SAME


def test_a_run_that_is_running_is_refused(archive: Archive, base: Path) -> None:
    handle = os.open(base / ".lock", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(RunRefused, match="being run by another process"):
            archive.verify("base")
    finally:
        os.close(handle)


def test_two_may_read_a_run_and_nobody_continues_it_meanwhile(archive: Archive, base: Path) -> None:
    with (
        reading(base, "base"),
        reading(base, "base"),
        archive.make(archive.config()) as federation,
        pytest.raises(RunRefused, match="another process"),
    ):
        federation.resume("base")


def test_a_run_that_is_not_there_is_refused(archive: Archive, base: Path) -> None:
    with pytest.raises(RunRefused, match="the latest there: base"):
        archive.verify("nobody")
    with pytest.raises(RunRefused, match="both are"):
        archive.verify("base", str(base))
    edit_manifest(base, format=9)
    with pytest.raises(RunRefused, match="format 9"):
        archive.verify("base")


@pytest.mark.parametrize("how", [Replay.LAST, Replay.ALL])
def test_what_clients_remember_is_there_when_they_train_again(
    how: Replay, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_updates_for_verify.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    update = "users_updates_for_verify:remembering"
    archive.record("base", (str(tmp_path),), training__client_update=update, federation__rounds=6)
    found = archive.verify("base", how=how)
    assert found.replayed is not None
    assert not found.differs


def test_a_record_of_nothing_is_right() -> None:
    assert check(Record(rows=(), manifest={}, files=())) == ()


def test_what_only_one_side_says_of_its_workers_is_no_difference() -> None:
    now = {"torch": "2.7", "threads": 1, "device": "cpu"}
    assert environment_differences([], [now]) == {}
    assert environment_differences([now, {**now, "torch": "2.6"}], [now]) == {
        "torch": ("2.6, 2.7", "2.7")
    }


def test_a_config_can_be_read_back(base: Path) -> None:
    with reading(base, "base") as read:
        assert isinstance(read.config, RunConfig)
