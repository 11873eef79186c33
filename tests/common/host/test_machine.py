"""This computer's CPUs, GPUs and load."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpilot.common.host.machine import (
    Load,
    _cpu_quota,
    load,
    usable_cpus,
    usable_gpus,
)


def test_there_is_a_cpu_to_run_this() -> None:
    assert usable_cpus() >= 1


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({"cpu.max": "150000 100000"}, 1.5, id="version 2 with a quota"),
        pytest.param({"cpu.max": "max 100000"}, None, id="version 2 without a quota"),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2.0,
            id="version 1 with a quota",
        ),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
            id="version 1 without a quota",
        ),
        pytest.param({}, None, id="no control groups"),
    ],
)
def test_the_quota_of_the_control_group(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        pytest.param(None, 2, id="all devices"),
        pytest.param("1", 1, id="one is visible"),
        pytest.param("", 0, id="none is visible"),
        pytest.param("0,1,2", 2, id="no more than there are"),
    ],
)
def test_gpus_are_devices_that_cuda_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert usable_gpus(tmp_path) == count


def test_how_busy_it_is_is_said_in_words() -> None:
    assert str(Load(16.25, 2, 15)) == "load 16.2 on 2 CPUs, workers at niceness 15"
    assert str(Load(0.0, 1)) == "load 0.0 on 1 CPU"
    assert load(3).niceness == 3
    assert load().cpus == usable_cpus()
