"""A run keeps within its traffic budget, and goes on when that is raised."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from federations import ROUNDS, Lab, Log, federation_rows, raising, timeless
from fedpilot.cli import main
from fedpilot.federated import ConfigError, RunResult, parse_config
from fedpilot.federated.config import to_yaml
from fedpilot.federated.core.rounds.round_costs import Costs, Judges
from fedpilot.federated.errors import TrafficSpent
from fedpilot.federated.federation.coordinator.traffic_budget import TrafficBudget
from fedpilot.federated.federation.run_folder.folder import RunFolder
from fedpilot.federated.federation.verify import Replay
from fedpilot.mediator.core.traffic import Budget
from records import Archive

MODEL, SUM = 84, 168
"""Bytes of the model of `Lab`, 21 numbers, and of a sum of it."""
FIRST, LATER = 2 * MODEL + SUM, MODEL + SUM
"""A round's model, the next one for its judging, and a sum; then the model is there already."""


def traffic(lab: Lab, run_id: str) -> list[dict[str, str]]:
    with (lab.runs / run_id / "traffic.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def spent(lab: Lab, run_id: str) -> int:
    return sum(int(row["bytes"]) for row in traffic(lab, run_id))


@pytest.mark.parametrize("limit", ["run_bytes", "site_bytes"])
def test_a_run_ends_before_the_round_that_its_budget_does_not_allow(
    limit: str, lab: Lab, reference: RunResult
) -> None:
    most = FIRST + 2 * LATER - 1
    with lab.federation(**{f"traffic__{limit}": most}) as federation:
        assert federation.loaded.rounds_within_budget(federation.gang.sites) == 2
        with pytest.raises(TrafficSpent, match=rf"round 3 is not begun: .*traffic\.{limit}"):
            federation.run(run_id="r")
    assert len(federation_rows(lab, "r")) == 2
    assert spent(lab, "r") == FIRST + LATER
    with RunFolder.open(lab.runs, "r") as folder:
        manifest = folder.manifest()
    assert manifest["status"] == "failed"
    assert f"traffic.{limit}" in manifest["failure"]
    again = lab.federation(**{f"traffic__{limit}": most})
    with again, pytest.raises(TrafficSpent, match=f"{FIRST + LATER} are spent"):
        again.resume("r")
    assert spent(lab, "r") == FIRST + LATER, "nothing was sent"
    raised = FIRST + LATER + FIRST + LATER
    with lab.federation(**{f"traffic__{limit}": raised}) as federation:
        result = federation.resume("r")
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)
    assert spent(lab, "r") == raised


def test_a_budget_that_is_enough_to_the_byte_changes_nothing(
    lab: Lab, reference: RunResult
) -> None:
    whole = FIRST + (ROUNDS - 1) * LATER
    with lab.federation(traffic__run_bytes=whole, traffic__round_bytes="336B") as federation:
        assert federation.loaded.rounds_within_budget(federation.gang.sites) == ROUNDS
        result = federation.run()
    assert result.digest == reference.digest
    assert not (result.folder / "journal" / "traffic.json").exists()


def test_a_run_that_has_spent_its_budget_is_trained_again_to_verify_it(archive: Archive) -> None:
    archive.record("r", federation__rounds=1, traffic__run_bytes=FIRST)
    found = archive.verify("r", how=Replay.ALL)
    assert found.failure is None
    assert not found.differs


def test_a_first_round_beyond_the_budget_of_a_round_is_not_begun(lab: Lab) -> None:
    log = Log()
    with (
        lab.federation(log, traffic__round_bytes=FIRST - 1) as federation,
        pytest.raises(TrafficSpent, match=r"round 1 is not begun: .*traffic\.round_bytes"),
    ):
        federation.run(run_id="r")
    assert log.of("round_started") == []
    assert log.of("run_finished")[0]["status"] == "failed"


def test_what_a_round_may_have_cost_that_was_cut_short_is_spent(
    lab: Lab, reference: RunResult
) -> None:
    ample = {"traffic__run_bytes": "1MB", "traffic__round_bytes": FIRST}
    stop = raising(KeyboardInterrupt(), "round_started", round=2)
    with lab.federation(stop, **ample) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    assert spent(lab, "r") == FIRST
    short = lab.federation(traffic__run_bytes=FIRST + LATER + FIRST - 1)
    with short, pytest.raises(TrafficSpent, match=f"{FIRST + LATER} are spent"):
        short.resume("r")
    interrupted = [row for row in traffic(lab, "r") if row["purpose"] == "interrupted"]
    assert {(row["round"], row["direction"]): int(row["bytes"]) for row in interrupted} == {
        ("2", "to_site"): MODEL, ("2", "from_site"): SUM
    }  # fmt: skip
    with lab.federation(**ample) as federation:
        assert federation.resume("r").digest == reference.digest
    assert [row for row in traffic(lab, "r") if row["purpose"] == "interrupted"] == interrupted


def test_a_budget_below_one_round_of_one_site_is_refused_at_once(lab: Lab) -> None:
    with pytest.raises(ConfigError) as refused:
        lab.federation(traffic__run_bytes="2GB", traffic__site_bytes=LATER - 1)
    (problem,) = refused.value.problems
    assert problem.key == "traffic.site_bytes"
    assert problem.allowed == f"at least {LATER} bytes"
    assert "251 B" in problem.found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            "federation.rounds=9",
            "federation.rounds: 4 -> 9; a new run can go on",
            id="what decides",
        ),
        pytest.param("traffic.run_bytes=251", "traffic.run_bytes", id="a limit that is too low"),
    ],
)
def test_a_run_is_resumed_with_changes_of_its_config(
    change: str, said: str, lab: Lab, reference: RunResult
) -> None:
    where = ["--folder", str(reference.folder.parent)]
    arguments = ["run", "--resume", reference.run_id, *where, "--set", change]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_check_says_how_many_rounds_a_budget_is_enough_for(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(parse_config(lab.config(traffic__run_bytes=FIRST + LATER))))
    told = CliRunner().invoke(main, ["check", str(path)]).stdout
    assert "a round needs 252 B of traffic for each site" in told
    assert "is enough for at most 2 of 4 rounds" in told
    found = json.loads(CliRunner().invoke(main, ["check", str(path), "--json"]).stdout)
    assert (found["bytes_of_round"], found["rounds_within_budget"]) == (LATER, 2)
    plain = CliRunner().invoke(main, ["check", str(path), "--set", "traffic.run_bytes=null"])
    assert "traffic for each" not in plain.stdout


@pytest.mark.parametrize(
    "size",
    [
        pytest.param("100 apples", id="no size"),
        pytest.param(0, id="nothing"),
        pytest.param(1.5, id="a part of a byte"),
        pytest.param("99999999TiB", id="more than there is"),
    ],
)
def test_a_size_that_is_none_is_refused(size: object, lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"(?s)traffic.run_bytes.*bytes, such as 16GiB"):
        lab.federation(traffic__run_bytes=size)


# -- the budget by itself -----------------------------------------------------------------------

COSTS = Costs(model=10, answer=20)


def folder(path: Path) -> RunFolder:
    return RunFolder.create(path, "r", "")


def test_what_a_round_costs_beyond_its_plan_is_asked_and_written_down_too(tmp_path: Path) -> None:
    with folder(tmp_path) as run:
        budget = TrafficBudget(Budget(run_bytes=120), COSTS, run)
        budget.plan(1, {"a": 1, "b": 1}, having=(), judges=Judges.ONE, late=())
        for site in "ab":
            budget.ask(1, site, with_model=True, clients=1)
        budget.ask(1, "a", with_model=True, clients=None)
        assert run.round_under_way() == (
            1,
            {"a": {"to_site": 20, "from_site": 20}, "b": {"to_site": 10, "from_site": 20}},
        )
        budget.ask(1, "a", with_model=False, clients=1)  # it is repeated on a coarser grid
        assert run.round_under_way() == (
            1,
            {"a": {"to_site": 20, "from_site": 40}, "b": {"to_site": 10, "from_site": 20}},
        )
        budget.ask(1, "b", with_model=False, clients=1)
        with pytest.raises(TrafficSpent, match=r"nothing more of round 1 .* 110 are spent"):
            budget.ask(1, "b", with_model=False, clients=1)
        budget.book(())
        budget.written()
        assert run.round_under_way() is None


def test_what_is_late_is_in_the_plan(tmp_path: Path) -> None:
    with folder(tmp_path) as run:
        budget = TrafficBudget(Budget(round_bytes=59), COSTS, run)
        budget.plan(1, {"a": 1}, having=(), judges=Judges.NOBODY, late=("b",))
        with pytest.raises(TrafficSpent, match="60 more were wanted"):
            budget.plan(2, {"a": 1}, having=(), judges=Judges.ONE, late=("b",))
