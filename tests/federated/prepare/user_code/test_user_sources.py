"""What a run names of the user's own code, and what that imports, is found without running it."""

from __future__ import annotations

import ast
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from fedpilot.federated.prepare.user_code.user_sources import Sources, imports, not_among, sources

EXPLODES = "raise SystemExit('this must not be run')\n"


def lay_out(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def found(folder: Path, *modules: str) -> Sources:
    return sources(modules, [*sys.path, str(folder)])


@pytest.mark.parametrize(
    ("files", "modules", "taken"),
    [
        pytest.param({"nets.py": EXPLODES}, ["nets"], ["nets.py"], id="a module"),
        pytest.param({"nets.py": "", "other.py": ""}, ["nets"], ["nets.py"],
                     id="what nobody needs stays"),
        pytest.param({"nets.py": "import parts\n", "parts.py": "def f():\n  import more\n",
                      "more.py": ""}, ["nets"], ["more.py", "nets.py", "parts.py"],
                     id="what it imports, wherever"),
        pytest.param({"nets.py": "import parts", "parts.py": "import nets"}, ["nets"],
                     ["nets.py", "parts.py"], id="in a circle"),
        pytest.param({"nets.py": "import torch, json, fedpilot, numpy.linalg, nowhere"}, ["nets"],
                     ["nets.py"], id="what is installed stays"),
        pytest.param({"my/__init__.py": EXPLODES, "my/nets.py": EXPLODES, "my/more/x.py": "",
                      "my/data.csv": "1", "my/not-a-module.py": "", "my/.cache/y.py": ""},
                     ["my.nets"], ["my/__init__.py", "my/more/x.py", "my/nets.py"],
                     id="a package as a whole"),
        pytest.param({"my/nets.py": "from . import parts\nfrom .below.deep import x\n",
                      "my/parts.py": "", "my/other.py": "", "my/below/deep.py": ""},
                     ["my.nets"], ["my/below/deep.py", "my/nets.py", "my/parts.py"],
                     id="of a folder that is no package, what is imported"),
        pytest.param({"lab/my/__init__.py": "", "lab/my/nets.py": "", "lab/other.py": ""},
                     ["lab.my.nets"], ["lab/my/__init__.py", "lab/my/nets.py"],
                     id="a package in a folder"),
        pytest.param({"nets.py": "from my import nets", "my/__init__.py": "", "my/nets.py": ""},
                     ["nets"], ["my/__init__.py", "my/nets.py", "nets.py"],
                     id="a package that is imported"),
        pytest.param({"nets.py": "from tools import deep", "tools/deep.py": ""}, ["nets"],
                     ["nets.py", "tools/deep.py"], id="a module in the place of a name"),
        pytest.param({"nets.py": "this is (no Python"}, ["nets"], ["nets.py"], id="no Python"),
        pytest.param({"nets.py": "", "wards.py": ""}, ["nets", "wards"], ["nets.py", "wards.py"],
                     id="several"),
        pytest.param({}, ["nowhere.nets"], [], id="nothing"),
    ],
)  # fmt: skip
def test_the_users_own_files_are_taken(
    files: dict[str, str], modules: list[str], taken: list[str], tmp_path: Path
) -> None:
    lay_out(tmp_path, files)
    before = set(sys.modules)
    made = found(tmp_path, *modules)
    assert sorted(made.files) == taken
    assert made.files == {name: files[name].encode() for name in taken}
    assert not made.unsendable
    assert set(sys.modules) == before


def test_modules_that_are_not_among_the_files_are_named(tmp_path: Path) -> None:
    lay_out(tmp_path, {"nets.py": "", "my/__init__.py": ""})
    modules = ("nets", "torch.nn", "my", "my.gone", "nowhere")
    made = found(tmp_path, *modules)
    assert not_among(made.files, modules) == ("torch.nn", "my.gone", "nowhere")


def test_a_file_that_was_written_just_now_is_found(tmp_path: Path) -> None:
    lay_out(tmp_path, {"nets.py": "import parts"})
    assert sorted(found(tmp_path, "nets").files) == ["nets.py"]
    lay_out(tmp_path, {"parts.py": ""})
    assert sorted(found(tmp_path, "nets").files) == ["nets.py", "parts.py"]


def test_installed_packages_stay_wherever_they_are(tmp_path: Path) -> None:
    """A virtual environment may lie in the working folder."""
    inside = tmp_path / "env" / "lib" / "site-packages"
    lay_out(inside, {"installed.py": ""})
    lay_out(tmp_path, {"nets.py": "import installed"})
    made = sources(["nets"], [str(inside), str(tmp_path)])
    assert sorted(made.files) == ["nets.py"]
    assert not sources(["installed"], [str(inside)]).files


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    lay_out(tmp_path, {"my/__init__.py": "", "elsewhere/deep.py": ""})
    (tmp_path / "my" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "my" / "again").symlink_to(tmp_path / "my")
    made = found(tmp_path, "my")
    assert sorted(made.files) == ["my/__init__.py", "my/linked/deep.py"]


@pytest.mark.parametrize(
    ("files", "place", "why"),
    [
        pytest.param({f"nets{EXTENSION_SUFFIXES[0]}": ""}, f"nets{EXTENSION_SUFFIXES[0]}",
                     "is compiled", id="a module"),
        pytest.param({"nets.py": "import fast", "fast.so": ""}, "fast.so", "is compiled",
                     id="one that is imported"),
        pytest.param({"nets/__init__.py": "", "nets/deep/fast.abi3.so": ""},
                     "nets/deep/fast.abi3.so", "is compiled", id="in a package"),
        pytest.param({"nets.py": "import json", "json.py": ""}, "json",
                     "has the name of a module of Python's own", id="a name of Python's"),
    ],
)  # fmt: skip
def test_what_is_no_source_is_named(
    files: dict[str, str], place: str, why: str, tmp_path: Path
) -> None:
    lay_out(tmp_path, files)
    made = sources(["nets"], [str(tmp_path), *sys.path])
    assert made.unsendable == {place: why}


def test_what_lies_in_a_wheel_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "nets-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("nets.py", "")
    assert sources(["nets"], [str(wheel)]).unsendable == {
        "nets": "lies inside of nets-1-py3-none-any.whl"
    }


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    lay_out(tmp_path, {"my/__init__.py": ""})
    (tmp_path / "my" / "gone.py").symlink_to(tmp_path / "nowhere.py")
    assert found(tmp_path, "my").unsendable == {
        "my/gone.py": "cannot be read: No such file or directory"
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("import a, b.c as d", {"a", "b.c"}, id="modules"),
        pytest.param("from a.b import c, d", {"a.b", "a.b.c", "a.b.d"}, id="names of one"),
        pytest.param("from a import *", {"a"}, id="all of one"),
        pytest.param("x = '\\d'\nimport a", {"a"}, id="with something to warn of"),
        pytest.param("from . import x", {"my.deep", "my.deep.x"}, id="beside it"),
        pytest.param("from .y import x", {"my.deep.y", "my.deep.y.x"}, id="out of one beside it"),
        pytest.param("from .. import x", {"my", "my.x"}, id="above it"),
        pytest.param("from ...... import x", set(), id="above everything"),
        pytest.param("x = '\\0'\n\0", set(), id="no Python"),
        pytest.param("(" * 300 + ")" * 300, set(), id="too deep"),
        pytest.param("# coding: latin-1\nimport \xe9", {"é"}, id="another encoding"),
    ],
)
def test_imports_are_read_off_the_text(text: str, names: set[str]) -> None:
    assert set(imports(text.encode("latin-1"), "my/deep/nets.py")) == names


def test_threads_that_parse_at_once_do_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, failures = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * 2

    def parsed(content: bytes) -> ast.Module:
        if failures:
            raise failures.pop()
        return parse(content)

    monkeypatch.setattr(ast, "parse", parsed)
    assert set(imports(b"import here", "nets.py")) == {"here"}


def test_pythons_own_folder_is_left_alone() -> None:
    stdlib = sysconfig.get_path("stdlib")
    assert not sources(["colorsys"], [stdlib]).files
