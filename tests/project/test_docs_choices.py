"""The pages to choose from: configs of topologies and assignments train, pictures are drawn."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import generate
from fedpilot.common.strict_yaml.reading import read
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from shown.pages import ASSIGNMENTS, TOPOLOGIES, blocks, files
from shown.pictures import Picture

PART = re.compile(
    r"^## (?P<heading>[^\n]+)$|^```yaml\n(?P<config>.*?)^```$", re.MULTILINE | re.DOTALL
)


def configs() -> Iterator[Any]:
    """Each config, with the heading above it; the first one of a page is whole."""
    for page in (TOPOLOGIES, ASSIGNMENTS):
        heading = "the whole config"
        for part in PART.finditer(page.read_text(encoding="utf-8")):
            heading = part["heading"] or heading
            if part["config"]:
                yield pytest.param(page, part["config"], id=f"{page.stem}, {heading}")


@pytest.mark.parametrize(("page", "text"), list(configs()))
def test_a_config_of_the_page_trains_all_its_clients(
    page: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files(page).items():
        (tmp_path / name).write_text(content)
        monkeypatch.delitem(sys.modules, name.partition(".")[0], raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {**read(blocks(page, "yaml")[0], str).value}
    for section, keys in read(text, str).value.items():
        config[section] = {**config.get(section, {}), **keys} if type(keys) is dict else keys
    sites = [f"site_{number + 1}" for number in range(config.pop("sites", 1))]
    config["federation"]["rounds"] = 1
    config["training"] = {**config.get("training", {}), "execution": "sequential"}
    config |= {"outputs": {"curves": False}, "resources": {"workers": 1}}
    if config["federation"]["topology"] not in ("star", "hierarchical"):
        config["evaluation"] = {"nodes": "none"}
    else:
        config.pop("graph", None)
    cluster = FakeCluster([fake_machine("a", CPU=4)])
    several = {"sites": sites} if len(sites) > 1 else {}
    with Federation(config, cluster=cluster, **several) as federation:
        result = federation.run()
    assert result.rows[-1]["clients"] == config["federation"]["number_of_clients"]


@pytest.fixture(scope="module")
def figures() -> tuple[dict[Path, str], list[Picture]]:
    return generate.figures()


def test_the_tables_are_up_to_date(figures: tuple[dict[Path, str], list[Picture]]) -> None:
    pages, _ = figures
    assert set(pages) == {TOPOLOGIES, ASSIGNMENTS}
    for page, text in pages.items():
        assert page.read_text(encoding="utf-8") == text, "run `python docs/generate.py`"


def test_the_pictures_of_a_page_are_those_that_are_made_and_show_its_facts(
    figures: tuple[dict[Path, str], list[Picture]],
) -> None:
    _, pictures = figures
    made = {picture.name for picture in pictures}
    assert made == {name for page in (TOPOLOGIES, ASSIGNMENTS) for name in pictures_on(page)}
    old = [picture.name for picture in pictures if not picture.is_current]
    assert not old, "run `python docs/generate.py`"


def pictures_on(page: Path) -> list[str]:
    return re.findall(r"\(\.\./images/([\w/]+)\.png\)", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("topologies/all", id="all graphs"),
        pytest.param("topologies/exponential", id="a graph that changes"),
        pytest.param("assignments/locality", id="a plan"),
    ],
)
def test_a_drawn_picture_shows_its_facts_and_no_others(
    name: str,
    figures: tuple[dict[Path, str], list[Picture]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (picture,) = (each for each in figures[1] if each.name == name)
    monkeypatch.setattr("shown.pictures.DOCS", tmp_path)
    picture.path.parent.mkdir(parents=True)
    assert not picture.is_current
    picture.draw()
    assert picture.is_current
    assert not replace(picture, facts=[picture.facts]).is_current
    with Image.open(picture.path) as image:
        assert len(image.getcolors()) > 3
