"""The documentation says what is so: links lead on, configs load, commands and names exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import pytest

from fedpilot.cli import asks_sites, main
from fedpilot.common.strict_yaml.reading import read
from fedpilot.common.strict_yaml.wording import all_keys
from fedpilot.fabric import VirtualCluster
from fedpilot.fabric.spec.queue_file import read_queue_file
from fedpilot.fabric.spec.ray_cluster.reading import read_ray_cluster
from fedpilot.federated import load_config
from fedpilot.federated.config import RunConfig
from fedpilot.mediator.agent.site_config.site_files import read_policy, read_site_file

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])
PACKAGES = ["fedpilot", "fedpilot.federated", "fedpilot.mediator", "fedpilot.fabric"]

FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<text>.+)$", re.MULTILINE)

EVERY_PAGE = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY))
)


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of a kind."""
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [match["text"] for match in found if match["kind"] == kind]


def prose(page: Path) -> str:
    """A page without its fenced blocks and its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """What `#...` may name: headings, as GitHub and MkDocs make anchors of them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", m["text"]) for m in HEADING.finditer(text)]
    return {re.sub(r"[^\w\s-]", "", t.lower()).strip().replace(" ", "-") for t in titles}


@EVERY_PAGE
def test_every_link_leads_somewhere(page: Path) -> None:
    for match in LINK.finditer(prose(page)):
        target, _, anchor = match["target"].partition("#")
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{match[0]} leads nowhere"
        assert not anchor or anchor in anchors(there), f"{match[0]}: no such heading"


@EVERY_PAGE
def test_a_page_of_the_site_links_to_pages_of_the_site(page: Path) -> None:
    if page.is_relative_to(DOCS):
        for match in LINK.finditer(prose(page)):
            target = match["target"].partition("#")[0]
            inside = (page.parent / target).resolve().is_relative_to(DOCS)
            assert "://" in target or inside, f"{match[0]} leaves the site"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"\S+\.md$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def complete_configs() -> Iterator[object]:
    """Every YAML block that could be a whole config."""
    for page in PAGES:
        for number, text in enumerate(blocks(page, "yaml")):
            if {"data:", "model:"} <= set(text.splitlines()):
                yield pytest.param(text, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("text", list(complete_configs()))
def test_a_complete_config_is_right(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    load_config(path)


def specs() -> Iterator[object]:
    """Every YAML block that is the spec of a virtual cluster."""
    for page in PAGES:
        for number, text in enumerate(blocks(page, "yaml")):
            if re.search("^(flex_resource|fixed_size_nodes)", text, re.MULTILINE):
                yield pytest.param(text, id=f"{page.stem}-{number}")


def files_of_queues() -> Iterator[object]:
    """Every YAML block, and every example, that is a file of queues."""
    texts = [(page, text) for page in PAGES for text in blocks(page, "yaml")]
    texts += [(each, each.read_text()) for each in (REPOSITORY / "examples/queues").iterdir()]
    for page, text in texts:
        top = {line.partition(":")[0] for line in text.splitlines()}
        if "projects" in top and not {"nodes", "kind"} & top:
            yield pytest.param(text, id=page.stem)


@pytest.mark.parametrize("text", list(files_of_queues()))
def test_a_file_of_queues_is_right(text: str, tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text(text)
    assert len(read_queue_file(path).projects) > 1


def declared_ray_clusters() -> Iterator[object]:
    """Every YAML block that declares a Ray cluster."""
    for page in PAGES:
        for number, text in enumerate(blocks(page, "yaml")):
            if "headGroupSpec:" in text:
                yield pytest.param(text, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("text", list(declared_ray_clusters()))
def test_a_declared_ray_cluster_is_right(text: str, tmp_path: Path) -> None:
    path = tmp_path / "team-a.yaml"
    path.write_text(text)
    assert not read_ray_cluster(path).warnings


FILES_OF_SITES = {"datasets:": read_site_file, "users:": read_policy}


def files_of_sites() -> Iterator[object]:
    """Every YAML block that is a site's own file, and what reads it."""
    for page in PAGES:
        for number, text in enumerate(blocks(page, "yaml")):
            for begin, reader in FILES_OF_SITES.items():
                if text.startswith(begin):
                    yield pytest.param(text, reader, id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("text", "reader"), list(files_of_sites()))
def test_a_file_of_a_site_is_right(
    text: str, reader: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    assert reader(path) != read_policy(None)


@pytest.mark.parametrize("text", list(specs()))
def test_a_spec_is_right(text: str) -> None:
    spec = VirtualCluster.from_dict(read(text, str).value)
    assert VirtualCluster.from_dict(spec.to_dict()) == spec


def commands() -> Iterator[tuple[str, list[str]]]:
    """(page, arguments) of every `fedpilot ...` line of a shell block."""
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(re.split("[|>&]", line)[0], comments=True)
                if words and Path(words[0]).name == "fedpilot":
                    yield page.stem, words[1:]


def parsed(arguments: list[str]) -> Mapping[str, object]:
    """The parameters of the command that is called in the end; nothing is run.

    Of one that is sent to sites none: those parse it.
    """
    if asks_sites(arguments):
        return {}
    command: click.Command = main
    # Click remembers in a command what its first context calls the option for help.
    context = click.Context(main, info_name="fedpilot", **main.context_settings)
    while isinstance(command, click.Group):
        name, *arguments = arguments
        inner = command.get_command(context, name)
        assert inner is not None, f"there is no command {name}"
        command = inner
    return command.make_context("fedpilot", arguments, parent=context).params


COMMANDS = list(commands())
COMMAND_IDS = [f"{page}: fedpilot {shlex.join(arguments)}" for page, arguments in COMMANDS]


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=COMMAND_IDS)
def test_a_command_line_is_one_that_exists(
    page: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in arguments:
        if re.fullmatch(r"[a-z]+\.(token|yaml)", name):
            Path(name).touch()  # options want files that are there
    parameters = parsed(arguments)
    config = parameters.get("config")
    if config is not None and Path(str(config)).parent.name == "configs":
        assert (REPOSITORY / str(config)).is_file()
    known = {key.path for key in all_keys(RunConfig)}
    overrides = parameters.get("overrides", ())
    assert isinstance(overrides, tuple)
    for override in overrides:
        key = override.partition("=")[0]
        assert key in known, f"there is no key {key}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_section_of_its_package(package: str) -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == PACKAGES
    described = {
        name
        for row in re.findall(r"^\|([^|]*)\|", sections[package], re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    inherited = set(importlib.import_module("fedpilot").__all__)
    names = set(importlib.import_module(package).__all__)
    assert names - described - (inherited if package == "fedpilot.federated" else set()) == set()


def emitted() -> set[str]:
    """The names of all events: what is emitted by name, and what sites and pools tell."""
    names: set[str] = set()
    for path in (REPOSITORY / "federated").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0] if node.args else None
            told = [first] if name in ("emit", "_emit", "_on_event") else []
            if name in ("_notify", "notify") and isinstance(first, ast.Call):
                told = [keyword.value for keyword in first.keywords if keyword.arg == "kind"]
            names |= {str(each.value) for each in told if isinstance(each, ast.Constant)}
    return names


def test_the_events_page_names_every_event_and_no_other() -> None:
    page = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")
    assert emitted() > {"run_started", "clients_done", "worker_lost"}
    assert set(re.findall(r"^## `(\w+)`$", page, re.MULTILINE)) == emitted()
    assert set(re.findall(r"^\| \[`(\w+)`\]", page, re.MULTILINE)) == emitted()


def test_every_decision_is_listed_and_numbered_on() -> None:
    records = sorted((DOCS / "decisions").glob("0*.md"))
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    for number, record in enumerate(records, start=1):
        assert record.name.startswith(f"{number:04d}-")
        assert record.read_text(encoding="utf-8").startswith(f"# {number}. ")
        assert f"]({record.name})" in index


@EVERY_PAGE
def test_every_file_of_the_repository_that_is_named_exists(page: Path) -> None:
    tops = "common|fabric|mediator|federated|src|tests|docs|configs|examples|benchmarks"
    for name in re.findall(rf"`((?:{tops})/[\w./-]+)`", page.read_text(encoding="utf-8")):
        assert (REPOSITORY / name).exists(), f"there is no {name}"


def test_every_module_that_the_map_names_by_its_file_alone_exists() -> None:
    there = {
        path.name
        for each in ("common", "fabric", "mediator", "federated")
        for path in (REPOSITORY / each).rglob("*.py")
    }
    named = re.findall(r"`(\w+\.py)`", (REPOSITORY / "ARCHITECTURE.md").read_text("utf-8"))
    assert len(named) > 50
    assert set(named) <= there


def test_the_code_points_to_pages_that_exist() -> None:
    for package in ("common", "fabric", "mediator", "federated"):
        for path in (REPOSITORY / package).rglob("*.py"):
            for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
                assert (REPOSITORY / page).is_file(), f"{path} points to {page}"
