"""Survey: a process beside the agent that reads, once, what the declared data sets hold.

This module reads files and lists of ids. An entry point of the group `fedpilot.site_surveys` reads
what needs a loader (a column, samples, labels): it gets a declaration as JSON values and returns
`{"samples": {client: number}, "labels": {label: number}}`, and if the admin discloses anything of
them `"client_labels": {client: [number of each label]}`. It may import PyTorch, unlike the agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ...core.rules.disclosure import Declaration, Found, disclosed
from ..errors import SurveyFailed
from ..site_config.site_files import read_site_file

GROUP = "fedpilot.site_surveys"
PROGRAM = f"from {__name__} import main; main()"
LONGEST_REASON = 400


async def surveyed(file: Path, secret: bytes, within_s: float) -> dict[str, Any]:
    """Survey the data sets; return what the site discloses of each, by name. SurveyFailed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(file)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate()
    except TimeoutError:
        raise SurveyFailed(f"the data sets of {file} were not read in {within_s:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = err.decode(errors="replace").strip().rpartition("\n")[2][-LONGEST_REASON:]
        raise SurveyFailed(f"the data sets of {file} cannot be read: {last}")
    found = json.loads(out)
    return {
        name: disclosed(declaration, found_in(found[name]), secret)
        for name, declaration in read_site_file(file).items()
    }


def found_in(values: Mapping[str, Any]) -> Found:
    """Read a survey's findings from JSON values."""
    return Found(
        samples={str(id): count for id, count in values["samples"].items()},
        labels={str(label): int(count) for label, count in values.get("labels", {}).items()},
        client_labels={str(id): counts for id, counts in values.get("client_labels", {}).items()},
    )


def look(declaration: Declaration) -> dict[str, Any]:
    """What a data set holds, as JSON values; SurveyFailed."""
    installed = entry_points(group=GROUP)
    if names := sorted(installed.names):
        found: dict[str, Any] = installed[names[0]].load()(declaration.to_json())
        return found
    ids = _ids(declaration)
    twice = sorted(id for id, count in Counter(ids).items() if count > 1)
    if twice:
        raise SurveyFailed(f"data set {declaration.name}: client {twice[0]} is there twice")
    if not ids:
        raise SurveyFailed(f"data set {declaration.name} has no clients")
    return {"samples": dict.fromkeys(ids), "labels": {}}


def _ids(declaration: Declaration) -> list[str]:
    clients = declaration.clients
    match clients["arise"]:
        case "file_per_client":
            folder = Path(declaration.path or ".")
            if not folder.is_dir():
                raise SurveyFailed(f"data set {declaration.name}: there is no folder {folder}")
            return sorted(p.stem for p in folder.glob(clients["pattern"]) if p.is_file())
        case "id_list":
            try:
                lines = Path(clients["file"]).read_text().splitlines()
            except OSError as error:
                raise SurveyFailed(
                    f"data set {declaration.name}: {clients['file']}: {error.strerror}"
                ) from error
            return [line.strip() for line in lines if line.strip()]
    raise SurveyFailed(
        f"data set {declaration.name}: no installed package can tell its clients by "
        f"`{clients['arise']}` (entry points {GROUP})"
    )


def main() -> None:
    """Entry point of the process: print the content of a site file's data sets."""
    try:
        sets = read_site_file(Path(sys.argv[1]))
        print(json.dumps({name: look(each) for name, each in sets.items()}))
    except SurveyFailed as failure:
        sys.exit(str(failure))
