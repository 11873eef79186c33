"""Importing costs nothing until something is used, and nothing leaks into the global namespace."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ["fedpilot", "fedpilot.fabric", "fedpilot.mediator", "fedpilot.federated"]
HEAVY = ["ray", "torch"]


def modules_after(code: str) -> set[str]:
    """Run the code in a process of its own; the modules that it has then."""
    report = "import json, sys; sys.stderr.write('MODULES' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.rpartition("MODULES")[2]))


@pytest.mark.parametrize(
    "package", [*PACKAGES, "fedpilot.cli", "fedpilot.fabric.testing.fake_cluster"]
)
def test_importing_a_package_imports_neither_ray_nor_torch(package: str) -> None:
    loaded = modules_after(f"import {package}")
    assert package in loaded
    assert not loaded & {*HEAVY, "grpc", "matplotlib", "sklearn", "tensorboardX"}


def test_declared_ray_clusters_without_metrics_need_no_prometheus_client() -> None:
    assert "prometheus_client" not in modules_after("import fedpilot.fabric.ray_clusters.processes")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_takes_the_name_of_a_folder(package: str) -> None:
    loaded = modules_after(f"import {package}\nfor name in {package}.__all__:\n"
                           f"    getattr({package}, name)")  # fmt: skip
    assert not loaded & {"common", "fabric", "mediator", "federated"}


def test_importing_the_fabric_imports_nothing_above_it() -> None:
    loaded = modules_after("import fedpilot.fabric, fedpilot.fabric.gangs")
    assert not [m for m in loaded if m.startswith(("fedpilot.mediator", "fedpilot.federated"))]


def test_importing_the_mediator_imports_nothing_above_it() -> None:
    loaded = modules_after(
        "import fedpilot.mediator as m\nfor name in m.__all__:\n    getattr(m, name)"
    )
    assert "fedpilot.mediator.federation.federation_mediator" in loaded
    assert not [m for m in loaded if m.startswith("fedpilot.federated")]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"]])
def test_help_is_fast_since_it_imports_nothing_heavy(arguments: list[str]) -> None:
    loaded = modules_after(
        f"from fedpilot.cli import main\ntry:\n    main({arguments})\nexcept SystemExit as e:\n"
        "    assert not e.code"
    )
    assert not loaded & {*HEAVY, "numpy", "fedpilot.federated.cli.run"}


def test_that_a_gang_does_not_fit_is_said_before_numpy_is_imported() -> None:
    config = ROOT / "configs/ring.yaml"
    loaded = modules_after(
        "from fedpilot.cli import main\ntry:\n"
        f"    main(['plan', {str(config)!r}, '--set', 'resources.workers=4096'])\n"
        "except SystemExit as e:\n    assert e.code == 3"
    )
    assert "fedpilot.federated.core.planning.feasibility" in loaded
    assert not loaded & {*HEAVY, "numpy"}


def test_reading_a_config_does_not_import_ray() -> None:
    loaded = modules_after("from fedpilot import load_config; load_config")
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_does_not_exist_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = importlib.import_module(package).no_such_thing


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_every_error_of_a_package_has_the_packages_root(package: str) -> None:
    module = importlib.import_module(f"{package}.errors")
    errors = [e for e in vars(module).values() if isinstance(e, type) and issubclass(e, Exception)]
    roots = [e for e in errors if e.__base__ is Exception]
    assert len(roots) == 1
    assert all(issubclass(e, roots[0]) for e in errors)


def test_what_draws_curves_is_imported_beside_the_run() -> None:
    assert "matplotlib.figure" in modules_after(
        "import threading\n"
        "from fedpilot.federated.federation.report import curves\n"
        "curves.prepare()\n"
        "[each.join(60) for each in threading.enumerate() if each.daemon]"
    )


def test_each_test_is_below_a_folder_that_is_tested(pytestconfig: pytest.Config) -> None:
    root = Path(__file__).parents[2]
    named = [root / each for each in pytestconfig.getini("testpaths")]
    tests = {each for each in root.glob("tests/*/**/test_*.py")}
    assert tests
    assert not [each for each in tests if not any(each.is_relative_to(path) for path in named)]


def test_a_config_that_its_schema_refuses_is_refused_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("federation: {rounds: -1}")
    loaded = modules_after(
        "from fedpilot.federated import ConfigError, Federation\n"
        f"try:\n    Federation({str(tmp_path / 'bad.yaml')!r})\n"
        "except ConfigError as error:\n    assert 'rounds' in str(error)\n"
        "else:\n    raise SystemExit(1)"
    )
    assert not loaded & set(HEAVY)
