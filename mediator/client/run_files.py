"""Fetches the files of a run from a mediator into a local folder.

The mediator is not trusted: names that could lead out of the folder, or files that exceed the free
space, are refused before anything is written.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from ..errors import BadRequest, MediatorFailed, RequestRefused
from .client import MediatorClient, RunFile

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DEEPEST = 8
"""The most parts of a path; a run's files have up to three."""
ATTEMPTS = 5
"""Attempts to fetch a file that changes meanwhile."""


def safe_path(name: str) -> PurePosixPath:
    """Parse a path that stays in its folder; MediatorFailed for any other."""
    parts = name.split("/")
    if len(parts) > DEEPEST or not all(_PART.fullmatch(part) for part in parts):
        raise MediatorFailed(
            f"the mediator names a file {name[:80]!a}, which no file of a run is called: "
            "nothing was fetched"
        )
    return PurePosixPath(*parts)


def checked(files: Sequence[RunFile], free_bytes: int) -> dict[PurePosixPath, RunFile]:
    """Each file's safe path; MediatorFailed for hostile names, BadRequest for lack of room."""
    places: dict[PurePosixPath, RunFile] = {}
    spelled: set[str] = set()
    for file in files:
        place = safe_path(file.path)
        if str(place).lower() in spelled:
            raise MediatorFailed(f"the mediator names {place} twice: nothing was fetched")
        spelled.add(str(place).lower())
        places[place] = file
    for place in places:
        for folder in place.parents:
            if folder in places:
                raise MediatorFailed(f"the mediator says that {folder} is a file and a folder")
    total = sum(file.size for file in files)
    if total > free_bytes:
        raise BadRequest(f"the files have {total} bytes, and there is room for {free_bytes}")
    return places


def fetch_run(
    client: MediatorClient,
    run: str,
    to: Path,
    tell: Callable[[PurePosixPath, int], None] = lambda place, size: None,
) -> list[PurePosixPath]:
    """Fetch a run's files, each atomically; BadRequest unless the folder is new or empty."""
    files = client.list_files(run)
    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise BadRequest(f"{to} holds something already; name a folder that is new or empty")
        to.mkdir(parents=True, exist_ok=True)
        places = checked(files, shutil.disk_usage(to).free)
        for place, file in sorted(places.items()):
            tell(place, file.size)
            (to / place).parent.mkdir(parents=True, exist_ok=True)
            _bring(client, run, file, to / place)
    except OSError as error:
        raise BadRequest(f"{to} cannot be written: {error.strerror or error}") from error
    return sorted(places)


def _bring(client: MediatorClient, run: str, file: RunFile, path: Path) -> None:
    """Fetch one file; retry if the run changes it meanwhile."""
    aside = path.with_name(f".{path.name}.part")
    for attempt in range(ATTEMPTS):
        try:
            with aside.open("wb") as part:
                client.read_file(run, file, part)
            aside.replace(path)
            return
        except (MediatorFailed, RequestRefused):
            now = {each.path: each for each in client.list_files(run)}
            if attempt == ATTEMPTS - 1 or now.get(file.path, file) == file:
                raise
            file = now[file.path]
        finally:
            aside.unlink(missing_ok=True)
