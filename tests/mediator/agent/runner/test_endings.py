"""How a runner ended is said by signal, exit code, or lack of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.mediator.agent.runner import process
from fedpilot.mediator.agent.runner.process import how_it_ended, oom_kills


@pytest.mark.parametrize(
    ("code", "out_of_memory", "said"),
    [
        (-9, False, "was killed by SIGKILL"),
        (-9, True, "was killed by SIGKILL: the machine was out of memory"),
        (-11, True, "was killed by SIGSEGV"),
        (-99, False, "was killed by signal 99"),
        (1, True, "ended with exit code 1"),
        (None, False, "ended without a word"),
    ],
)
def test_the_words(code: int | None, out_of_memory: bool, said: str) -> None:
    assert how_it_ended(code, out_of_memory=out_of_memory) == said


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        pytest.param(
            "0::/a/b\n",
            {"group/a/b/memory.events": "oom 5\noom_kill 3\n", "vmstat": "oom_kill 9\n"},
            3,
            id="version 2",
        ),
        pytest.param(
            "7:cpu,memory:/a\n0::/x\n",
            {"group/memory/a/memory.oom_control": "under_oom 0\noom_kill 2\n"},
            2,
            id="version 1",
        ),
        pytest.param("0::/a\n", {"vmstat": "pgfault 1\noom_kill 9\n"}, 9, id="the whole machine"),
        pytest.param("spoilt", {}, 0, id="nothing is known"),
    ],
)
def test_the_count_of_the_kernel(
    groups: str,
    files: dict[str, str],
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(
        process, "SYSTEM", (tmp_path / "group", tmp_path / "own", tmp_path / "vmstat")
    )
    assert oom_kills() == count
