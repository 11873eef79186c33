"""What a mediator says of files is not trusted: nothing leaves the folder that was named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator.client.client import MediatorClient, RunFile
from fedpilot.mediator.client.run_files import checked, fetch_run, safe_path
from fedpilot.mediator.errors import BadRequest, MediatorError, MediatorFailed
from fedpilot.mediator.identity import Credentials
from user_service import Served, a_run, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mediator")) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[MediatorClient]:
    server.service.__init__()  # type: ignore[misc]
    server.service.runs["base"] = a_run("base", status="finished")
    with MediatorClient(server.address, Credentials.read(server.credentials)) as made:
        yield made


HOSTILE = [
    pytest.param("../escaped", id="up"),
    pytest.param("a/../../escaped", id="up from below"),
    pytest.param("/etc/passwd", id="absolute"),
    pytest.param("a//b", id="an empty part"),
    pytest.param("", id="nothing"),
    pytest.param(".", id="itself"),
    pytest.param(".bashrc", id="hidden"),
    pytest.param("a/.ssh/key", id="in a hidden folder"),
    pytest.param("C:\\x", id="a drive"),
    pytest.param("a\\..\\b", id="backslashes"),
    pytest.param("a\x00b", id="a null byte"),
    pytest.param("a\n", id="a line's end"),
    pytest.param("-rf", id="an option"),
    pytest.param("~/x", id="a home folder"),
    pytest.param("x" * 300, id="a name that is too long"),
    pytest.param("/".join("a" * 20), id="too deep"),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_before_anything_is_written(
    server: Served, client: MediatorClient, tmp_path: Path, name: str
) -> None:
    to = tmp_path / "in" / "here"
    server.service.files["base"] = {"config.yaml": b"a: 1", name: b"owned"}
    with pytest.raises(MediatorFailed, match="no file of a run"):
        fetch_run(client, "base", to)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@settings(max_examples=settings().max_examples // 3)
@given(st.text(max_size=40) | st.text(alphabet="./\\ab~-:", max_size=12))
def test_a_path_that_is_taken_stays_inside(name: str) -> None:
    try:
        place = safe_path(name)
    except MediatorFailed:
        return
    assert not place.is_absolute()
    assert ".." not in place.parts
    assert Path("/x/y", place).resolve().is_relative_to("/x/y")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        pytest.param(("a", "A"), "twice", id="one file on some systems"),
        pytest.param(("a", "a/b"), "a file and a folder", id="a file that is a folder"),
    ],
)
def test_files_that_cannot_be_beside_each_other_are_refused(
    names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(MediatorFailed, match=said):
        checked([RunFile(path=name, size=1) for name in names], 100)


def test_more_than_there_is_room_for_is_refused() -> None:
    with pytest.raises(BadRequest, match="there is room for 99"):
        checked([RunFile(path="a", size=50), RunFile(path="b", size=50)], 99)


def test_all_files_come_and_nothing_else_is_left(
    server: Served, client: MediatorClient, tmp_path: Path
) -> None:
    server.service.files["base"] = {
        "config.yaml": b"a: 1",
        "checkpoints/round-1.safetensors": bytes(3000),
        "empty": b"",
    }
    places = fetch_run(client, "base", tmp_path / "base")
    assert [str(place) for place in places] == sorted(server.service.files["base"])
    found = {p for p in (tmp_path / "base").rglob("*") if p.is_file()}
    assert {str(path.relative_to(tmp_path / "base")): path.read_bytes() for path in found} == (
        server.service.files["base"]
    )


def test_a_folder_that_holds_something_is_left_alone(
    client: MediatorClient, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(BadRequest, match="new or empty"):
        fetch_run(client, "base", tmp_path)


def test_a_file_that_the_run_changes_meanwhile_is_asked_for_again(
    server: Served, client: MediatorClient, tmp_path: Path
) -> None:
    files = server.service.files["base"] = {"metrics.jsonl": b"1\n"}

    class Growing(dict[str, bytes]):
        def __getitem__(self, path: str) -> bytes:
            files["metrics.jsonl"] = b"1\n2\n"
            return files[path]

        def items(self):  # type: ignore[no-untyped-def]
            return files.items()

    server.service.files["base"] = Growing()
    fetch_run(client, "base", tmp_path / "base")
    assert (tmp_path / "base" / "metrics.jsonl").read_bytes() == b"1\n2\n"


def test_a_file_that_never_has_the_size_that_was_said_is_given_up(
    server: Served, client: MediatorClient, tmp_path: Path
) -> None:
    class Lying(dict[str, bytes]):
        def items(self):  # type: ignore[no-untyped-def]
            return {"a": b"12345"}.items()

    server.service.files["base"] = Lying(a=b"1")
    with pytest.raises(MediatorError, match="should have 5 bytes"):
        fetch_run(client, "base", tmp_path / "base")
    assert list((tmp_path / "base").iterdir()) == []
