"""The plan of a loaded config, before anything starts or once its gang is reserved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...prepare.planning import plan_inputs

if TYPE_CHECKING:
    from ...core.planning.measured import Measured
    from ...core.planning.plan import PlanInputs
    from .loaded_config import LoadedConfig


def inputs_of_plan(loaded: LoadedConfig, name: str, like: Measured | None = None) -> PlanInputs:
    """All that decides a plan besides its sites."""
    return plan_inputs(
        loaded.config,
        loaded.inputs,
        name=name,
        cohort=loaded.cohort_size,
        kept_bytes=loaded.bytes_of_updates,
        facts=loaded.model_facts,
        like=like,
    )
