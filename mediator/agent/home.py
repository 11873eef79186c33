"""SiteHome: the folder with an agent's state; one agent works in it at a time.

    credentials/   ca.pem, cert.pem, key.pem
    site.json      the mediator's address and the site's name
    secret         the seed of the noise in disclosed numbers
    machines.json  the Ray cluster's machines at the last look
    traffic.json   bytes by day and round, for the policy
    blobs/         models and updates, by digest
    runs/<run>/    a run's runner and its files

Names from a wire are checked before they become file names.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..identity.files import SECRET, write_text
from ..wire.messages import BadMessage, RunId, SiteName, check_run, check_site
from .errors import BadHome, HomeBusy

FORMAT = 1
SECRET_BYTES = 32


class SiteHome:
    """One site's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.credentials_folder = folder / "credentials"
        self.blobs = folder / "blobs"
        self.runs = folder / "runs"
        self.traffic = folder / "traffic.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and lock it; HomeBusy if another agent works in it."""
        for each in (self.folder, self.blobs, self.runs):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.folder / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise HomeBusy(
                    f"an agent works in {self.folder} already (pid {holder}); end that one first, "
                    "or give this one a --home of its own"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    # -- who it is --------------------------------------------------------------------------------

    def joined(self) -> tuple[SiteName, str] | None:
        """The site's name and the mediator's address; None before it has joined."""
        path = self.folder / "site.json"
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise BadHome(f"{path} is damaged: {error}") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            number = found.get("format") if isinstance(found, dict) else found
            raise BadHome(f"{path} has format {number}; this fedpilot knows format {FORMAT}")
        try:
            return check_site(str(found["site"])), str(found["mediator"])
        except (KeyError, BadMessage) as error:
            raise BadHome(f"{path} is damaged: {error}") from error

    def write_mediator(self, site: SiteName, mediator: str) -> None:
        """Save the mediator's address, which marks the site as joined: credentials come first."""
        text = json.dumps({"format": FORMAT, "site": site, "mediator": mediator})
        write_text(self.folder / "site.json", text, SECRET)

    def secret(self) -> bytes:
        """The site's random bytes, made once and never changed."""
        path = self.folder / "secret"
        if not path.exists():
            write_text(path, secrets.token_hex(SECRET_BYTES), SECRET)
        return bytes.fromhex(path.read_text().strip())

    def machines(self) -> frozenset[str]:
        """Ids of the Ray machines at the last look of an agent."""
        with suppress(FileNotFoundError, ValueError, TypeError):
            return frozenset(map(str, json.loads((self.folder / "machines.json").read_text())))
        return frozenset()

    def write_machines(self, machines: frozenset[str]) -> None:
        write_text(self.folder / "machines.json", json.dumps(sorted(machines)), SECRET)

    # -- runs -------------------------------------------------------------------------------------

    def run_folder(self, run: str) -> Path:
        """The folder of a run; BadMessage unless `run` is a valid id."""
        return self.runs / check_run(run)

    def run_folders(self) -> dict[RunId, Path]:
        found = {}
        for path in sorted(self.runs.iterdir()):
            with suppress(BadMessage):
                if path.is_dir() and not path.is_symlink():
                    found[check_run(path.name)] = path
        return found

    def clean(self, *, now: float, keep_s: float, but: frozenset[RunId]) -> None:
        """Remove the folders of runs that are older than `keep_s` seconds, except `but`."""
        for run, path in self.run_folders().items():
            if run not in but and now - path.stat().st_mtime > keep_s:
                shutil.rmtree(path, ignore_errors=True)
