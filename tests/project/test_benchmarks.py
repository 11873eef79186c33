"""The benchmarks' workloads are the same work for all, and their figures are summed up right."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpilot.federated.config import parse_config
from fedpilot.federated.prepare.inputs.local_data import gather

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts find each other as when one of them is run."""
    for folder in (BENCHMARKS / "peers", BENCHMARKS):
        monkeypatch.syspath_prepend(str(folder))


def script(name: str) -> Any:
    return importlib.import_module(name)


WORKLOADS = ("w2", "w2k", "w3", "w3m", "w1", "resnet18", "transformer")
EVERY_WORKLOAD = pytest.mark.parametrize("name", WORKLOADS)


def test_these_are_all_workloads() -> None:
    assert tuple(script("workload").WORKLOADS) == WORKLOADS


@EVERY_WORKLOAD
def test_fedpilot_and_the_peers_do_the_same_work(name: str) -> None:
    workload = script("workload").WORKLOADS[name]
    config = parse_config(script("fedpilot_run").config(name), [])
    inputs = gather(config)
    peer = script("models").build_model(workload.model)
    assert inputs.parameters == sum(p.numel() for p in peer.parameters())
    said = script("report").title(name)
    count = inputs.parameters
    assert f" {count:,} parameters" in said or f" {count / 1e6:.1f} M parameters" in said
    assert inputs.data.input_shape == workload.pool[0].shape[1:]
    assert inputs.data.x.dtype == workload.pool[0].dtype
    assert (inputs.population, inputs.cohort_size) == (workload.population, workload.cohort)
    sizes = inputs.data.partition.sizes(np.arange(100))
    least, most = workload.samples
    assert least <= sizes.min() <= sizes.max() <= most
    assert not config.training.shuffle


@EVERY_WORKLOAD
def test_clients_and_cohorts_are_functions_of_their_numbers(name: str) -> None:
    workload = script("workload").WORKLOADS[name]
    x, y = workload.client(7)
    assert len(x) == len(y)
    assert workload.samples[0] <= len(y) <= workload.samples[1]
    first, second = workload.chosen(0), workload.chosen(1)
    assert len(set(first.tolist())) == workload.cohort
    assert (first == workload.chosen(0)).all()
    assert (first != second).any()


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_the_lean_loop_takes_the_same_steps(model: str) -> None:
    import torch

    models, workload = script("models"), script("workload")
    small = workload.PeerWorkload(model, 10, 2, 1, 1, (12, 12))
    ends = []
    for step in (models.train, models.train_lean):
        trained = models.build_model(model)
        step(trained, *small.client(3), rate=0.1)
        ends.append(trained.state_dict())
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value)


def test_every_benchmark_is_found_by_its_name() -> None:
    for module in runpy.run_path(str(BENCHMARKS / "__main__.py"))["MODULES"]:
        assert callable(script(module).main), module


def test_every_implementation_is_a_script_that_is_there() -> None:
    for each in script("run").IMPLEMENTATIONS.values():
        assert (BENCHMARKS / "peers" / each.script).is_file()
        assert each.command("w2")[-1 - len(each.options)] == "w2"


def test_spreads_and_ratios_are_medians_with_ranges() -> None:
    measuring = script("measuring")
    assert measuring.spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert measuring.spread([3.0, 1.0, 2.0]).text(1) == "2.0 (1.0–3.0)"
    assert measuring.ratios([10.0, 20.0, 60.0], [5.0, 5.0, 20.0]) == (3.0, 2.0, 4.0)
    assert measuring.steady([9.0, 1.0, 2.0, 3.0]) == 2.0


def test_each_turn_measures_everything_and_what_fails_is_left_out() -> None:
    measuring = script("measuring")
    asked: list[tuple[str, int]] = []

    def once(name: str, turn: int) -> dict[str, int]:
        asked.append((name, turn))
        if name == "b" and turn == 1:
            raise measuring.Failed("no")
        return {"turn": turn}

    runs: dict[str, list[dict[str, int]]] = {"a": [{"turn": 0}]}
    measuring.by_turns(["a", "b"], 3, once, str, runs, lambda: None)
    assert asked == [("b", 0), ("a", 1), ("b", 1), ("a", 2)]
    assert runs == {"a": [{"turn": t} for t in range(3)], "b": [{"turn": 0}]}


def test_a_section_of_the_results_leaves_the_others_alone(tmp_path: Path) -> None:
    measuring, path = script("measuring"), tmp_path / "results.json"
    measuring.save(path, "one", {"runs": {"a": [{"x": 1}]}})
    measuring.save(path, "two", {"runs": {}})
    measuring.save(path, "two", {"runs": {"b": []}})
    assert measuring.load(path) == {
        "one": {"runs": {"a": [{"x": 1}]}},
        "two": {"runs": {"b": []}},
    }


def test_what_a_process_leaves_behind_is_its_result_or_the_end_of_what_it_said() -> None:
    measuring = script("measuring")
    found = measuring.result_of([sys.executable, "-c", "print('RESULT {\"x\": 0.12345678}')"])
    assert found["x"] == 0.123457
    with pytest.raises(measuring.Failed, match="oh no"):
        measuring.result_of([sys.executable, "-c", "raise SystemExit('oh no')"])
    with pytest.raises(measuring.Failed, match="not done after"):
        measuring.result_of([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.3)


def rounds(clients: int, *seconds: float, training: float | None = None) -> dict[str, Any]:
    """A run whose first round is slow."""
    run: dict[str, Any] = {"cohort": clients, "seconds": [9.0, *seconds], "wall_s": 10.0}
    return run if training is None else run | {"training_seconds": [9.0] + [training] * 3}


def test_the_fit_finds_a_and_b() -> None:
    round_time = script("training.round_time")
    sizes = [10, 100, 1_000, 10_000]
    a, b = round_time.fit(sizes, [0.004 + 30e-6 * k for k in sizes])
    assert (a, b) == (pytest.approx(0.004), pytest.approx(30e-6))


def test_what_is_not_training_is_fedpilots_own_share() -> None:
    round_time = script("training.round_time")
    runs = {
        f"{k} clients": [
            rounds(k, *[factor * (0.004 + 30e-6 * k)] * 3, training=2 * 20e-6 * k)
            for factor in (1.0, 1.1, 1.2)
        ]
        for k in (10, 100, 1_000)
    }
    found = round_time.summary(runs)
    assert found.a.median == pytest.approx(1.1 * 0.004)
    assert found.b == pytest.approx((1.1 * 30e-6, 30e-6, 1.2 * 30e-6))
    assert found.engine == pytest.approx(13e-6)
    assert "13.0 µs are fedpilot's" in round_time.text(runs)


def test_without_training_seconds_the_share_is_not_claimed() -> None:
    round_time = script("training.round_time")
    runs = {"10": [rounds(10, 0.1)], "20": [rounds(20, 0.2)]}
    assert "no `training_seconds`" in round_time.text(runs)


def results() -> dict[str, Any]:
    """A file as all benchmarks leave it."""
    run = script("run")
    facts = {
        "machine": {"cpu": "a CPU", "cores": 2, "memory_gib": 8, "python": "3.11.0"},
        "versions": {"fedpilot": {"torch": "2.13.0"}},
    }
    peers = {
        run.task("w2", run.OURS): [rounds(100, 0.01), rounds(100, 0.02)],
        run.task("w2", "Flower, 2 actors"): [rounds(100, 1.0), rounds(100, 1.0)],
        run.task("w2", "Flower, 4 actors"): [rounds(100, 0.5), rounds(100, 0.5)],
    }
    walls = {
        script("training.whole_process").OURS: [{"wall_s": 5.0}],
        "Flower, 2 actors": [{"wall_s": 20.0}],
    }
    watched = {"start_s": 5.0, "peak_pss_mb": 1000.0}
    circle = {"w2: star": [rounds(1000, 0.02)] * 2, "w2: ring": [rounds(1000, 0.05)] * 2}
    compared = {"fedpilot": 90.0, "loop": 89.5, "furthest_weight": 1e-7, "seed": 1}
    return {
        "peers": facts | {"runs": peers},
        "round_time": facts | {"runs": {"10": [rounds(10, 0.1)], "20": [rounds(20, 0.2)]}},
        "whole_process": facts | {"runs": walls},
        "population": facts | {"runs": {"1,000": [rounds(100, 0.01) | watched]}},
        "topologies": facts | {"runs": circle},
        "lifecycle": facts | {"runs": clusters()},
        "healing": facts
        | {
            "runs": {
                "a raylet joins, bare": [{"back_s": 4.0}],
                "a worker killed": [{"back_s": 4.5, "vnode_s": 4.6}],
            }
        },
        "autoscaler": facts
        | {
            "runs": {
                "waves": [{"machine_s": 90, "oracle_s": 100.0, "waited_s": 3.0, "decision_s": 0.05}]
            }
        },
        "reserve": facts | {"runs": {"1 bundle": [{"manager_s": [0.006], "bare_s": [0.003]}]}},
        "tasks": facts | {"runs": {"tasks": [tasks()], "the manager": [manager()]}},
        "scheduler": facts
        | {
            "runs": {
                "reclaim: 1,000 machines": [{"cpu_s": 0.5}],
                "reclaim: 10,000 machines": [{"cpu_s": 10.0}, {"cpu_s": 9.0}, {"cpu_s": 30.0}],
            }
        },
        "answers": facts
        | {"runs": {"workloads": [{"median_s": 0.01, "p99_s": 0.05, "most_s": 0.06}]}},
        "exchange": facts | {"runs": {"three raylets": [exchanged()]}},
        "accuracy": facts | {"runs": {"w2": [compared]}},
        "transfer": facts | {"runs": {"pieces of 1,024 KiB": [transfer()]}},
        "link_bytes": facts | {"runs": {"10 clients": [crossed()], "100 Mbit/s": [slow_link()]}},
        "sites": facts | {"runs": {"100 sites": [mediated(100)], "25 sites": [mediated(25)]}},
    }


def tasks() -> dict[str, Any]:
    """Flexible resources take twice bare Ray's time, fixed-size nodes one and a half."""
    times = {"bare": 0.002, "fixed": 0.003, "flexible": 0.004}
    return {f"{form}_{n}_s": [s] * 3 for form, s in times.items() for n in ("trip", 100, 1000)}


def manager() -> dict[str, Any]:
    """A tenth more with many."""
    return {"waiting_200_ms": [0.2], "waiting_2000_ms": [0.2], "waiting_10000_ms": [0.22]}


def exchanged() -> dict[str, Any]:
    """A job has its places half a second after the grace, and once a second."""
    figures = ("request_to_places_s", "submission_to_places_s", "submission_to_tasks_s")
    took = {"idle": [0.1, 0.2, 0.3], "taken": [0.4, 0.5, 1.0]}
    return {"taken_back_s": [2.0, 3.0, 9.0]} | {
        f"{which}_{figure}": found for which, found in took.items() for figure in figures
    }


def transfer() -> dict[str, Any]:
    """A megabyte in half a second, and raw in less."""
    seconds = {"": 0.5, "messages_": 0.4, "raw_": 0.3, "kept_": 0.2}
    return {"bytes": 10**6} | {
        f"{which}{way}{what}": [found] * 3
        for which, found in seconds.items()
        for way in ("down", "up")
        for what in ("_s", "_cpu_s")
    }


def crossed(factor: float = 1.1) -> dict[str, Any]:
    """Two rounds with two sites, and so many times the bytes that they need."""
    each = int(2 * factor * 1_000)
    return {
        **{"clients": 10, "rounds": 2, "sites": 2, "parameters": 1_000},
        **{"to_site_bytes": [4 * each] * 2, "from_site_bytes": [8 * each] * 2},
    }


def slow_link() -> dict[str, Any]:
    """80 and 90 hundredths of a link."""
    return {"megabits": 100, "bytes": 2 * 10**8, "to_site_s": 20.0, "from_site_s": 16 / 0.9}


def clusters() -> dict[str, list[dict[str, Any]]]:
    """A declared cluster that is up in half the time of `ray start`."""
    run = {"first_s": 0.04, "tasks_s": 2.0}
    return {
        "declared": [{**run, "up_s": 5.0}],
        "ray start, one by one": [{**run, "up_s": 10.0}],
        "ray start, at once": [{**run, "up_s": 30.0}],
    }


def mediated(count: int) -> dict[str, Any]:
    """A mediator that each site costs 5 ms in a round."""
    memory = {"empty_bytes": 50e6, "joined_bytes": 60e6, "peak_bytes": [70e6, 80e6]}
    spent = {"join_cpu_s": 0.1, "idle_cpu_share": 0.01, "cpu_s": [0.005 * count] * 2}
    return {"sites": count, "parameters": 250_000, "round_s": [1.0, 1.0], **memory, **spent}


def test_the_page_is_filled_with_what_was_measured() -> None:
    report = script("report")
    page = report.filled(report.PAGE.read_text(), results())
    assert report.NOTHING not in page
    assert "| fedpilot, 2 workers |" in page
    assert "| ring | 20,000 (20,000–20,000) | 0.40 (0.40–0.40) |" in " ".join(page.split())
    assert "| 40 (40–40) | 5.0 (5.0–5.0) | 0.50 (0.50–0.50) × |" in " ".join(page.split())
    assert "| 3.0 (3.0–3.0) | 2.00 (2.00–2.00) × |" in " ".join(page.split())  # reserving
    assert "| 1.50 (1.50–1.50) × | 2.00 (2.00–2.00) × |" in " ".join(page.split())  # tasks
    assert "| 10,000 | 0.220 (0.220–0.220) | 1.10 (1.10–1.10) × |" in " ".join(page.split())
    assert "| 10.0 (10.0–10.0) | 50.0 (50.0–50.0) | 60.0 (60.0–60.0) |" in " ".join(
        page.split()
    )  # answers
    assert "| 0.50 (0.40–1.00) | 1.00 | 0.20 (0.10–0.30) | 3 |" in " ".join(page.split())
    assert "75.00 (50.00–100.00) ×" in page  # within each turn
    assert "4.00 (4.00–4.00) ×" in page  # the whole process
    assert "| +0.50 " in page  # points
    cells = " ".join(page.split())
    assert "| 0.80 (0.80–0.80) | 0.60 (0.60–0.60) | 0.40 (0.40–0.40) |" in cells  # transfer
    assert "| 1.100 (1.100–1.100) |" in cells  # bytes
    assert "| reclaim: 10,000 machines | 10,000.0 (9,000.0–30,000.0) | 3 |" in cells
    assert "*n* to the power of 1.30" in page
    assert "| 20.0 (20.0–20.0) | 0.80 (0.80–0.80) |" in cells  # a slow link
    assert "| 25 | 1 | 5.0 (5.0–5.0) |" in cells  # sites
    assert cells.index("| 25 | 1 | 5.0 ") < cells.index("| 100 | 1 | 5.0 ")
    assert report.filled(page, results()) == page


def test_the_page_in_the_repository_is_what_the_results_say() -> None:
    report, measuring = script("report"), script("measuring")
    page = report.PAGE.read_text()
    assert report.filled(page, measuring.load(measuring.RESULTS)) == page


def test_the_picture_shows_everybody_in_the_best_setting(tmp_path: Path) -> None:
    report = script("report")
    runs = script("run").grouped(results()["peers"]["runs"])["w2"]
    assert report.best(runs, "Flower") == [200.0, 200.0]
    assert report.best(runs, "fedpilot") == [10_000.0, 5_000.0]
    assert report.best(runs, "pfl") == []
    report.draw(results(), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
