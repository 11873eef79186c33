"""SweepFolder: the folder of a sweep, with its config, its trials and their run folders."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from fedpilot.common.text.amounts import counted

from ..config import RunConfig, load_config, to_yaml
from ..errors import ConfigError, RunRefused
from ..federation.run_folder.folder import RunFolder, check_run_id, is_locked
from .trials import MOST, SweepTrial, as_yaml, count_of, trials_of

FORMAT = 1
CONFIG, TRIALS = "sweep.yaml", "sweep.json"


class SweepFolder:
    """A sweep's folder, locked while this object is open."""

    def __init__(self, path: Path, trials: Sequence[SweepTrial], search: Sequence[str]) -> None:
        """Lock the folder; RunRefused if another process trains the sweep."""
        self.path = path
        self.trials = tuple(trials)
        self.search = tuple(search)
        """Folders of the user's own modules."""
        try:
            self._lock = RunFolder.locked(path)
        except RunRefused:
            raise RunRefused(f"another process trains the sweep {path.name}") from None

    @classmethod
    def create(cls, root: Path, name: str, config: RunConfig, search: Sequence[str]) -> Self:
        """Make the folder of a new sweep; raises RunRefused if there is one of this name.

        `config` is checked at every trial, and nothing is made if it is wrong: ConfigError.
        """
        trials = checked_trials(config)
        path = root / check_run_id(name)
        facts = {"format": FORMAT, "search": list(search), "trials": _listed(trials)}
        aside = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
        try:
            if path.exists():
                raise FileExistsError
            aside.mkdir(parents=True)
            (aside / TRIALS).write_text(json.dumps(facts, indent=2) + "\n")
            (aside / CONFIG).write_text(to_yaml(config))
            aside.rename(path)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            if path.exists():
                raise RunRefused(f"{path} exists already; choose another name") from None
            raise RunRefused(f"{path} cannot be made: {error.strerror or error}") from error
        return cls(path, trials, search)

    @classmethod
    def open(cls, root: Path, name: str) -> Self:
        """Open a sweep by its name in `root`, or by its path; RunRefused if there is none."""
        places = (root / name, Path(name))
        path = next((each for each in places if (each / CONFIG).is_file()), None)
        if path is None:
            there = sorted(each.parent.name for each in root.glob(f"*/{CONFIG}"))
            latest = ", ".join(there[-5:]) or "none"
            raise RunRefused(f"no sweep {name!r} in {root}; the latest there: {latest}")
        try:
            facts = json.loads((path / TRIALS).read_text())
            written, trials, search = facts["format"], facts["trials"], facts["search"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunRefused(f"{path / TRIALS} cannot be read: {error}") from error
        if written != FORMAT:
            raise RunRefused(
                f"{path} has format {written}, this fedpilot reads {FORMAT}: use the version of "
                "fedpilot that made it"
            )
        found = trials_of_config(load_config(path / CONFIG))
        if trials != _listed(found):
            raise RunRefused(
                f"the trials of {path / CONFIG} are no longer those in {TRIALS}: for others, begin "
                "another sweep"
            )
        return cls(path, found, search)

    def config_of(self, trial: SweepTrial) -> RunConfig:
        """The config of a trial, whose run folder lies in this one."""
        folder = f"outputs.folder={as_yaml(str(self.path))}"
        return load_config(self.path / CONFIG, [*trial.overrides, folder])

    def status(self, trial: SweepTrial) -> str:
        """`waiting`, or the status of its run."""
        path = self.path / trial.run_id
        if not (path / "config.yaml").is_file():
            return "waiting"
        try:
            status = str(RunFolder(path).manifest().get("status", "interrupted"))
        except ValueError:
            return "interrupted"
        return "interrupted" if status == "running" and not is_locked(path) else status

    def make_room(self, trial: SweepTrial) -> None:
        """Remove what a process left that died as it made a trial's folder."""
        path = self.path / trial.run_id
        if path.exists() and not (path / "config.yaml").is_file():
            shutil.rmtree(path)

    def close(self) -> None:
        """Release the lock; may be called twice."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def trials_of_config(config: RunConfig) -> list[SweepTrial]:
    """The trials of a config; ConfigError if it has no sweep, or a too large one."""
    if config.sweep is None:
        allowed = "a section with axes or points; `fedpilot run` trains a single run"
        raise ConfigError.about("sweep", found="no such section", allowed=allowed)
    if (count := count_of(config.sweep)) > MOST:
        allowed = f"at most {counted(MOST, 'trial')}; `sweep.draws` draws some of them"
        raise ConfigError.about("sweep", found=counted(count, "trial"), allowed=allowed)
    return trials_of(config.sweep, config.run.random_seed)


def checked_trials(config: RunConfig) -> list[SweepTrial]:
    """The trials of a config, each of which is a valid config; ConfigError names the first point
    that is none."""
    from ..config import parse_config

    trials, values = trials_of_config(config), config.model_dump(mode="json", exclude_none=True)
    seen: set[object] = set()
    for trial in trials:
        if {trial.number, ("seed", trial.seed)} <= seen:
            continue
        seen |= {trial.number, ("seed", trial.seed)}
        try:
            parse_config(values, trial.overrides)
        except ConfigError as error:
            of_point = f"point {trial.number} of the sweep"
            raise ConfigError(
                [
                    replace(problem, where=_moved(problem.where, of_point))
                    for problem in error.problems
                ]
            ) from error
    return trials


def _moved(where: str, of_point: str) -> str:
    given = where.removeprefix("--set ")
    return f"{of_point}, {given}" if given != where else of_point


def _listed(trials: Sequence[SweepTrial]) -> list[dict[str, Any]]:
    return [
        {"run_id": each.run_id, "point": dict(each.point), "seed": each.seed} for each in trials
    ]
