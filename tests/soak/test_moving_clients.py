"""Over real links, clients of a graph leave the site whose link is slow, and no bit changes."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import SITES
from fleet import Fleet, fleet
from real_ray import fedpilot

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(3600)]

ROUNDS = 10
SLOW = SITES[-1]
MEGABITS = {**dict.fromkeys(SITES, 100), SLOW: 16}
"""By site; transfers of few bytes over fast links are not measured."""
CONFIG = f"""
federation:
  number_of_clients: 90
  rounds: {ROUNDS}
  topology: small_world
  aggregation_strategy: dpsgd
  assignment: locality
graph: {{degree: 4, probability: 0.3}}
model: {{model_type: mlp, options: {{hidden: [480, 400]}}}}
data: {{dataset_type: digits}}
resources: {{workers: 1}}
"""
MOVING = "participation: {reassign_every: 2, wait_for_sites_s: 300}\n"


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with fleet(*SITES, home_mb=512) as made:
        for site in SITES:
            made.join(site)
        made.until(dict.fromkeys(SITES, "ready"), 120)
        for site, megabits in MEGABITS.items():
            made.sites[site].limit(megabits, both_ways=True)
        yield made


def test_clients_move_away_from_a_slow_link_that_was_measured(three: Fleet, tmp_path: Path) -> None:
    three.submit(CONFIG + MOVING, "moving")
    last = three.finished("moving", 1800)
    assert last["status"] == "finished", three.logs()
    events = three.events("moving")
    moved = [each for each in events if each["event"] == "reassigned"]
    assert moved, [each for each in events if each["event"] == "assignment_kept"]
    away = Counter[str]()
    for each in moved:
        for move in each["moves"]:
            away[move["from"]] += move["clients"]
            away[move["to"]] -= move["clients"]
    assert away[SLOW] > 0
    with (three.folder / "hub" / "runs" / "moving" / "traffic.csv").open() as file:
        exchanged = Counter[int]()
        for row in csv.DictReader(file):
            if row["purpose"] == "exchange" and row["site"] == SLOW:
                exchanged[int(row["round"])] += int(row["bytes"])
    assert exchanged[ROUNDS] < exchanged[1]
    (tmp_path / "config.yaml").write_text(CONFIG)
    with fedpilot(["run", "config.yaml", "--json"], tmp_path) as alone:
        assert alone.finish(600) == 0, alone.error()
    assert alone.events[-1]["digest"] == last["digest"]
