"""What a user's own code raises, prints and leaves out is told where the user looks for it."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import site_data
from federations import Lab, Log
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import ClientFailed, ConfigError, Federation
from fedpilot.federated.cli.runs.group import runs
from fedpilot.federated.core.sums.partial import Tally
from fedpilot.federated.core.user_code.user_errors import account_of, is_users
from fedpilot.federated.engine.training.printing import MOST_PRINTED, collected
from fedpilot.federated.federation.report.wording import round_line


def own(user_code: str, name: str, **keys: Any) -> dict[str, Any]:
    return {"training__client_update": f"{user_code}:{name}", **keys}


# -- losses that nobody tells -----------------------------------------------------------------


def test_a_loss_that_nobody_tells_is_missing_and_not_zero(lab: Lab, user_code: str) -> None:
    log = Log()
    silent = lab.run(log, **own(user_code, "silent"))
    assert silent.digest == lab.run(**own(user_code, "plain_sgd")).digest
    assert [row["train_loss"] for row in silent.rows] == [None] * len(silent.rows)
    assert "train loss –" in round_line(log.of("round_finished")[0])


def test_the_mean_loss_is_that_of_the_clients_who_tell(lab: Lab, user_code: str) -> None:
    half = lab.run(**own(user_code, "half_silent"))
    whole = lab.run(**own(user_code, "plain_sgd"))
    assert half.digest == whole.digest
    for mine, all_of_them in zip(half.rows, whole.rows, strict=True):
        assert mine["train_loss"] is not None
        assert mine["train_loss"] != all_of_them["train_loss"]


def test_a_tally_keeps_what_is_not_told_apart() -> None:
    told = Tally().add(4, 1, 2.0)
    untold = Tally().add(6, 0, 0.0, told=False)
    both = Tally().merge(told).merge(untold)
    assert (both.samples, both.untold, both.mean_loss) == (10, 6, 0.5)
    assert Tally.from_json(both.to_json()) == both
    assert told.to_json() == [4, 1, 2 << 32, 0], "as it always was"


def test_a_union_of_updates_keeps_it_apart_too(lab: Lab, user_code: str) -> None:
    keys = own(user_code, "silent", federation__aggregation_strategy="median")
    assert [row["train_loss"] for row in lab.run(**keys).rows] == [None] * 4


# -- errors -----------------------------------------------------------------------------------


def test_an_error_names_file_and_line_and_the_run_keeps_its_traceback(
    lab: Lab, user_code: str
) -> None:
    federation = lab.federation(**own(user_code, "raising"))
    with pytest.raises(ClientFailed) as caught:
        federation.run(run_id="broken")
    source = Path(sys.modules[user_code].__file__ or "")
    lines = source.read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "I do not like this client" in text)
    assert f"({source}, line {line})" in str(caught.value)
    trace = (lab.runs / "broken" / "failure.txt").read_text()
    assert f'File "{source}", line {line}, in raising' in trace
    assert "I do not like this client" in trace
    assert "fedpilot" not in trace.replace(str(source), "")
    show = ["show", "broken", "--folder", str(lab.runs)]
    assert "  RuntimeError: I do not like this client" in CliRunner().invoke(runs, show).output
    document = json.loads(CliRunner().invoke(runs, [*show, "--json"]).output)
    assert document["traceback"] == trace


def test_a_run_that_goes_on_forgets_the_traceback(
    lab: Lab, user_code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = own(user_code, "plain_sgd")
    __import__(user_code)
    code = sys.modules[user_code]
    monkeypatch.setattr(code, "plain_sgd", code.raising)
    with lab.federation(**keys) as federation, pytest.raises(ClientFailed):
        federation.run(run_id="mended")
    monkeypatch.undo()
    with lab.federation(**keys) as federation:
        federation.resume("mended")
    assert not (lab.runs / "mended" / "failure.txt").exists()


def test_an_error_of_a_model_names_its_line_in_training_and_in_evaluation(
    lab: Lab, user_code: str
) -> None:
    keys = {
        "model__model_type": f"{user_code}:Fragile",
        "model__options": {"limit": 3.0},
        "federation__clients_per_round": None,
    }
    with pytest.raises(ClientFailed, match=rf"{user_code}\.py, line \d+\)"):
        lab.run(**keys)


def test_what_a_client_printed_before_it_failed_stands_before_the_traceback() -> None:
    def chatty() -> None:
        print("about to fail")
        raise ValueError("now")

    with collected() as printed, pytest.raises(ValueError, match="now") as caught:
        chatty()
    account = account_of(caught.value)
    assert account.reason.startswith("ValueError: now (")
    assert printed.text == "about to fail"


@pytest.mark.parametrize(
    ("filename", "users"),
    [
        (__file__, True),
        ("/tmp/ipykernel_7/123.py", True),
        ("<code of the run>/mine.py", True),
        (json.__file__, False),
        (pytest.__file__, False),
        (sys.modules["fedpilot.federated.core.user_code.user_errors"].__file__, False),
        (sys.modules["fedpilot.mediator"].__file__, False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_whose_a_line_is(filename: str, users: bool) -> None:
    assert is_users(filename) is users


# -- what is printed --------------------------------------------------------------------------


def test_what_clients_print_is_in_the_runs_log_by_client(lab: Lab, user_code: str) -> None:
    log = Log()
    result = lab.run(log, **own(user_code, "talking", federation__rounds=2))
    lines = (result.folder / "output.log").read_text().splitlines()
    told = {line.split(":")[0] for line in lines}
    assert len(told) == sum(row["clients"] for row in result.rows)
    for client in {line.split()[2].rstrip(":") for line in lines}:
        number = next(n for n in ("1", "2") if f"round {n} {client}" in told)
        assert f"round {number} {client}: and am {client}" in lines
    (event, *_) = log.of("clients_printed")
    assert event["site"] == "local"
    assert event["texts"][0].endswith(f"and am {event['clients'][0]}")


def test_what_code_prints_that_has_seen_a_sites_data_stays_there(
    tmp_path: Path, user_code: str
) -> None:
    files = [
        site_data.site_file(
            tmp_path / f"{name}.yaml",
            "scans",
            site_data.files(tmp_path / name, {f"{name}-1": 9, f"{name}-2": 8}),
        )
        for name in ("east", "west")
    ]
    keys = {f"training__{k}": v for k, v in (("client_update", f"{user_code}:talking"),)}
    log = Log()
    with Federation(
        site_data.config(files, tmp_path / "runs", **keys),
        observers=[log],
        cluster=FakeCluster([fake_machine("a", CPU=8)]),
        sites=["east", "west"],
    ) as federation:
        result = federation.run()
    assert not log.of("clients_printed")
    assert not (result.folder / "output.log").exists()


def test_threads_that_print_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    both, texts = threading.Barrier(2), {}

    def printing(name: str) -> None:
        with collected() as printed:
            for _ in range(20):
                both.wait(60)
                print(name)
        texts[name] = printed.text

    threads = [threading.Thread(target=printing, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert texts == {name: "\n".join([name] * 20) for name in "ab"}
    assert capsys.readouterr().out.count("a") == 20, "it is printed all the same"


def test_a_client_that_prints_without_end_is_cut() -> None:
    with collected() as printed:
        print("x" * 5_000, end="")
    assert printed.text == f"{'x' * MOST_PRINTED}\n({5_000 - MOST_PRINTED} more characters)"


# -- before anything is started ---------------------------------------------------------------

BROKEN = """
import torch

class Built(torch.nn.Module):
    def __init__(self):
        super().__init__()
        raise KeyError("width")

class Called(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.only = torch.nn.Linear(64, 10)

    def forward(self, x):
        return {}["k"]

def loss(outputs, labels):
    return {}["x"]

def loaded(**_):
    raise KeyError("data")
"""


@pytest.mark.parametrize(
    ("key", "name", "told", "line"),
    [
        pytest.param("model.model_type", "Built", "KeyError: 'width'", 7, id="a model's making"),
        pytest.param("model.model_type", "Called", "KeyError: 'k'", 15, id="a model's call"),
        pytest.param("training.loss_function", "loss", "KeyError: 'x'", 18, id="a loss"),
        pytest.param("data.dataset_type", "loaded", "KeyError: 'data'", 21, id="a loader"),
    ],
)
def test_what_ones_own_code_raises_before_the_start_is_bad_input_with_its_line(
    key: str,
    name: str,
    told: str,
    line: int,
    lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = f"broken_{name.lower()}_before"
    path = tmp_path / f"{module}.py"
    path.write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        lab.federation(**{key.replace(".", "__"): f"{module}:{name}"})
    (problem,) = caught.value.problems
    assert problem.key == key
    assert problem.found == f"{told} ({path}, line {line})"
