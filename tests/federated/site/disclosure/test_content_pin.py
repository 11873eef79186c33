"""A site remembers what content its data had when a run began there."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

import site_data
from fedpilot.federated.config import parse_config
from fedpilot.federated.core.population.federated_data.place import Place
from fedpilot.federated.errors import DataUnusable
from fedpilot.federated.site.disclosure.content_pin import hold_to
from fedpilot.federated.site.workload import FederatedWorkload
from fedpilot.mediator import Payload, SiteContext
from fedpilot.mediator.agent.site_config.site_files import read_site_file


def test_the_first_start_says_what_later_ones_have_to_find(tmp_path: Path) -> None:
    for _ in range(2):
        hold_to(tmp_path, "paris", "scans", "a" * 64)
    hold_to(tmp_path, "rome", "scans", "b" * 64)
    with pytest.raises(DataUnusable, match="data set scans cannot be used at site paris: its cont"):
        hold_to(tmp_path, "paris", "scans", "b" * 64)
    hold_to(tmp_path, "paris", "scans", "a" * 64)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["paris.data.json", "rome.data.json"]


@pytest.mark.parametrize("text", ["", "{}", "no json", '["a"]'])
def test_what_cannot_be_read_is_not_taken_for_the_same(text: str, tmp_path: Path) -> None:
    (tmp_path / "paris.data.json").write_text(text)
    with pytest.raises(DataUnusable):
        hold_to(tmp_path, "paris", "scans", "a" * 64)


@pytest.mark.parametrize("changed", [False, True])
def test_a_site_that_keeps_runs_compares_before_anything_is_started(
    changed: bool, tmp_path: Path
) -> None:
    section = site_data.column(tmp_path / "data", {"anna": 20, "ben": 12})
    declared = read_site_file(Path(site_data.site_file(tmp_path / "s.yaml", "scans", section)))
    data = {name: each.to_json() for name, each in declared.items()}
    place = Place(dataset="scans", population=2, first=0, clients=2, pattern="client_{index}")
    keys = {"federation__clients_per_round": 2}
    config = parse_config(site_data.config(["s.yaml"], tmp_path / "runs", **keys))
    header = {"config": config.model_dump(mode="json"), "paths": [], "place": place.to_json()}
    spec = Payload(kind="federation", header=header)
    site = SiteContext(name="paris", folder=tmp_path, data=data)
    FederatedWorkload().prepare(spec, site)
    if changed:
        site_data.column(tmp_path / "data", {"anna": 19, "ben": 13})
    with pytest.raises(DataUnusable) if changed else nullcontext():
        FederatedWorkload().prepare(spec, site)
