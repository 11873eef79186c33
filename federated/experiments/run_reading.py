"""Reads run folders into what a comparison needs of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpilot.common.text.amounts import listed

from ..config import load_config
from ..config.resolved import EXPLAINING
from ..errors import ConfigError, RunRefused
from ..federation.run_folder.folder import RunFolder, find_run, is_locked, list_runs
from .comparison import RunFacts, flat, points_of, records_of

CHOSEN = ("training.execution", "training.chunk_size")
"""Keys that make no difference where fedpilot chose their values."""

if TYPE_CHECKING:
    from pandas import DataFrame


def read_runs(
    root: Path, names: Sequence[str] = (), left_out: list[str] | None = None
) -> list[RunFacts]:
    """Runs of a folder, by id or by the path of their own; all in the folder without names.

    The name of a sweep stands for its runs. `left_out` gets why runs that were not named cannot be
    read. Raises RunRefused if there is no such run, none at all, or one that cannot be read.
    """
    found: dict[Path, None] = {}
    for name in names:
        for place in (root / name, Path(name)):
            if not (place / "config.yaml").is_file() and (inside := list_runs(place)):
                found |= dict.fromkeys((place / run_id).resolve() for run_id in inside)
                break
            if (place / "config.yaml").is_file():
                found[place.resolve()] = None
                break
        else:
            find_run(root, name)  # which says what there is
    if names:
        return [read_run(path) for path in found]
    runs = readable([(root / run_id).resolve() for run_id in list_runs(root)], left_out)
    if not runs:
        sweeps = sorted({path.parent.parent.name for path in root.glob("*/*/config.yaml")})
        named = f"; name a sweep: {listed(sweeps)}" if sweeps else ""
        raise RunRefused(f"there are no runs in {root}{named}")
    return runs


def readable(paths: Sequence[Path], left_out: list[str] | None = None) -> list[RunFacts]:
    """The runs of some folders that can be read; `left_out` gets why the others cannot."""
    runs = []
    for path in paths:
        try:
            runs.append(read_run(path))
        except RunRefused as error:
            if left_out is None:
                raise
            left_out.append(str(error))
    return runs


def read_run(path: Path) -> RunFacts:
    """A run's facts; RunRefused if its files cannot be read."""
    folder = RunFolder(path)
    try:
        manifest, config = folder.manifest(), load_config(path / "config.yaml")
        rows = folder.rows()
    except (ConfigError, OSError, ValueError) as error:
        raise RunRefused(f"{path} cannot be read: {error}") from error
    values = flat(config.model_dump(mode="json", exclude_none=True))
    chosen = config.training.execution == "auto" or config.training.execution_reason is not None
    ignored = {*EXPLAINING, *(CHOSEN if chosen else ())}
    status = manifest.get("status", "interrupted")
    return RunFacts(
        run_id=folder.run_id,
        folder=str(path),
        status="interrupted" if status == "running" and not is_locked(path) else status,
        config={key: value for key, value in values.items() if key not in ignored},
        seed=config.run.random_seed,
        rows=rows,
        seconds=manifest.get("seconds"),
    )


def runs(*names: str, folder: str | Path = "runs") -> DataFrame:
    """Runs of a folder as a pandas data frame: one row for each, all of them without names.

    A row has the run's id, status and seed, every config key in which the runs differ, and the last
    and the best value of each metric. The name of a sweep stands for its runs. Raises RunRefused if
    there are no such runs, ImportError without pandas.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError("fedpilot.runs() needs pandas: pip install pandas") from error
    found = read_runs(Path(folder), names)
    return DataFrame(records_of(points_of(found)))
