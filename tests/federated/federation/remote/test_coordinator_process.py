"""What a mediator's coordinator says of its own machine: nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.errors import ConfigError
from fedpilot.federated.federation.remote.coordinator_process import _telling_nothing_of_files
from fedpilot.federated.prepare.inputs.local_data import gather

DATA = {"data_distribution_kind": "iid"}


def told_of(**data: Any) -> str:
    config = RunConfig.model_validate(
        {
            "federation": {"number_of_clients": 2},
            "model": {"model_type": "mlp"},
            "data": {**DATA, **data},
        }
    )
    with pytest.raises(ConfigError) as refused, _telling_nothing_of_files(config):
        gather(config)
    return str(refused.value)


def test_nobody_learns_which_files_are_on_the_mediators_machine(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("root:x:0:0")
    np.savez(tmp_path / "other.npz", secret=np.zeros(3))
    (tmp_path / "folder").mkdir()
    names = ("missing", "text", "other.npz", "folder")
    told = {told_of(dataset_type="npz", options={"path": str(tmp_path / each)}) for each in names}
    assert len(told) == 1
    assert "npz" in told.pop()


def test_what_is_wrong_with_a_config_itself_is_said() -> None:
    assert "pathh" in told_of(dataset_type="npz", options={"pathh": "a"})
