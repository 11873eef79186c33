"""Reads run folders into what a comparison needs of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import load_config
from ..config.resolved import EXPLAINING
from ..errors import RunRefused
from ..federation.run_folder.folder import RunFolder, find_run, is_locked, list_runs
from .comparison import RunFacts, flat, points_of, records_of

if TYPE_CHECKING:
    from pandas import DataFrame


def read_runs(root: Path, names: Sequence[str] = ()) -> list[RunFacts]:
    """Runs of a folder, by id or by the path of their own; all in the folder without names.

    The name of a sweep stands for its runs. Raises RunRefused if there is no such run, or none.
    """
    found: dict[Path, None] = {}
    for name in names:
        inside = next((path for path in (root / name, Path(name)) if list_runs(path)), None)
        if inside is None:
            found[find_run(root, name)] = None
        else:
            found |= dict.fromkeys((inside / run_id).resolve() for run_id in list_runs(inside))
    if not names:
        found = dict.fromkeys((root / run_id).resolve() for run_id in list_runs(root))
    if not found:
        raise RunRefused(f"there are no runs in {root}; `fedpilot runs list` shows those of `runs`")
    return [read_run(path) for path in found]


def read_run(path: Path) -> RunFacts:
    """A run's facts; ConfigError for a config that this version does not read."""
    folder = RunFolder(path)
    manifest, config = folder.manifest(), load_config(path / "config.yaml")
    values = flat(config.model_dump(mode="json", exclude_none=True))
    status = manifest.get("status", "interrupted")
    return RunFacts(
        run_id=folder.run_id,
        folder=str(path),
        status="interrupted" if status == "running" and not is_locked(path) else status,
        config={key: value for key, value in values.items() if key not in EXPLAINING},
        seed=config.run.random_seed,
        rows=folder.rows(),
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
