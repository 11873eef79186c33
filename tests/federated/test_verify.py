"""`runs verify` finds what is spoilt, trains it again, and says where two runs part."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedpilot.cli import main
from fedpilot.fabric.testing import FakeCluster, fake_machine
from fedpilot.federated import FederatedError, Federation, RunConfig, RunRefused
from fedpilot.federated.coordinator import GlobalModel
from fedpilot.federated.core.client_differences import ClientFacts, compare_clients
from fedpilot.federated.core.run_check import Record, check, environment_differences
from fedpilot.federated.core.run_comparison import Verdict
from fedpilot.federated.core.state_differences import state_differences
from fedpilot.federated.engine.tensor_files import read_tensors, write_tensors
from fedpilot.federated.events import Event
from fedpilot.federated.verify import Outcome, Replay, TextReport, Tools, document, verify
from fedpilot.federated.verify.reading import read_clients, reading
from fedpilot.federated.verify.telling import Telling
from fedpilot.federated.write_behind import WriteBehind

pytestmark = pytest.mark.timeout(60)

CLIENTS, COHORT, ROUNDS, SEED = 12, 6, 4, 3

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


class Lab:
    """Runs on fake clusters, and `verify` over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"
        self.told: list[str] = []
        self.clusters: list[FakeCluster] = []

    def make(self, config: Any, search: Any = ()) -> Federation:
        cluster = FakeCluster([fake_machine("a", CPU=8)])
        self.clusters.append(cluster)
        return Federation(config, search=search, cluster=cluster)

    def config(self, **keys: Any) -> dict[str, Any]:
        """The small config; `federation__rounds=2` changes a key."""
        config: dict[str, Any] = {
            "run": {"random_seed": SEED},
            "federation": {
                "number_of_clients": CLIENTS, "clients_per_round": COHORT, "rounds": ROUNDS
            },
            "model": {"model_type": "logistic_regression"},
            "data": {
                "dataset_type": "synthetic",
                "options": {"samples": 300, "features": 6, "classes": 3},
                "data_distribution_kind": "dirichlet",
                "dirichlet_beta": 1.0,
            },
            "training": {"batch_size": 8, "execution": "sequential"},
            "evaluation": {},
            "resources": {"workers": 2},
            "outputs": {"folder": str(self.folder), "curves": False},
        }  # fmt: skip
        for key, value in keys.items():
            section, _, name = key.partition("__")
            config[section][name] = value
        return config

    def run(self, run_id: str, search: tuple[str, ...] = (), **keys: Any) -> Path:
        with self.make(self.config(**keys), search) as federation:
            return federation.run(run_id=run_id).folder

    @property
    def tools(self) -> Tools:
        return Tools(
            make=self.make, tell=lambda what, done, of: self.told.append(what), hold=nullcontext
        )

    def verify(self, *runs: str, how: Replay = Replay.LAST, clients: int = 10) -> Outcome:
        self.text = io.StringIO()
        before = {run: snapshot(self.folder / run) for run in runs}
        say = TextReport(self.text, clients)
        found = verify(self.folder, runs, how=how, measured=clients, tools=self.tools, say=say)
        assert {run: snapshot(self.folder / run) for run in runs} == before, "nothing is written"
        assert all(cluster.groups() == () for cluster in self.clusters), "nothing is left"
        json.dumps(document(found, clients, 0), allow_nan=False)
        return found


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to, with its last two checkpoints; copied by those who spoil."""
    put = WriteBehind.put

    def at_once(self: WriteBehind, *write: Any, **options: Any) -> None:
        put(self, *write, **options)
        self.flush()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteBehind, "put", at_once)
        return Lab(tmp_path_factory.mktemp("finished")).run("base")


@pytest.fixture
def base(lab: Lab, finished: Path) -> Path:
    lab.folder.mkdir()
    return Path(shutil.copytree(finished, lab.folder / "base"))


# -- one run ----------------------------------------------------------------------------------


def test_a_run_that_nothing_happened_to_is_verified(lab: Lab, base: Path) -> None:
    found = lab.verify("base")
    assert not found.differs
    assert not found.refused
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (ROUNDS - 1, ROUNDS)
    assert "base is verified" in lab.text.getvalue()


def test_all_rounds_can_be_trained_again(lab: Lab, base: Path) -> None:
    found = lab.verify("base", how=Replay.ALL)
    assert not found.differs
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (0, ROUNDS)


def test_without_training_nothing_is_started(lab: Lab, base: Path) -> None:
    found = lab.verify("base", how=Replay.NONE)
    assert not found.differs
    assert found.replayed is None
    assert lab.told == []
    assert "without training" in lab.text.getvalue()


def flip(path: Path, offset: int = -3) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(bytes(content))


def edit_rows(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_manifest(folder: Path, **facts: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


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
    lab: Lab,
    base: Path,
) -> None:
    spoil(base)
    found = lab.verify("base", how=Replay.NONE)
    findings = [(str(f.kind), f.file, f.round_number) for f in found.checks[0].findings]
    assert findings[: len(expected)] == [each[:3] for each in expected]
    for finding, each in zip(found.checks[0].findings, expected, strict=False):
        assert each[3] in finding.text
    assert found.differs
    assert "not verified: what it left behind is spoilt" in lab.text.getvalue()


def test_a_spoilt_file_is_compared_with_a_sound_one_of_its_round(lab: Lab, base: Path) -> None:
    flip(base / "model.safetensors")
    (finding,) = lab.verify("base", how=Replay.NONE).checks[0].findings
    assert finding.twin == "best.safetensors"
    (tensor,) = finding.tensors
    assert (tensor.name, tensor.elements, tensor.differing) == ("0.weight", 18, 1)
    assert "1 of 18" in lab.text.getvalue()


def test_a_spoilt_file_without_a_twin_is_compared_with_the_round_trained_again(
    lab: Lab, base: Path
) -> None:
    flip(last(base))
    for name in ("model", "best"):
        (base / f"{name}.safetensors").unlink(missing_ok=True)
    found = lab.verify("base")
    assert found.replayed is not None
    assert found.replayed.departure is None
    (finding,) = found.replayed.findings
    assert finding.file == "checkpoints/round-000004.safetensors"
    assert [tensor.name for tensor in finding.tensors] == ["0.weight"]


def test_a_replay_does_not_begin_with_a_spoilt_checkpoint(
    lab: Lab, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(older(base))
    found = lab.verify("base")
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (0, ROUNDS), "it is a short run"
    monkeypatch.setattr("fedpilot.federated.verify.one.SHORT_S", 0.0)
    found = lab.verify("base")
    assert found.replayed is not None
    assert "--replay all" in found.replayed.not_done
    assert found.replayed.departure is None


def test_a_model_swapped_for_an_earlier_one_is_recognised(lab: Lab, base: Path) -> None:
    header, _ = read_tensors(base / "model.safetensors")
    _, tensors = read_tensors(older(base))
    earlier = {n.removeprefix("model/"): a for n, a in tensors.items() if n.startswith("model/")}
    write_tensors(base / "model.safetensors", earlier, header)
    (finding,) = lab.verify("base", how=Replay.NONE).checks[0].findings
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
    change: Callable[[Path], object], said: str, lab: Lab, base: Path
) -> None:
    change(base)
    found = lab.verify("base")
    assert found.refused
    assert found.replayed is None
    assert said in lab.text.getvalue()


def test_data_that_are_gone_are_no_failure_of_the_record(lab: Lab, tmp_path: Path) -> None:
    file, rng = tmp_path / "data.npz", np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)).astype("f4"), rng.integers(0, 3, 90)
    np.savez(file, x=x, y=y)
    lab.run("base", data__dataset_type="npz", data__options={"path": str(file)})
    assert not lab.verify("base").refused
    np.savez(file, x=x + 1, y=y)
    changed = lab.verify("base")
    assert changed.refused
    assert not changed.differs
    assert "the data are not what was run" in lab.text.getvalue()
    file.unlink()
    gone = lab.verify("base")
    assert gone.refused
    assert "data.npz" in lab.text.getvalue()


def nudging(monkeypatch: pytest.MonkeyPatch, at_round: int, client: int | None = None) -> None:
    """Let a client's model, or the global one, come out a little off in a round."""
    from fedpilot.federated.coordinator import Coordinator
    from fedpilot.federated.site.node import FederatedNode

    if client is None:
        step = Coordinator.step

        def wrong(self: Coordinator, model: GlobalModel) -> tuple[dict[str, Any], GlobalModel]:
            row, new = step(self, model)
            if new.round_number == at_round:
                from fedpilot.federated.core.state import digest

                new.state["0.bias"][0] += np.float32(1e-3)  # type: ignore[index]
                new = GlobalModel(new.round_number, new.state, new.memory, digest(new.state))
                row["model"] = new.digest
            return row, new

        monkeypatch.setattr(Coordinator, "step", wrong)
        return
    from fedpilot.federated.engine.sequential import SequentialTrainer

    train = SequentialTrainer.train

    def other(self: Any, chunk: Any, round_number: int, *rest: Any) -> Iterator[Any]:
        for index, trained in zip(
            chunk.clients.tolist(), train(self, chunk, round_number, *rest), strict=False
        ):
            if index == client and round_number == at_round:
                trained.tensors["0.bias"].add_(1e-3)
            yield trained

    assert FederatedNode is not None
    monkeypatch.setattr(SequentialTrainer, "train", other)


def test_a_run_that_cannot_be_reproduced_says_at_which_round_and_in_which_tensors(
    lab: Lab, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudging(monkeypatch, at_round=4)
    found = lab.verify("base")
    assert found.differs
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert departure.round_number == 4
    (tensor,) = departure.tensors or ()
    assert (tensor.name, tensor.differing) == ("0.bias", 1)
    assert tensor.largest == pytest.approx(1e-3, rel=1e-3)
    assert "another model" in lab.text.getvalue()


def test_it_stops_at_the_first_round_that_differs(
    lab: Lab, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudging(monkeypatch, at_round=2)
    found = lab.verify("base", how=Replay.ALL)
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert (departure.round_number, departure.tensors) == (2, None)
    assert "was not kept" in lab.text.getvalue()
    assert not lab.verify("base").differs, "from the checkpoint of round 3 it is the same"


def test_a_spoilt_digest_in_the_rows_is_confirmed_by_training(lab: Lab, base: Path) -> None:
    edit_rows(base, lambda rows: rows[3].update(model="0" * 64))
    found = lab.verify("base")
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert "model.safetensors" in departure.confirmed_by
    assert "the row is what is wrong" in lab.text.getvalue()


def test_a_metric_that_is_not_what_training_gives_is_named(lab: Lab, base: Path) -> None:
    edit_rows(base, lambda rows: rows[3].update(train_loss=9.5))
    found = lab.verify("base")
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert departure.metrics["train_loss"][0] == 9.5
    assert not departure.model_differs


def test_a_run_of_one_round_is_trained_again_from_the_start(lab: Lab) -> None:
    lab.run("one", federation__rounds=1)
    found = lab.verify("one")
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (0, 1)


def test_an_interrupted_run_is_verified_as_far_as_it_came(lab: Lab) -> None:
    def stop(event: Event) -> None:
        if event.name == "round_finished" and event.fields["round"] == 2:
            raise KeyboardInterrupt

    with lab.make(lab.config()) as federation:
        federation._observers.append(stop)
        with pytest.raises(KeyboardInterrupt):
            federation.run(run_id="broken")
    found = lab.verify("broken", how=Replay.ALL)
    assert not found.differs
    assert found.replayed is not None
    assert found.replayed.last == 2
    with lab.make(lab.config()) as federation:
        federation.resume("broken")
    lab.run("whole")
    found = lab.verify("broken", "whole")
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.SAME


def test_a_run_that_is_running_is_refused(lab: Lab, base: Path) -> None:
    handle = os.open(base / ".lock", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(RunRefused, match="being run by another process"):
            lab.verify("base")
    finally:
        os.close(handle)


def test_two_may_read_a_run_and_nobody_continues_it_meanwhile(lab: Lab, base: Path) -> None:
    with (
        reading(base, "base"),
        reading(base, "base"),
        lab.make(lab.config()) as federation,
        pytest.raises(RunRefused, match="another process"),
    ):
        federation.resume("base")


def test_a_run_that_is_not_there_is_refused(lab: Lab, base: Path) -> None:
    with pytest.raises(RunRefused, match="the latest there: base"):
        lab.verify("nobody")
    with pytest.raises(RunRefused, match="both are"):
        lab.verify("base", str(base))
    edit_manifest(base, format=9)
    with pytest.raises(RunRefused, match="format 9"):
        lab.verify("base")


@pytest.mark.parametrize("how", [Replay.LAST, Replay.ALL])
def test_what_clients_remember_is_there_when_they_train_again(
    how: Replay, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_updates_for_verify.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    update = "users_updates_for_verify:remembering"
    lab.run("base", (str(tmp_path),), training__client_update=update, federation__rounds=6)
    found = lab.verify("base", how=how)
    assert found.replayed is not None
    assert not found.differs


# -- two runs ---------------------------------------------------------------------------------


def test_two_runs_of_one_config_agree(lab: Lab, base: Path) -> None:
    lab.run("again", resources__workers=3)
    found = lab.verify("base", "again")
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.SAME
    assert not found.differs
    assert found.localised is None
    assert "base and again agree" in lab.text.getvalue()


def test_runs_of_different_length_agree_as_far_as_both_go(lab: Lab, base: Path) -> None:
    lab.run("longer", federation__rounds=ROUNDS + 2)
    found = lab.verify("base", "longer")
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.SAME_SO_FAR
    assert not found.differs
    assert "federation.rounds: 4 -> 6" in lab.text.getvalue()


def test_runs_that_are_judged_differently_differ(lab: Lab, base: Path) -> None:
    lab.run("judged", evaluation__where="sites")
    found = lab.verify("base", "judged")
    assert found.comparison is not None
    assert found.comparison.verdict is Verdict.OTHER_METRICS
    assert found.comparison.same_until == ROUNDS
    assert found.differs


def test_another_learning_rate_parts_at_the_first_round_in_every_client(
    lab: Lab, base: Path
) -> None:
    lab.run("slower", training__learning_rate=0.05)
    found = lab.verify("base", "slower", clients=2)
    assert found.comparison is not None
    assert (found.comparison.round_number, found.comparison.same_until) == (1, 0)
    assert found.comparison.keys == ("training.learning_rate: 0.1 -> 0.05",)
    localised = found.localised
    assert localised is not None
    assert localised.clients is not None
    assert localised.reproduced == {"base": True, "slower": True}
    assert len(localised.clients.differing) == localised.clients.compared == COHORT
    first, second, third, *_ = localised.clients.differing
    assert all(tensor.largest for tensor in (*first.tensors, *second.tensors))
    assert {tensor.name for tensor in third.tensors} == {"0.bias", "0.weight"}
    assert third.tensors[0].largest is None, "only so many are measured"
    assert "6 of 6 clients differ, base against slower; the first 2:" in lab.text.getvalue()
    assert {tensor.name for tensor in localised.tensors or ()} == {"0.bias", "0.weight"}


def test_another_seed_begins_with_another_model(lab: Lab, base: Path) -> None:
    lab.run("seed", run__random_seed=SEED + 1)
    found = lab.verify("base", "seed")
    assert found.comparison is not None
    assert (found.comparison.round_number, found.comparison.same_until) == (0, -1)
    assert found.localised is not None
    assert [tensor.name for tensor in found.localised.tensors or ()] == [
        "0.bias",
        "0.weight",
    ]
    assert lab.told == [], "no training is needed for that"


def test_another_model_is_told_by_its_shapes(lab: Lab) -> None:
    for name, width in (("narrow", 5), ("wide", 7)):
        lab.run(name, model__model_type="mlp", model__options={"hidden": [width]})
    found = lab.verify("narrow", "wide")
    assert found.localised is not None
    remarks = [tensor.remark for tensor in found.localised.tensors or ()]
    assert "float32 (5,) in one, float32 (7,) in the other" in remarks


def test_another_execution_parts_in_the_last_bits_of_clients(lab: Lab) -> None:
    keys = {"model__model_type": "mlp", "model__options": {"hidden": [32]}}
    lab.run("alone", **keys)
    lab.run("together", **keys, training__execution="folded")
    found = lab.verify("alone", "together")
    assert found.comparison is not None
    assert found.comparison.round_number == 1
    assert found.comparison.keys[0] == 'training.execution: "sequential" -> "folded"'
    assert found.localised is not None
    assert found.localised.reproduced == {"alone": True, "together": True}
    clients = found.localised.clients
    assert clients is not None
    assert clients.differing
    for client in clients.differing:
        assert client.tensors
        assert all(0 < (tensor.largest or 0) < 1e-6 for tensor in client.tensors)


def test_other_cohorts_say_who_is_only_in_one(lab: Lab, base: Path) -> None:
    lab.run("fewer", federation__clients_per_round=COHORT - 1)
    found = lab.verify("base", "fewer")
    assert found.localised is not None
    clients = found.localised.clients
    assert clients is not None
    assert clients.only_first
    assert not clients.differing
    assert "only in base: " in lab.text.getvalue()


def test_the_model_before_is_taken_from_a_checkpoint_or_trained_again(
    lab: Lab, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 4 parts, round 3 is kept; of the runs that part at round 2, round 1 is not."""
    for number, parts_at in (("late", 4), ("early", 2)):
        with monkeypatch.context() as patch:
            nudging(patch, parts_at)
            lab.run(number)
    found = lab.verify("base", "late")
    assert found.localised is not None
    assert found.localised.round_number == 4
    assert found.localised.reproduced == {"base": True, "late": False}
    assert [tensor.name for tensor in found.localised.tensors or ()] == ["0.bias"]
    assert any("which clients differ is not known" in note for note in found.localised.notes)
    found = lab.verify("early", "base")
    assert found.localised is not None
    assert found.localised.round_number == 2
    assert found.localised.reproduced == {"early": False, "base": True}
    assert found.localised.tensors is None


RECORDED: dict[str, Any] = {"outputs__client_digests": True}


@pytest.fixture
def nudged(lab: Lab, base: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A client of round 3, of which a run of the same identity has another last bit."""
    with lab.make(lab.config()) as federation:
        client = federation.cohort(3)[2]
    with monkeypatch.context() as patch:
        nudging(patch, 3, int(client.rpartition("_")[2]))
        lab.run("nudged", **RECORDED)
    return client


def test_recorded_clients_are_named_without_training(lab: Lab, nudged: str) -> None:
    lab.run("same", **RECORDED)
    found = lab.verify("same", "nudged", how=Replay.NONE)
    assert lab.told == []
    assert found.localised is not None
    assert found.localised.clients is not None
    (client,) = found.localised.clients.differing
    assert client.client == nudged
    assert [tensor.name for tensor in client.tensors] == ["0.bias"]
    assert "1 of 6 clients differ, same (as recorded) against nudged" in lab.text.getvalue()
    found = lab.verify("same", "nudged")
    assert found.localised is not None
    assert found.localised.reproduced == {"same": True, "nudged": False}


def test_clients_recorded_by_one_run_are_compared_with_training(lab: Lab, nudged: str) -> None:
    found = lab.verify("base", "nudged")
    assert found.localised is not None
    assert found.localised.clients is not None
    (client,) = found.localised.clients.differing
    assert client.client == nudged
    assert found.localised.sides[0] == "nudged (as recorded)"
    assert f"{nudged}" in lab.text.getvalue()


def test_a_replay_of_one_run_names_the_recorded_clients_that_differ(lab: Lab, nudged: str) -> None:
    found = lab.verify("nudged", how=Replay.ALL)
    assert found.replayed is not None
    departure = found.replayed.departure
    assert departure is not None
    assert departure.round_number == 3
    assert departure.clients is not None
    assert [client.client for client in departure.clients.differing] == [nudged]


def test_recorded_clients_of_different_configs_need_no_training_on_that_side(
    lab: Lab, base: Path
) -> None:
    lab.run("slower", training__learning_rate=0.05)
    lab.run("same", **RECORDED)
    found = lab.verify("same", "slower")
    assert found.localised is not None
    assert found.localised.reproduced == {"same": None, "slower": True}
    assert found.localised.clients is not None
    assert len(found.localised.clients.differing) == COHORT


@pytest.mark.parametrize("execution", ["sequential", "folded"])
def test_clients_trained_one_by_one_are_the_clients_that_a_round_recorded(
    execution: str, lab: Lab
) -> None:
    keys = {**RECORDED, "training__execution": execution, "model__model_type": "mlp"}
    lab.run("one", **keys)
    lab.run("other", **keys, federation__server_learning_rate=0.5)
    (lab.folder / "other" / "clients.jsonl").unlink()
    found = lab.verify("one", "other")
    assert found.localised is not None
    clients = found.localised.clients
    assert clients is not None
    assert clients.same
    assert clients.compared == COHORT
    assert "none of 6 clients on both sides differs" in lab.text.getvalue()


def test_a_record_that_is_not_whole_is_said(lab: Lab, nudged: str) -> None:
    path = lab.folder / "nudged" / "clients.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"round": 3' in line]
    path.write_text("".join(line + "\n" for line in lines[:2]))
    found = lab.verify("base", "nudged")
    assert found.localised is not None
    assert "nudged recorded 2 of the 6 clients of this round" in found.localised.notes


def test_a_spoilt_record_of_clients_is_said_and_not_used(lab: Lab, nudged: str) -> None:
    (lab.folder / "nudged" / "clients.jsonl").write_text("{}\n")
    found = lab.verify("base", "nudged")
    assert found.localised is not None
    assert found.localised.clients is None
    assert any("line 1, is no record of a client" in note for note in found.localised.notes)


def test_a_run_whose_code_or_data_are_gone_is_compared_as_far_as_records_go(
    lab: Lab, base: Path
) -> None:
    folder = lab.run("slower", training__learning_rate=0.05)
    edit_manifest(folder, data_digest="0" * 64)
    found = lab.verify("base", "slower")
    assert found.differs
    assert found.localised is not None
    assert found.localised.clients is None
    assert any("slower cannot be trained again here" in note for note in found.localised.notes)


def test_a_failure_of_training_again_is_kept_with_what_is_known(
    lab: Lab, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpilot.federated.coordinator import Coordinator

    def fail(self: Coordinator, model: GlobalModel) -> None:
        raise FederatedError("the machine is on fire")

    lab.run("slower", training__learning_rate=0.05)
    monkeypatch.setattr(Coordinator, "step", fail)
    found = lab.verify("base")
    assert isinstance(found.failure, FederatedError)
    assert not found.differs
    assert "the machine is on fire" in lab.text.getvalue()
    found = lab.verify("base", "slower")
    assert found.differs
    assert isinstance(found.failure, FederatedError)


# -- decisions --------------------------------------------------------------------------------


def test_tensors_are_compared_bit_by_bit() -> None:
    first = {"a": np.zeros(3, "f4"), "b": np.float64(1.0), "c": np.arange(3), "d": np.ones(2)}
    second = {"a": -np.zeros(3, "f4"), "b": np.float64(1.5), "c": np.arange(3), "e": np.ones(2)}
    found = state_differences(first, second)  # type: ignore[arg-type]
    shown = [(d.name, d.elements, d.differing, d.largest, d.remark) for d in found]
    assert shown == [
        ("a", 3, 3, 0.0, ""),
        ("b", 1, 1, 0.5, ""),
        ("d", None, None, None, "only in the first"),
        ("e", None, None, None, "only in the second"),
    ]


def test_numbers_that_are_not_finite_are_counted_apart() -> None:
    first = {"a": np.array([1.0, np.nan, 2.0])}
    second = {"a": np.array([1.25, 0.0, 2.0])}
    (found,) = state_differences(first, second)
    assert (found.differing, found.largest, found.remark) == (2, 0.25, "1 not finite")
    assert state_differences(first, first) == ()


def test_clients_are_listed_in_the_order_of_their_numbers() -> None:
    facts = {f"client_{i}": ClientFacts(samples=i, fingerprints={"w": "0"}) for i in (10, 9, 1)}
    other = {name: ClientFacts(samples=3, fingerprints={"w": "0"}) for name in facts}
    found = compare_clients(facts, other)
    assert [each.client for each in found.differing] == ["client_1", "client_9", "client_10"]
    assert not found.same


def test_a_record_of_nothing_is_right() -> None:
    assert check(Record(rows=(), manifest={}, files=())) == ()


def test_what_only_one_side_says_of_its_workers_is_no_difference() -> None:
    now = {"torch": "2.7", "threads": 1, "device": "cpu"}
    assert environment_differences([], [now]) == {}
    assert environment_differences([now, {**now, "torch": "2.6"}], [now]) == {
        "torch": ("2.6, 2.7", "2.7")
    }


def test_the_reader_of_clients_takes_a_later_line_for_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "clients.jsonl"
    lines = [
        {"round": 1, "client": "a", "tensors": {"w": "0"}, "samples": 2},
        {"round": 2, "client": "a", "tensors": {"w": "1"}, "samples": 2},
        {"round": 2, "client": "a", "tensors": {"w": "2"}, "samples": 2},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round": 2, "cl')
    assert read_clients(path, 2) == {"a": ClientFacts(samples=2, fingerprints={"w": "2"})}


# -- the command ------------------------------------------------------------------------------


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["runs", "verify", *arguments], prog_name="fedpilot")


def test_the_command_says_what_is_what_by_its_exit_code(lab: Lab, base: Path) -> None:
    folder = ["--folder", str(lab.folder), "--replay", "none"]
    assert invoke("base", *folder).exit_code == 0
    assert invoke(str(base), "--replay", "none").exit_code == 0
    assert invoke("nobody", *folder).exit_code == 2
    assert invoke("base", "other", "third", *folder).exit_code == 2
    edit_manifest(base, code_digest="0" * 64)
    assert invoke("base", *folder).exit_code == 3
    flip(base / "model.safetensors")
    assert invoke("base", *folder).exit_code == 1


def test_only_what_decides_nothing_may_be_set(lab: Lab, base: Path) -> None:
    folder = ["--folder", str(lab.folder), "--replay", "none"]
    assert invoke("base", *folder, "--set", "resources.workers=1").exit_code == 0
    refused = invoke("base", *folder, "--set", "training.learning_rate=0.5")
    assert refused.exit_code == 2
    assert "training.learning_rate: 0.1 -> 0.5" in refused.stderr
    assert invoke("base", *folder, "--set", "training.learning_rat=0.5").exit_code == 2


def test_the_command_prints_one_document(lab: Lab, base: Path) -> None:
    result = invoke("base", "--folder", str(lab.folder), "--replay", "none", "--json")
    printed = json.loads(result.stdout)
    assert printed.keys() == {
        *("runs", "summary", "exit_code", "checks", "replay", "comparison", "round", "failure")
    }
    assert printed["checks"][0]["rounds"] == ROUNDS
    assert printed["exit_code"] == result.exit_code == 0


def test_progress_is_told_now_and_then() -> None:
    now, out = [0.0], io.StringIO()
    with Telling(out, clock=lambda: now[0]) as telling:
        for second in range(25):
            now[0] = float(second)
            telling("training rounds again", second, 30)
    assert out.getvalue().splitlines() == [
        "training rounds again: 10 of 30",
        "training rounds again: 20 of 30",
    ]


def test_a_config_can_be_read_back(base: Path) -> None:
    with reading(base, "base") as read:
        assert isinstance(read.config, RunConfig)
