"""What holds for all tests: random inputs, the order of files, and that no file leaves a trace."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import own_process
from fedpilot.fabric.testing.fake_cluster import ended_workers_are_done
from power_cuts import Disk
from untouched import untouched

settings.register_profile("default", deadline=None, max_examples=30)
settings.register_profile("ci", deadline=None, max_examples=50)
settings.register_profile(
    "soak", deadline=None, max_examples=5_000, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
# Matplotlib keeps its own: making the cache of fonts anew takes long, and it says so.
os.environ.setdefault("MPLCONFIGDIR", str(_caches / "matplotlib"))


def _kernels() -> Path:
    """Where compiled kernels are kept from one run of the tests to the next.

    Numba compares only a kernel's own file, so the folder's name has a digest of all their files.
    """
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=8)
    for room in ("federated/engine/compiled", "federated/core/execution", "federated/core/sums"):
        for file in sorted((root / room).glob("*.py")):
            digest.update(file.read_bytes())
    return root / ".pytest_cache" / "kernels" / digest.hexdigest()


# Before anything reads the environment, so that commands and Ray workers inherit it. Tests that run
# side by side share one cache: a kernel is compiled once for all of them.
os.environ["XDG_CACHE_HOME"] = os.environ.setdefault("TESTS_CACHE", str(_kernels()))
_folder = tempfile.mkdtemp(prefix="tests-of-fedpilot-")
os.environ["XDG_STATE_HOME"] = _folder  # where the manager of a Ray keeps what outlives that
# Tests that run side by side see temporary folders of their own only, and what is left there.
# Their paths are short, since there are sockets in them. A file's own process shares its parent's.
_shared = os.environ.setdefault("TESTS_TMPDIR", tempfile.gettempdir())
_temporary = "" if own_process.CHANNEL in os.environ else tempfile.mkdtemp(prefix="w", dir=_shared)
if _temporary:
    os.environ["TMPDIR"] = tempfile.tempdir = _temporary
    os.chmod(_temporary, 0o755)  # PostgreSQL runs as another user
    os.mkdir(os.path.join(_temporary, "ray"))  # where Ray's own test cluster writes its address
# Commands inherit that a signal is ignored, as under `nohup` or a shell's `&`, and some tests send
# it to them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
# Who ends the tests, as `timeout` does, ends the Rays that they have started.
signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--file-order SEED` shows which files depend on those before them."""
    told = "run the test files in a random order, that of this seed"
    parser.addoption("--file-order", type=int, metavar="SEED", help=told)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files into the order that was asked for; the tests of a file stay together."""
    seed = config.getoption("--file-order")
    if seed is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        places = {path: place for place, path in enumerate(files)}
        items.sort(key=lambda item: places[item.path])


def pytest_configure(config: pytest.Config) -> None:
    """Files that change their process get one of their own."""
    own_process.register(config)


@pytest.fixture(scope="module", autouse=True)
def _leaves_no_trace(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each file leaves environment, hooks and threads as it found them."""
    if request.node.get_closest_marker("own_process"):
        yield
    else:
        with untouched():
            yield


@pytest.fixture(autouse=True)
def _ended_workers_are_done() -> Iterator[None]:
    """No fake worker of a test draws from PyTorch's generator during the next one."""
    yield
    assert not (busy := ended_workers_are_done(60)), f"these workers compute still: {busy}"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """What is synced and renamed from now on."""
    return Disk(monkeypatch)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The tests' cache goes when they are done."""
    shutil.rmtree(_folder, ignore_errors=True)
    if _temporary:
        shutil.rmtree(_temporary, ignore_errors=True)
