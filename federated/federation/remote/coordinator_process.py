"""A run's coordinator at a mediator: the entry point `federated` of `fedpilot.coordinators`.

Its run folder lies in the mediator's folder. It always resumes: a new run resumes at its first
round. It sends the run's events to the mediator, and answers questions about VirtualNodes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpilot.common.host.interruptions import Interruptions
from fedpilot.common.strict_yaml.errors import BadFile
from fedpilot.fabric import FabricError
from fedpilot.mediator import MediatorError
from fedpilot.mediator.coordinator.connection import MediatorConnection
from fedpilot.mediator.errors import RequestRefused, SitesFull
from fedpilot.mediator.wire.blobs.full_disk import is_full

from ...core.user_code.user_errors import failure_of
from ...errors import CodeRefused, ConfigError, FederatedError
from ..events import Event, event as happened

if TYPE_CHECKING:
    from ...config.schema import RunConfig

log = logging.getLogger(__name__)

FINISHED, FAILED, NO_ROOM, SITES_FULL, STOPPED = 0, 1, 75, 76, 130
KNOWN = (BadFile, FederatedError, FabricError, MediatorError, OSError)
"""Errors whose own text explains them."""
DISK_FULL = "the disk is full"
SITES_ARE_FULL = "its sites are full for now, and it holds nothing there"
ENDED = "its coordinator was ended, and goes on as soon as the mediator is back"
CODE = "code.zip"
"""The user's own modules, as the mediator stores them."""


def main(folder: Path, run: str, user_code: bool = True) -> int:
    """Run or resume a mediator's run in a folder; the exit code says how it ended.

    Without `user_code` a config that names code by dotted path is refused before any import.
    """
    began_at = time.monotonic()
    with Interruptions() as interruptions:
        try:
            with MediatorConnection(folder, run) as connection:
                telling = EventReporter(connection)
                connection.on_stop(telling.stop)
                try:
                    place = folder / "runs" / run
                    _serve(place, connection, telling, interruptions, user_code)
                    return FINISHED
                except Exception as error:
                    if is_full(error):
                        log.error("%s: %s", DISK_FULL, error)
                        telling.waiting(run, f"{DISK_FULL}, at the mediator")
                        return NO_ROOM
                    if not isinstance(error, KNOWN):
                        raise
                    log.error("%s", error)
                    if isinstance(error, SitesFull):
                        telling.waiting(run, f"{SITES_ARE_FULL}: {error}")
                        return SITES_FULL
                    if not telling.ended:
                        _tell_failure(connection, run, error, time.monotonic() - began_at)
                    return FAILED
        except KeyboardInterrupt:
            return STOPPED
        except MediatorError as error:
            log.error("%s", error)
            return FAILED


class EventReporter:
    """Sends a run's events to the mediator, as an observer.

    Followers of an interrupted run that will resume get the reason for the wait, not an end.
    """

    def __init__(self, connection: MediatorConnection) -> None:
        self._connection = connection
        self._stopped = False
        self.ended = False
        """Whether the mediator knows how the run ended."""

    def __call__(self, event: Event) -> None:
        ends = event.name == "run_finished"
        if ends and str(event.fields["failure"]).startswith(f"{SitesFull.__name__}:"):
            return  # `main` says that it waits
        if ends and event.fields["status"] == "interrupted" and not self._stopped:
            failure = str(event.fields["failure"])
            why = failure if failure.startswith(DISK_FULL) else ENDED
            self.waiting(str(event.fields["run_id"]), why)
            return
        self.ended = self.ended or ends
        self._connection.emit(event.to_json())

    def waiting(self, run: str, reason: str) -> None:
        """Report why a run that will continue waits."""
        self._connection.emit(happened("run_waiting", run_id=run, reason=reason).to_json())

    def stop(self, reason: str) -> None:
        """End the run, as a user asks."""
        log.info("to be stopped: %s", reason)
        self._stopped = True
        os.kill(os.getpid(), signal.SIGTERM)


def _serve(
    place: Path,
    connection: MediatorConnection,
    telling: EventReporter,
    interruptions: Interruptions,
    user_code: bool,
) -> None:
    from ...config import load_config
    from ...prepare.user_code.importing import make_importable
    from ...prepare.user_code.user_code import code_sent
    from ..federation import Federation
    from ..run_folder.folder import RunFolder
    from ..runs.run_record import SUBMITTED
    from .mediator_sites import MediatorSites, declarations
    from .query_server import QueryServer

    submitted: dict[str, Any] = json.loads((place / "submission.json").read_text())
    for name in ("checkpoints", "journal"):
        (place / name).mkdir(exist_ok=True)
    config = load_config(place / "config.yaml", [f"outputs.folder={json.dumps(str(place.parent))}"])
    if not user_code:
        check_names_no_code(config)
    with RunFolder.open(place.parent, place.name) as opened:
        manifest = opened.manifest()
        if not manifest:
            # If the run gets no gang, the folder keeps this manifest.
            opened.update_manifest(status=SUBMITTED)
    code = None
    if archive := archive_in(place, str(submitted.get("code", ""))):
        code = code_sent(config, archive)
        log.info("it brings code: %s; SHA-256 %s", ", ".join(code.files)[:1000], code.digest)
        make_importable(archive)
    suggested = suggested_sites(place)
    source = MediatorSites(
        config,
        connection,
        again="identity" in manifest,
        declared=declarations(config, connection, place / "declared.json", suggested),
        code=code,
        members=place / "members.json",
        suggested=suggested,
    )
    with _telling_nothing_of_files(config):
        federation = Federation(
            config,
            source=source,
            name=place.name,
            user=str(submitted.get("user", {}).get("name", "")),
            observers=[telling],
            code=code,
        )
    try:
        with QueryServer(federation.nodes, connection.questions) as server:
            if submitted["interactive"]:
                federation.start()
                server.wait()
            else:
                federation.resume(place.name)
    except SitesFull:
        if "identity" not in manifest:  # it never had a gang, so it may begin at other sites
            (place / "declared.json").unlink(missing_ok=True)
        raise
    finally:
        interruptions.shield()
        federation.close()


@contextmanager
def _telling_nothing_of_files(config: RunConfig) -> Iterator[None]:
    """Report a built-in loader's files in the same words if missing, unreadable or wrong.

    The user who submitted the run sees the error, but must not learn which files the mediator has.
    """
    from ...data import DataError

    try:
        yield
    except ConfigError as error:
        loader = config.data.dataset_type or ""
        if ":" in loader or not isinstance(error.__cause__, DataError | OSError):
            raise
        found = f"`{loader}` finds nothing that it can load on the mediator's machine"
        allowed = "data that the mediator's admin has put there, or `data.from: sites`"
        raise ConfigError.about("data.options", found, allowed) from None


def suggested_sites(place: Path) -> tuple[str, ...]:
    """The sites that had room when the mediator began a run; none if it does not say."""
    try:
        return tuple(map(str, json.loads((place / "turn.json").read_text())["sites"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()  # it is only a preference


def check_names_no_code(config: RunConfig) -> None:
    """Raise RequestRefused if this mediator would have to import code, submitted or installed."""
    from ...prepare.user_code.user_sources import installed_code

    if paths := installed_code(config):
        raise RequestRefused(
            f"this mediator runs no code but fedpilot's own, and the config names "
            f"{', '.join(paths)}: use what is built in, or another mediator"
        )


def archive_in(place: Path, digest: str) -> bytes:
    """The code submitted with a run; empty if there was none. Raises CodeRefused."""
    if not digest:
        return b""
    archive = (place / CODE).read_bytes()
    if hashlib.sha256(archive).hexdigest() != digest:
        raise CodeRefused(f"{CODE} in its folder is not what was submitted, SHA-256 {digest}")
    return archive


def _tell_failure(
    connection: MediatorConnection, run: str, error: Exception, seconds: float
) -> None:
    """Report to followers why a run ended before it began."""
    failure = failure_of(error)
    ending = {"status": "failed", "failure": failure, "reason": failure}
    nothing = {"folder": None, "rounds": 0, "digest": "", "seconds": round(seconds, 3)}
    connection.emit({"event": "run_finished", "run_id": run, **ending, **nothing})
