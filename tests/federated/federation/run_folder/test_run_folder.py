"""A run folder is whole whenever somebody looks at it, whoever was killed while writing it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedpilot.federated.core.state import digest
from fedpilot.federated.engine.tensor_files import read_tensors, write_tensors
from fedpilot.federated.errors import RunRefused
from fedpilot.federated.federation.run_folder.folder import (
    Checkpoint,
    RunFolder,
    is_locked,
    list_runs,
)

MODEL = {"w": np.array([[1.0, 2.0]], dtype=np.float32), "n": np.array(3), "s": np.array(0.5)}
MEMORY = {"m": np.array([0.25, 0.5])}


def made(root: Path, run_id: str = "r") -> RunFolder:
    return RunFolder.create(root, run_id, "run: {}\n")


def checkpoint(number: int) -> Checkpoint:
    return Checkpoint(number, "identity", dict(MODEL), dict(MEMORY))


def temporary(root: Path) -> list[str]:
    return [str(p) for p in root.rglob("*") if p.name.endswith(".tmp")]


# -- whose it is ------------------------------------------------------------------------------


def test_a_new_folder_has_its_config_and_is_locked_until_closed(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        assert (folder.path / "config.yaml").read_text() == "run: {}\n"
        assert is_locked(folder.path)
    assert not is_locked(tmp_path / "r")
    folder.close()
    assert list_runs(tmp_path) == ["r"]
    assert temporary(tmp_path) == []


def test_a_run_id_is_used_once(tmp_path: Path) -> None:
    made(tmp_path).close()
    with pytest.raises(RunRefused, match="exists already"):
        made(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunRefused, match="cannot be made"):
        made(tmp_path / "file" / "runs")


def test_a_run_that_does_not_exist_is_refused_with_the_latest_that_do(tmp_path: Path) -> None:
    made(tmp_path, "first").close()
    with pytest.raises(RunRefused, match=r"'nope'.*first"):
        RunFolder.open(tmp_path, "nope")
    with pytest.raises(RunRefused, match="none"):
        RunFolder.open(tmp_path / "nowhere", "nope")


def test_two_cannot_have_the_same_run_at_a_time(tmp_path: Path) -> None:
    with made(tmp_path), pytest.raises(RunRefused, match="another process"):
        RunFolder.open(tmp_path, "r")
    with RunFolder.open(tmp_path, "r") as folder:
        assert is_locked(folder.path)


HOLD = """
import sys
from pathlib import Path
from fedpilot.federated.federation.run_folder.folder import RunFolder
with RunFolder.open(Path(sys.argv[1]), "r"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_another_process_cannot_have_it_and_its_death_gives_it_back(tmp_path: Path) -> None:
    made(tmp_path).close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert is_locked(tmp_path / "r")
        with pytest.raises(RunRefused, match="another process"):
            RunFolder.open(tmp_path, "r")
        holder.kill()
        holder.wait()
    RunFolder.open(tmp_path, "r").close()


def test_looking_at_a_lock_does_not_take_it(tmp_path: Path) -> None:
    made(tmp_path).close()
    assert not is_locked(tmp_path / "r")
    assert not is_locked(tmp_path / "nowhere")
    RunFolder.open(tmp_path, "r").close()


def test_a_folder_of_another_format_is_refused_by_name_and_not_kept_locked(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        folder.update_manifest(format=99)
    with pytest.raises(RunRefused, match="format 99"):
        RunFolder.open(tmp_path, "r")
    assert not is_locked(tmp_path / "r")


# -- rows -------------------------------------------------------------------------------------


def test_rows_come_back_in_their_order(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        assert folder.rows() == []
        for number in (1, 2):
            folder.append_row({"round": number, "loss": None, "accuracy": 0.1 + 0.2})
        assert folder.rows() == [
            {"round": 1, "loss": None, "accuracy": 0.1 + 0.2},
            {"round": 2, "loss": None, "accuracy": 0.1 + 0.2},
        ]


@pytest.mark.parametrize("half", ['{"round": 3, "lo', '{"round": 3}', "{"])
def test_a_half_written_last_line_does_not_count(half: str, tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        folder.append_row({"round": 1})
        folder.append_row({"round": 2})
        with (folder.path / "metrics.jsonl").open("a") as file:
            file.write(half)
        assert [row["round"] for row in folder.rows()] == [1, 2]
        assert [row["round"] for row in folder.rewind(2)] == [1, 2]
        folder.append_row({"round": 3})
        assert [row["round"] for row in folder.rows()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("last", "left"),
    [
        pytest.param(0, [], id="to the beginning"),
        pytest.param(2, [1, 2], id="by one"),
        pytest.param(3, [1, 2, 3], id="not at all"),
        pytest.param(9, [1, 2, 3], id="forward is nowhere"),
    ],
)
def test_rewinding_forgets_the_rounds_that_will_run_again(
    last: int, left: list[int], tmp_path: Path
) -> None:
    with made(tmp_path) as folder:
        for number in (1, 2, 3):
            folder.append_row({"round": number})
        assert [row["round"] for row in folder.rewind(last)] == left
        assert [row["round"] for row in folder.rows()] == left
    assert temporary(tmp_path) == []


def test_the_csv_has_a_row_per_round_and_gaps_where_nothing_was_measured(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        folder.append_row({"round": 1, "loss": None, "clients": 3, "something": "else"})
        folder.append_row({"round": 2, "loss": 0.5, "accuracy": 0.25, "clients": 3})
        folder.write_csv(folder.rows())
        with (folder.path / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    assert [(r["round"], r["accuracy"], r["loss"]) for r in rows] == [
        ("1", "", ""),
        ("2", "0.25", "0.5"),
    ]
    assert temporary(tmp_path) == []


def test_traffic_is_appended_under_one_header(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        folder.append_traffic([(1, "a", "to_site", "training", 10)])
        folder.append_traffic([(2, "a", "from_site", "training", 20)])
        lines = (folder.path / "traffic.csv").read_text().splitlines()
    assert lines == [
        "round,site,direction,purpose,bytes",
        "1,a,to_site,training,10",
        "2,a,from_site,training,20",
    ]


@pytest.mark.parametrize(
    ("written", "left"),
    [
        pytest.param("", [], id="the file was only just made"),
        pytest.param("round,si", [], id="a header that was cut short"),
        pytest.param("round,site,direction,purpose,bytes\n", [], id="no rows yet"),
        pytest.param(
            "round,site,direction,purpose,bytes\n1,a,to_site,training,10\n2,a,to_s", ["1"],
            id="a row that was cut short",
        ),
        pytest.param(
            "round,site,direction,purpose,bytes\n1,a,to_site,training,10\n3,a,to_site,training,1\n",
            ["1", "3"], id="what a round cost that will run again",
        ),
        pytest.param(
            "round,site,direction,purpose,bytes\n1,a,to_site,training,10\n2,a,to_site,training,1",
            ["1"], id="a number that was cut short",
        ),
    ],
)  # fmt: skip
def test_traffic_of_a_run_that_was_killed_stays_as_far_as_it_is_whole(
    written: str, left: list[str], tmp_path: Path
) -> None:
    with made(tmp_path) as folder:
        (folder.path / "traffic.csv").write_text(written)
        folder.rewind(2)
        folder.append_traffic([(3, "a", "to_site", "training", 7)])
        with (folder.path / "traffic.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == [*left, "3"]
    assert rows[-1]["bytes"] == "7"


def test_the_manifest_collects_facts(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        assert folder.manifest() == {}
        folder.update_manifest(status="running", seed=1)
        folder.update_manifest(status="finished")
        manifest = folder.manifest()
    assert manifest == {"format": 1, "run_id": "r", "status": "finished", "seed": 1}
    assert json.loads((tmp_path / "r" / "manifest.json").read_text()) == manifest
    assert temporary(tmp_path) == []


# -- models -----------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        assert folder.load_checkpoint() is None
        folder.save_checkpoint(checkpoint(4))
        back = folder.load_checkpoint()
    assert back is not None
    assert (back.round_number, back.identity) == (4, "identity")
    assert digest(back.model) == digest(MODEL)
    assert digest(back.memory) == digest(MEMORY)
    assert {name: array.shape for name, array in back.model.items()} == {
        "w": (1, 2), "n": (), "s": ()
    }  # fmt: skip


def test_names_with_slashes_and_dots_survive(tmp_path: Path) -> None:
    model = {"a/b.c": np.zeros(1), "model/x": np.ones(1), "server/y": np.ones(2)}
    with made(tmp_path) as folder:
        folder.save_checkpoint(Checkpoint(1, "i", model, {"model/z": np.zeros(3)}))
        back = folder.load_checkpoint()
    assert back is not None
    assert digest(back.model) == digest(model)
    assert list(back.memory) == ["model/z"]


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        for number in (1, 2, 9, 10, 100):
            folder.save_checkpoint(checkpoint(number))
        names = sorted(path.name for path in (folder.path / "checkpoints").iterdir())
        assert names == ["round-000010.safetensors", "round-000100.safetensors"]
        latest = folder.load_checkpoint()
    assert latest is not None
    assert latest.round_number == 100


def test_saving_an_earlier_round_again_never_hides_the_latest(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        for number in (1, 2, 3, 2):
            folder.save_checkpoint(checkpoint(number))
        latest = folder.load_checkpoint()
    assert latest is not None
    assert latest.round_number == 3


def foreign(path: Path) -> None:
    save_file({"model/w": np.zeros(1)}, path)


def cut_short(path: Path) -> None:
    write_tensors(path, {"model/w": np.zeros(100)}, {"round": 9, "identity": "i", "format": 1})
    path.write_bytes(path.read_bytes()[:-8])


def of_another_format(path: Path) -> None:
    write_tensors(path, {"model/w": np.zeros(1)}, {"round": 9, "identity": "i", "format": 99})


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"\x00" * 999), id="zeros"),
        pytest.param(lambda path: path.write_bytes(b"{}"), id="too short"),
        pytest.param(cut_short, id="cut short"),
        pytest.param(foreign, id="of somebody else"),
        pytest.param(of_another_format, id="of another format"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused_by_name(spoil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with made(tmp_path) as folder:
        folder.save_checkpoint(checkpoint(3))
        spoil(folder.path / "checkpoints" / "round-000009.safetensors")
        with pytest.raises(RunRefused, match="round-000009"):
            folder.load_checkpoint()


def test_a_model_says_which_round_it_is_from(tmp_path: Path) -> None:
    with made(tmp_path) as folder:
        folder.save_model("best", MODEL, 7)
        header, tensors = read_tensors(folder.path / "best.safetensors")
    assert header == {"format": 1, "round": 7}
    assert digest(tensors) == digest(MODEL)
    assert temporary(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, MODEL)
    before = path.read_bytes()

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedpilot.federated.engine.tensor_files.save_file", full)
    with pytest.raises(OSError, match="No space"):
        write_tensors(path, {"w": np.zeros(1)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_tensors_of_every_type_and_shape_come_back(tmp_path: Path) -> None:
    tensors = {
        "f2": np.arange(3, dtype="f2"),
        "f8": np.arange(6.0).reshape(2, 3).T,
        "i8": np.array(5),
        "u1": np.array([1], dtype="u1"),
        "b": np.array([True, False]),
        "none": np.zeros((0, 4), dtype="f4"),
        "scalar": np.float32(1.5),
    }
    write_tensors(tmp_path / "t.safetensors", tensors, {"a": [1, None]})
    header, back = read_tensors(tmp_path / "t.safetensors")
    assert header == {"a": [1, None]}
    assert digest(back) == digest(tensors)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RunRefused, match="gone"):
        read_tensors(tmp_path / "gone.safetensors")


def test_runs_are_listed_oldest_first_and_other_folders_not(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "nowhere") == []
    for day, name in enumerate(("zebra", "ant", "mouse"), start=1):
        with made(tmp_path, name) as folder:
            folder.update_manifest(started=f"2026-01-0{day}T00:00:00+00:00")
    (tmp_path / "zebra" / "touched-later").touch()
    (tmp_path / "other").mkdir()
    assert list_runs(tmp_path) == ["zebra", "ant", "mouse"]
