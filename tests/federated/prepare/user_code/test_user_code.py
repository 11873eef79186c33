"""A run's own code has one digest wherever it is asked for, and only what is fit travels."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpilot.federated.data.registry as data_registry
import fedpilot.federated.models.registry as model_registry
from fedpilot.federated import ConfigError, Dataset, RunConfig, parse_config
from fedpilot.federated.core.user_code import code_archive
from fedpilot.federated.core.user_code.code_archive import packed
from fedpilot.federated.errors import CodeRefused
from fedpilot.federated.federation.remote.coordinator_process import archive_in
from fedpilot.federated.prepare.user_code.importing import ArchiveFinder, make_importable
from fedpilot.federated.prepare.user_code.user_code import (
    archive_of,
    attached,
    code_here,
    code_of,
    code_sent,
    code_to_send,
)
from fedpilot.mediator import Payload

SPEC = Payload(kind="federation", header={"config": {}}, tensors={"w": np.zeros(2)})


def config(**keys: Any) -> RunConfig:
    made: dict[str, Any] = {
        "federation": {"number_of_clients": 3, "rounds": 1},
        "model": {"model_type": "mlp"},
        "data": {"dataset_type": "digits"},
    }
    for key, value in keys.items():
        section, _, name = key.partition("__")
        made.setdefault(section, {})[name] = value
    return parse_config(made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_nets.py").write_text("import my_parts\nNet = my_parts.Part\n")
    (tmp_path / "my_parts.py").write_text("class Part: ...\n")
    return tmp_path


@pytest.fixture
def imported() -> Iterator[None]:
    """What is made importable is so for the time of a test."""
    yield
    for finder in [each for each in sys.meta_path if isinstance(each, ArchiveFinder)]:
        finder.withdraw()


# -- the digest -----------------------------------------------------------------------------------


def test_the_digest_is_that_of_the_archive_wherever_it_is_asked_for(folder: Path) -> None:
    named = config(model__model_type="my_nets:Net")
    there = [*sys.path, str(folder)]
    code = code_here(named, there)
    assert code.files == ("my_nets.py", "my_parts.py")
    assert code.digest == hashlib.sha256(code.archive).hexdigest()
    assert code_to_send(named, [str(folder)]) == code
    assert code_sent(named, code.archive) == code, "where there is no such folder"
    assert code_of(attached(SPEC, code), named) == code, "at a site"


def test_what_is_imported_counts_too(folder: Path) -> None:
    named = config(model__model_type="my_nets:Net")
    before = code_here(named, [str(folder)]).digest
    (folder / "my_parts.py").write_text("class Part: x = 1\n")
    assert code_here(named, [str(folder)]).digest != before


def test_no_code_is_the_code_of_everybody_who_has_none() -> None:
    code = code_here(config())
    assert (code.archive, code.files, code.archive_digest) == (b"", (), "")
    assert code.digest == hashlib.sha256(b"").hexdigest()


def test_installed_modules_count_by_their_source(folder: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "wards.py").write_text("one = 1\n")
    search = [str(installed), str(folder)]
    alone = config(data__dataset_type="wards:load")
    both = config(data__dataset_type="wards:load", model__model_type="my_nets:Net")
    first, mixed = code_here(alone, search), code_here(both, search)
    assert (first.archive, first.installed, mixed.installed) == (b"", ("wards",), ("wards",))
    assert mixed.files == ("my_nets.py", "my_parts.py")
    assert code_sent(both, mixed.archive, search) == mixed
    (installed / "wards.py").write_text("one = 2\n")
    assert code_here(alone, search).digest != first.digest
    assert code_here(both, search).digest != mixed.digest
    assert len({first.digest, mixed.digest, mixed.archive_digest}) == 3


# -- what travels ---------------------------------------------------------------------------------


def refusal(named: RunConfig, *folders: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        code_to_send(named, map(str, folders))
    return str(refused.value)


def test_a_module_that_is_nowhere_is_told_of_and_may_be_installed_there() -> None:
    code = code_to_send(config(model__model_type="nowhere.nets:Net", data__dataset_type="json:x"))
    assert (code.archive, code.installed) == (b"", ("nowhere.nets", "json"))
    assert code.missing == ("nowhere.nets",)


def test_what_only_this_process_knows_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_registry._models, "_functions", {"mine": object})
    monkeypatch.setattr(data_registry._loaders, "_functions", {"wards": Dataset})
    monkeypatch.setitem(sys.modules, "a_cell", types.ModuleType("a_cell"))
    text = refusal(
        config(
            model__model_type="mine",
            data__dataset_type="wards",
            training__loss_function="__main__:loss",
            training__client_update="a_cell:update",
            training__execution="sequential",
        )
    )
    assert "model.model_type\n  found:   `mine`, which is registered in this process alone" in text
    assert "`wards`, which is registered in this process alone" in text
    assert "`__main__:loss`, which is defined in this script or notebook" in text
    assert "`a_cell:update`, which is defined in this script or notebook" in text
    assert "`module:name`, of a file beside the config" in text


def test_what_is_compiled_is_refused_by_name(folder: Path) -> None:
    (folder / "my_parts.py").unlink()
    (folder / "my_parts.abi3.so").write_bytes(b"\x7fELF")
    text = refusal(config(model__model_type="my_nets:Net"), folder)
    assert (
        "model.model_type\n  found:   code that needs my_parts.abi3.so, which is compiled" in text
    )
    assert "install the rest where the coordinator runs and at every site" in text


def test_too_much_code_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "MOST_FILES", 1)
    text = refusal(config(training__loss_function="my_nets:Net"), folder)
    assert "training.loss_function\n  found:   code that does not travel: 2 files" in text


# -- with a spec ----------------------------------------------------------------------------------


def test_an_archive_travels_with_a_spec(folder: Path) -> None:
    code = code_to_send(config(model__model_type="my_nets:Net"), [str(folder)])
    spec = attached(SPEC, code)
    assert archive_of(spec) == code.archive
    assert spec.tensors.keys() == {"w", "code"}
    assert attached(SPEC, code_here(config())) is SPEC
    assert archive_of(SPEC) == b""


@pytest.mark.parametrize(
    ("header", "tensor", "words"),
    [
        pytest.param({"code": "0" * 64}, None, "none came", id="none, but announced"),
        pytest.param({}, np.frombuffer(b"PK", np.uint8), "was announced", id="not announced"),
        pytest.param({"code": "0" * 64}, np.frombuffer(b"PK", np.uint8), f"{'0' * 64} was",
                     id="another digest"),
        pytest.param({"code": 7}, np.frombuffer(b"PK", np.uint8), "7 was", id="no digest"),
        pytest.param({"code": "x"}, np.zeros(3), "float64 of shape [3]", id="numbers"),
        pytest.param({"code": "x"}, np.zeros((2, 2), np.uint8), "[2, 2]", id="a matrix"),
        pytest.param({"code": "x"}, np.broadcast_to(np.uint8(0), 1 << 40), "at most 4194304",
                     id="too large"),
    ],
)  # fmt: skip
def test_what_is_no_archive_or_another_is_refused(header: Any, tensor: Any, words: str) -> None:
    tensors = {} if tensor is None else {"code": tensor}
    with pytest.raises(CodeRefused) as refused:
        archive_of(replace(SPEC, header=header, tensors=tensors))
    assert words in str(refused.value)


def test_a_coordinator_takes_what_was_submitted_and_nothing_else(tmp_path: Path) -> None:
    assert archive_in(tmp_path, "") == b""
    (tmp_path / "code.zip").write_bytes(b"x")
    assert archive_in(tmp_path, hashlib.sha256(b"x").hexdigest()) == b"x"
    with pytest.raises(CodeRefused, match=r"code\.zip in its folder is not what was submitted"):
        archive_in(tmp_path, "0" * 64)


# -- importing ------------------------------------------------------------------------------------


def test_modules_are_imported_out_of_the_archive(imported: None) -> None:
    archive = packed(
        {
            "own_a.py": b"from own_b.deep import x\nfrom own_c import y\n",
            "own_b/__init__.py": b"",
            "own_b/deep.py": b"from . import other\nx = other.x\n",
            "own_b/other.py": b"import inspect\nx = 7\ndef f():\n    return x\n",
            "own_c/y.py": b"z = 8\n",
        }
    )
    make_importable(archive)
    make_importable(archive)
    assert sum(isinstance(each, ArchiveFinder) for each in sys.meta_path) == 1
    import inspect

    import own_a  # type: ignore[import-not-found]
    from own_b import other  # type: ignore[import-not-found]

    assert (own_a.x, own_a.y.z) == (7, 8)
    assert inspect.getsource(other.f) == "def f():\n    return x\n", "as PyTorch asks for it"
    assert other.__file__ == "<code of the run>/own_b/other.py"
    with pytest.raises(ImportError):
        import own_b.nowhere  # type: ignore[import-not-found]  # noqa: F401


def test_another_archive_takes_the_place_of_the_one_before(imported: None) -> None:
    make_importable(packed({"own_d.py": b"x = 1\n"}))
    import own_d  # type: ignore[import-not-found]

    assert own_d.x == 1
    make_importable(packed({"own_d.py": b"x = 2\n"}))
    assert "own_d" not in sys.modules
    import own_d

    assert own_d.x == 2


def test_what_is_loaded_already_is_not_taken_for_what_came(
    imported: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_e", types.ModuleType("own_e"))
    with pytest.raises(CodeRefused, match="its module own_e has the name of one"):
        make_importable(packed({"own_e/nets.py": b""}))
    assert not any(isinstance(each, ArchiveFinder) for each in sys.meta_path)


def test_what_is_no_archive_is_not_imported(imported: None) -> None:
    with pytest.raises(CodeRefused):
        make_importable(b"PK\x03\x04 and so on")
