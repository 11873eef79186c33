"""What tests of runs begin with: federations, and runs that nothing happened to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from calm_runs import CalmRuns
from federations import EXECUTIONS, USER_CODE, Lab, Undisturbed, computed
from fedpilot.federated import RunResult
from fedpilot.federated.engine import journal as journal_module
from records import Archive, written_at_once


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """PyTorch computes in one thread, since other tests run beside these.

    Fake workers are threads of this process, and how many threads MKL uses is one number for all
    of them: a coordinator that restores another number would change their bits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def user_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a module of the user's, imported once in this process."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "users_models_for_tests.py").write_text(USER_CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "users_models_for_tests"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as undo:
        yield Lab(tmp_path, undo)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalmRuns]:
    with ExitStack() as undo:
        yield CalmRuns(Lab(tmp_path_factory.mktemp("calm"), undo))


@pytest.fixture
def reference(calm: CalmRuns) -> RunResult:
    return calm.run(resources__workers=1)


@pytest.fixture
def always_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "worth_saving", lambda *_args: True)


@pytest.fixture(scope="module", params=EXECUTIONS)
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    """The keys of an execution, and the run of one worker that nothing happened to."""
    keys = computed(request.param)
    with ExitStack() as undo:
        lab = Lab(tmp_path_factory.mktemp("undisturbed"), undo)
        return keys, lab.run(**keys, resources__workers=1)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with ExitStack() as undo:
        yield Archive(tmp_path, undo)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to, with its last two checkpoints; copied by those who spoil."""
    with written_at_once(), ExitStack() as undo:
        return Archive(tmp_path_factory.mktemp("finished"), undo).record("base")


@pytest.fixture
def base(archive: Archive, finished: Path) -> Path:
    archive.runs.mkdir()
    return Path(shutil.copytree(finished, archive.runs / "base"))
