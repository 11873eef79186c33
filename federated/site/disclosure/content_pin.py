"""Holds a run to the content that its site's data had when it began there.

Sites do not disclose content. So each site keeps its data's digest among the run's files there and
compares it itself; others only learn that the content has changed.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from fedpilot.common.host.whole_files import replacing

from ...errors import DataUnusable

log = logging.getLogger(__name__)

FORMAT = 1


def hold_to(folder: Path, site: str, dataset: str, digest: str) -> None:
    """Store the content's digest (`Dataset.digest`) if none is stored, else compare.

    Raises DataUnusable for another digest than the stored one.
    """
    path = folder / f"{site}.data.json"
    wanted = {"format": FORMAT, "dataset": dataset, "digest": digest}
    try:
        kept = json.loads(path.read_text())
    except FileNotFoundError:
        with replacing(path, durable=True) as aside:
            aside.write_text(json.dumps(wanted) + "\n")
        return
    except ValueError:
        kept = None
    if kept != wanted:
        log.warning("%s says %s, and the data set is %s", path, kept, wanted)
        problem = (
            "its content is not what it was when this run began there; put it back as it was, or "
            "begin a new run"
        )
        raise DataUnusable(site, dataset, problem)
