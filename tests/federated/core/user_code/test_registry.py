"""A `dataset_type` finds its loader, and a typo finds what was meant."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpilot.federated import data
from fedpilot.federated.core.user_code.registry import (
    BadOption,
    BadPath,
    Registry,
    RegistryError,
    UnknownName,
    load_dotted,
)


def tiny(*, samples: int, spread: float = 1.0) -> data.Dataset:
    x = np.full((samples, 2), spread, dtype=np.float32)
    return data.Dataset(name="tiny", x=x, y=np.zeros(samples, dtype=np.int64), num_classes=1)


class NotAFunction:
    value = 3


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's, on the path."""
    name = "my_loaders"
    (tmp_path / f"{name}.py").write_text(
        "import numpy as np\n"
        "from fedpilot.federated.data import Dataset\n"
        "def load_ones(*, samples=3):\n"
        "    return Dataset(name='ones', x=np.ones((samples, 1), np.float32),\n"
        "                   y=np.zeros(samples, np.int64), num_classes=1)\n"
        "def load_nothing():\n"
        "    return None\n"
        "NUMBER = 3\n"
        "class Loaders:\n"
        "    @staticmethod\n"
        "    def load_twos():\n"
        "        return load_ones(samples=2)\n"
    )
    (tmp_path / "broken_syntax.py").write_text("def f(:\n")
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_the_built_ins_are_listed_in_order() -> None:
    listed = data.available()
    assert list(listed) == sorted(listed)
    assert {"digits", "synthetic", "npz", "idx", "cifar10", "cifar100"} <= set(listed)


@pytest.mark.parametrize("name", ["digits", "synthetic", "npz", "idx", "cifar10", "cifar100"])
def test_every_built_in_declares_its_options(name: str) -> None:
    assert callable(data.resolve(name))
    assert data.options(name)


def test_listing_and_loading_data_never_imports_torch() -> None:
    # The parent package may import PyTorch for its public names: leave its __init__ out.
    package = Path(data.__file__).resolve().parents[1]
    code = (
        "import sys, types, fedpilot\n"
        "parent = types.ModuleType('fedpilot.federated')\n"
        f"parent.__path__ = [{str(package)!r}]\n"
        "sys.modules['fedpilot.federated'] = parent\n"
        "from fedpilot.federated import data, models\n"
        "assert 'sklearn' not in sys.modules\n"
        "data.available(), models.available(), data.load('synthetic')\n"
        "assert 'torch' not in sys.modules\n"
    )
    source = str(package.parent / "src")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={"PYTHONPATH": source})


def test_a_dotted_path_is_a_loader(module: str) -> None:
    assert len(data.load(f"{module}:load_ones", {"samples": 4}).y) == 4
    assert len(data.load(f"{module}:Loaders.load_twos").y) == 2


@pytest.mark.parametrize(
    ("path", "told"),
    [
        pytest.param(
            "my_loaders:load_one",
            r"'my_loaders' has no 'load_one' \(did you mean 'load_ones'\?\)",
            id="a misspelt attribute",
        ),
        pytest.param(
            "my_loaders:Loaders.load_two",
            r"'Loaders' has no 'load_two' .*'load_twos'",
            id="a misspelt attribute of an attribute",
        ),
        pytest.param("my_laoders:load", "no module 'my_laoders' on the", id="a misspelt module"),
        pytest.param("my_loaders.sub:f", "no module 'my_loaders.sub'", id="no such submodule"),
        pytest.param("needs_more:f", "needs 'surely_not_installed', which", id="a missing need"),
        pytest.param("broken_syntax:f", "failed with SyntaxError", id="a module that is broken"),
        pytest.param("my_loaders:NUMBER", "a function or a class, this is 3", id="no function"),
        pytest.param("my_loaders.py:load_ones", "write 'my_loaders:load_ones'", id="a file"),
        pytest.param("sub/my_loaders.py:f", "write 'sub.my_loaders:f'", id="a file in a folder"),
        pytest.param("my_loaders:", "write 'module:attribute'", id="no attribute"),
        pytest.param(":load_ones", "write 'module:attribute'", id="no module"),
        pytest.param("..x:f", "'..x' is not the name of a module", id="a relative module"),
        pytest.param("my loaders:f", "is not the name of a module", id="spaces"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_ends(module: str, path: str, told: str) -> None:
    with pytest.raises(BadPath, match=told) as caught:
        data.load(path)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


NOBODYS = "came with Python or installs packages, and holds no model"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        pytest.param("subprocess:check_output", NOBODYS, id="Python's own"),
        pytest.param("os.path:join", NOBODYS, id="a module of a package of Python's own"),
        pytest.param("builtins:eval", NOBODYS, id="built into Python"),
        pytest.param("pip:main", NOBODYS, id="an installer"),
        pytest.param("reaching:os.system", f"'os' is a module, and {NOBODYS}", id="through it"),
        pytest.param("reaching:np.load", "'np' is a module.* 'numpy:load'", id="through another"),
        pytest.param("reaching:np", "'np' is a module.* 'numpy:name'", id="to a module"),
        pytest.param("reaching:run", f"'run' is of 'subprocess', which {NOBODYS}", id="imported"),
        pytest.param("reaching:load", "'load' is defined in 'numpy'", id="another package's"),
        pytest.param("reaching:Folder.unlink", "'unlink' is of 'pathlib'", id="inherited"),
        pytest.param("reaching:TABLE.get", "'get' is of 'builtins'", id="a method of a value"),
        pytest.param("reaching:mine.__globals__.get", "'__globals__' is a name", id="inside"),
        pytest.param(
            "fedpilot.federated.data.npz:np.f2py.os.system", "'np' is a module", id="by way of ours"
        ),
    ],
)
def test_a_path_leads_nowhere_but_into_the_module_it_names(
    path: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaching(tmp_path, monkeypatch)
    with pytest.raises(BadPath, match=told):
        load_dotted(path)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("reaching:mine", id="a function"),
        pytest.param("reaching:Folder", id="a class of another's kind"),
        pytest.param("reaching:Folder.made", id="what it adds"),
        pytest.param("reaching:sorting", id="what functools makes"),
        pytest.param("reaching:cached", id="what a decorator makes"),
        pytest.param("reaching:called", id="what a call of another's function makes"),
        pytest.param("reaching:beside", id="another module's of the user's"),
        pytest.param("torch.nn.functional:cross_entropy", id="a loss"),
        pytest.param("torch.nn.functional:max_pool2d", id="what is made of others"),
        pytest.param("torch.nn.functional:gelu", id="what is written in C"),
        pytest.param("torch.nn:Linear", id="what a package gathers from its modules"),
    ],
)
def test_a_path_leads_to_what_a_module_has_of_its_own(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaching(tmp_path, monkeypatch)
    assert callable(load_dotted(path))


def reaching(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's that imports much."""
    (folder / "reaching.py").write_text(
        "import functools, os, pathlib\n"
        "import numpy as np\n"
        "from numpy import load\n"
        "from subprocess import run\n"
        "from reaching_beside import beside\n"
        "TABLE = {}\n"
        "class Folder(type(pathlib.Path())):\n"
        "    @classmethod\n"
        "    def made(cls): return cls()\n"
        "def mine(): pass\n"
        "cached = functools.cache(mine)\n"
        "called = functools.lru_cache(3)\n"
        "sorting = functools.partial(sorted, reverse=True)\n"
    )
    (folder / "reaching_beside.py").write_text("def beside(): pass\n")
    for name in ("reaching", "reaching_beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))


def test_a_path_with_a_dot_for_a_colon_is_shown_as_it_should_be() -> None:
    for ask in (load_dotted, data.load):
        with pytest.raises(BadPath, match=r"such as 'my_package\.module:load'"):
            ask("my_package.module.load")


def test_a_loader_that_gives_no_data_set_is_refused(module: str) -> None:
    with pytest.raises(data.DataError, match="gave NoneType, not a Dataset"):
        data.load(f"{module}:load_nothing")


def test_an_unknown_name_gets_the_nearest_and_all() -> None:
    with pytest.raises(UnknownName) as caught:
        data.load("Digit")
    text = str(caught.value)
    assert "no data set is called 'Digit' (did you mean 'digits'?)" in text
    assert ", ".join(data.available()) in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        pytest.param(
            "digits",
            {"imgae": True},
            r"'imgae' does not exist \(did you mean 'image'\?\); it "
            "takes image, dtype",
            id="a misspelt option",
        ),
        pytest.param("npz", {}, "option 'path' is required", id="a missing option"),
        pytest.param("synthetic", {"samples": "many"}, "'samples' cannot be 'many'", id="a word"),
        pytest.param("synthetic", {"samples": 1.5}, "'samples' cannot be 1.5", id="a fraction"),
        pytest.param("digits", {"dtype": "float16"}, "'float32' or 'float64'", id="another type"),
        pytest.param("idx", {"path": 3}, "'path' cannot be 3", id="a number for a path"),
        pytest.param("synthetic", {"zzz": 1}, "'zzz' does not exist; it takes", id="nothing near"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_loaded(
    name: str, options: dict[str, Any], told: str
) -> None:
    for ask in (data.load, data.check):
        with pytest.raises(BadOption, match=told) as caught:
            ask(name, options)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_registered_loader_is_found_by_its_name() -> None:
    registry: Registry[data.Dataset] = Registry("data set", {"digits": "nowhere:digits"})
    assert registry.register("tiny")(tiny) is tiny
    assert registry.available() == ("digits", "tiny")
    assert registry.registered("tiny") is tiny
    assert registry.registered("digits") is None
    assert registry.options("tiny") == ("samples", "spread")
    assert len(registry.call("tiny", {"samples": "5"}).y) == 5


def test_a_name_is_taken_once() -> None:
    registry: Registry[data.Dataset] = Registry("data set", {"digits": "nowhere:digits"})
    registry.register("tiny")(tiny)
    registry.register("tiny")(tiny)
    for taken in ("tiny", "digits"):
        with pytest.raises(RegistryError, match=f"{taken!r} is registered already"):
            registry.register(taken)(lambda: tiny(samples=1))
    for unusable in ("a:b", ""):
        with pytest.raises(RegistryError, match="cannot name a data set"):
            registry.register(unusable)(tiny)


def test_options_without_a_usable_type_are_passed_as_they_are() -> None:
    def loose(*, plain, array: np.ndarray[Any, Any] | None = None, **rest):  # type: ignore[no-untyped-def]
        return plain, array, rest

    registry: Registry[Any] = Registry("thing", {})
    registry.register("loose")(loose)
    options = {"plain": "1", "array": "[]", "more": 2}
    assert registry.call("loose", options) == ("1", "[]", {"more": 2})
    assert registry.options("loose") == ("plain", "array")
    registry.register("in C")(dict)
    assert registry.call("in C", {"a": 1}) == {"a": 1}


def test_types_that_only_a_type_checker_knows_are_not_checked() -> None:
    def guarded(*, count: OnlyForTypeCheckers) -> object:  # type: ignore[name-defined]  # noqa: F821
        return count

    registry: Registry[object] = Registry("thing", {})
    registry.register("guarded")(guarded)
    assert registry.call("guarded", {"count": "7"}) == "7"
