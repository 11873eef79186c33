"""Jobs: unmodified Ray scripts inside virtual clusters of their own, through Ray's job API.

`confine` reserves a job's virtual cluster, then runs its command. Ray's job server is part of the
dashboard, so the head must run one (`pip install ray[default]`).
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Unpack

from ..core.audit import NAMES
from ..core.records import ROOT, WAITING
from ..errors import ClusterUnreachable, FabricError, NoSuchJob, SpecError
from ..inside.hooks import environment_inside
from ..inside.virtual_clusters import VirtualClusters
from ..ray import private_ray
from ..spec import QueueOptions, VirtualCluster
from .job_log import READY, SAYS

JOINED, COMMAND = "fedpilot.joined", "fedpilot.command"
"""Metadata keys: the job joined another virtual cluster; the job's command."""

LOGS = ", last available logs (truncated to 20,000 chars):"
"""The end of Ray's first line if a log follows."""

INSTALLER = re.compile(r"^\s*(?:ERROR|error): *(.+)$", re.MULTILINE)
"""How pip and uv report an error."""

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")

START_S = 30.0
"""How long Ray's job server may take to start."""

NOT_YET = "No available agent"
"""Its answer until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of Ray, and its virtual cluster if it has one."""

    id: str
    status: str
    """`PENDING`, `RUNNING`, `STOPPED`, `SUCCEEDED` or `FAILED`, as in Ray; `WAITING` while its
    virtual cluster has no places yet."""
    message: str
    """One line; the log has the whole text."""
    entrypoint: str
    started: float | None
    ended: float | None
    virtual_cluster: str | None
    joined: bool
    """Whether it runs in a virtual cluster that existed before, and stays when the job ends."""
    cluster: Mapping[str, Any] | None
    """The document of its virtual cluster, while that exists."""

    def to_dict(self) -> dict[str, Any]:
        """The job as a document."""
        return asdict(self)


class Jobs:
    """The jobs of the Ray cluster that this process is connected to."""

    def __init__(self) -> None:
        private_ray.require(private_ray.JOBS, private_ray.INSIDE)
        from ray.job_submission import JobSubmissionClient

        self.clusters = VirtualClusters()
        url = _dashboard()
        try:
            self._client = JobSubmissionClient(url)
        except (RuntimeError, ConnectionError, ImportError) as error:
            raise ClusterUnreachable(url, f"its job server does not answer: {error}") from error

    def submit(
        self,
        command: Sequence[str],
        spec: VirtualCluster | None = None,
        *,
        join: str | None = None,
        id: str | None = None,
        deadline_s: float | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        on_preempt: Literal["requeue", "fail"] = "requeue",
        **queue: Unpack[QueueOptions],
    ) -> str:
        """Have Ray run a command in its own virtual cluster, or in `join`; return the job's id.

        If its virtual cluster must leave its places to others, the command is ended; it runs again
        later, unless `on_preempt` is `fail`. `queue` says how its own virtual cluster waits:
        `priority`, `project`, `pool`, `priority_class` and `preemptible`. Refuses at once what
        could never run: SpecError, NeverFits, NoSuchCluster for `join`.
        """
        import ray

        name = join or id or f"job-{secrets.token_hex(4)}"
        id = id or (f"job-{secrets.token_hex(4)}" if join else name)
        given = spec or VirtualCluster()
        if join:
            self.clusters.show(join)
        else:
            self.clusters.check(name, given, parent=ROOT, **queue)
        confine = [self.clusters.call("python"), "-m", "fedpilot.fabric.confine", "--name", name]
        confine += ["--address", ray.get_runtime_context().gcs_address]
        if join:
            confine += ["--join"]
        else:
            confine += ["--spec", json.dumps(given.to_dict()), *options_of(queue)]
        if deadline_s is not None:
            confine += ["--deadline", str(deadline_s)]
        if on_preempt != "requeue":
            confine += ["--on-preempt", on_preempt]
        metadata = {NAMES: name, COMMAND: shlex.join(command)} | ({JOINED: "yes"} if join else {})
        self._submit(
            id,
            entrypoint=shlex.join([*confine, "--", *command]),
            runtime_env=environment_inside(name, runtime_env),
            metadata=metadata,
        )
        return id

    def _submit(self, id: str, **job: Any) -> None:
        """Submit once Ray's job server has started, which takes seconds longer than Ray itself."""
        end = time.monotonic() + START_S
        while True:
            try:
                self._client.submit_job(submission_id=id, **job)
            except RuntimeError as error:
                if NOT_YET in str(error) and time.monotonic() < end:
                    time.sleep(0.5)
                    continue
                if "already exists" in str(error):
                    raise SpecError(
                        f"id: there is or was a job {id!r}; choose a new one"
                    ) from error
                raise FabricError(f"Ray refuses the job: {_line(error)}") from error
            except (TypeError, ValueError) as error:
                raise SpecError(f"runtime_env: {_line(error)}") from error
            return

    def list(self) -> list[Job]:
        """All submitted jobs, the latest first."""
        clusters = self._documents()
        found = [self._job(e, clusters) for e in self._client.list_jobs() if e.submission_id]
        return sorted(found, key=lambda job: -(job.started or 0.0))

    def show(self, id: str) -> Job:
        """One job. NoSuchJob."""
        with _of(id):
            found = self._client.get_job_info(id)
        return self._job(found, self._documents())

    def logs(self, id: str) -> str:
        """The job's output so far, or why Ray could not start it. NoSuchJob."""
        with _of(id):
            text: str = self._client.get_job_logs(id)
            if text:
                return text
            found = self._client.get_job_info(id)
        return f"{found.message}\n" if str(found.status.value) == "FAILED" else ""

    def follow(self, id: str) -> Iterator[str]:
        """Yield what `logs` returns, then further output until the job ends. NoSuchJob."""
        import asyncio

        self.show(id)
        silent = True
        lines: Any = self._client.tail_job_logs(id)
        with _of(id), asyncio.Runner() as runner:

            async def following() -> str | None:
                return await anext(lines, None)

            while (text := runner.run(following())) is not None:
                silent = False
                yield text
        if silent:
            yield self.logs(id)

    def stop(self, id: str) -> bool:
        """Stop a job; False if it had already ended. NoSuchJob."""
        with _of(id):
            return bool(self._client.stop_job(id))

    def _documents(self) -> dict[str, Mapping[str, Any]]:
        return {each["id"]: each for each in self.clusters.snapshot()["clusters"]}

    def _job(self, found: Any, clusters: Mapping[str, Mapping[str, Any]]) -> Job:
        metadata = found.metadata or {}
        name = metadata.get(NAMES)
        status = str(found.status.value)
        cluster = clusters.get(name) if name and status not in ENDED else None
        waits = cluster is not None and cluster["state"] == WAITING and status == "RUNNING"
        reason = str(cluster["reason"]) if waits and cluster else reason_in(found.message)
        return Job(
            id=found.submission_id,
            status="WAITING" if waits else status,
            message=reason,
            entrypoint=metadata.get(COMMAND) or found.entrypoint,
            started=None if found.start_time is None else found.start_time / 1000,
            ended=None if not found.end_time else found.end_time / 1000,
            virtual_cluster=name,
            joined=JOINED in metadata,
            cluster=cluster,
        )


def options_of(queue: QueueOptions) -> list[str]:
    """The options of `confine` for a place in line; without defaults, which older ones lack."""
    options: list[str] = []
    for name, value in sorted(queue.items()):
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        elif value not in (None, "", 0):
            options += [f"--{option}", str(value)]
    return options


@contextlib.contextmanager
def _of(id: str) -> Iterator[None]:
    """Translate the errors of Ray's client. NoSuchJob, FabricError, ClusterUnreachable."""
    import aiohttp
    import requests

    try:
        yield
    except RuntimeError as error:
        if "does not exist" in str(error):
            raise NoSuchJob(id) from error
        raise FabricError(f"Ray says of job {id!r}: {_line(error)}") from error
    except (requests.RequestException, aiohttp.ClientError, OSError) as error:
        why = f"its job server is gone: {_line(error)}"
        raise ClusterUnreachable(_dashboard(), why) from error


def reason_in(message: str | None) -> str:
    """Why a job ended: our last line if it ends the log, otherwise what Ray or pip says."""
    said, _, log = (message or "").strip().partition("\n")
    last = log.rpartition("\n")[2]
    if last.startswith(SAYS) and not last.endswith(READY):
        return last.removeprefix(SAYS)
    failed = INSTALLER.findall(log) if "runtime_env" in said else []
    return f"{_line(said).rstrip('.')}: {failed[-1].strip()}" if failed else _line(said)


def _line(text: object) -> str:
    """The first line of a message of Ray, which may go on with a whole log."""
    return str(text or "").strip().partition("\n")[0].removesuffix(LOGS)


def _dashboard() -> str:
    """The URL of Ray's dashboard. ClusterUnreachable without one."""
    import ray

    url = private_ray.dashboard_url()
    if not url:
        raise ClusterUnreachable(
            ray.get_runtime_context().gcs_address,
            "jobs need Ray's dashboard, and its head runs none: `pip install 'ray[default]'` there "
            "and start the head with --include-dashboard=true",
        )
    return f"http://{url}"
