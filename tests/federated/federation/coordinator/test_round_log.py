"""The log of a run knows the rows of its latest rounds, whatever became of the rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from federations import Lab
from fedpilot.federated.core.planning.measured import PACE_ROUNDS
from fedpilot.federated.federation.coordinator.round_log import RoundLog
from fedpilot.federated.federation.run_folder.folder import RunFolder
from fedpilot.federated.federation.setup.global_model import GlobalModel


def add(log: RoundLog, *numbers: int) -> None:
    for number in numbers:
        row: dict[str, Any] = {"round": number, "accuracy": 0.5}
        model = GlobalModel(number, {"w": np.zeros(1, np.float32)}, {}, "")
        log.add(row, model)
        log.checkpoint(model)
        log.flush()


def rounds(log: RoundLog) -> list[int]:
    return [row["round"] for row in log.latest]


def test_the_latest_rows_are_those_of_rounds_that_count(lab: Lab) -> None:
    config = lab.federation().loaded.config
    with RunFolder.create(lab.runs, "r", "") as folder:
        log = RoundLog(config, folder, "identity")
        with log.writing():
            add(log, 1, 2, 3)
            assert rounds(log) == [1, 2, 3]
            log.go_back(2)
            assert rounds(log) == [1, 2]
            add(log, 3, 4, 5, 6, 7)
            assert rounds(log) == [3, 4, 5, 6, 7]
            assert len(log.latest) == PACE_ROUNDS
        resumed = RoundLog(config, folder, "identity")
        assert rounds(resumed) == []
        resumed.read_back()
        assert rounds(resumed) == [3, 4, 5, 6, 7]
