"""`fedpilot job`; a job's output goes to stdout, messages about it go to stderr."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fedpilot.closed_pipes import ends_with_reader
from fedpilot.common.host.exit_codes import FAILED, INTERRUPTED, PREEMPTED, REFUSED
from fedpilot.common.host.patience import Patience
from fedpilot.common.terminal.commands import CommandGroup, exit_codes, fail, interruptions
from fedpilot.common.terminal.console import display, print_json, spinner

from ..errors import FabricError, SpecError
from ..jobs.job_log import SAYS, JobLog, LogSource
from ..spec import QueueOptions, VirtualCluster
from .access import RayAccess, with_access
from .ray_clusters.running import own_ray_cluster
from .ray_clusters.store_options import FILE
from .spec_options import check_name, from_json, with_deadline, with_queue, with_spec

if TYPE_CHECKING:
    from ..jobs.jobs import Job, Jobs

TALKATIVE = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")
"""Ray's loggers that report each upload and the end of each log."""
QUIET_S, REPEATED_S = 5.0, 30.0
"""When a wait for Ray to begin a job is first reported, and the interval after that."""
SETTLE_S = 10.0
"""How long Ray may take to end a job, or to report how it ended."""


def _quiet_jobs() -> Jobs:
    from ..jobs.jobs import Jobs

    jobs = Jobs()
    for each in TALKATIVE:
        logging.getLogger(each).setLevel(logging.WARNING)
    return jobs


with_jobs = with_access(_quiet_jobs)


@click.group(cls=CommandGroup)
def job() -> None:
    """Run unmodified Ray scripts, each in its own virtual cluster.

    The script, its tasks and actors, and all that they start, run on the resources reserved for the
    script. `ray.init()` in the script needs no arguments. The virtual cluster ends with the script.
    The Ray head needs Ray's dashboard: `pip install 'fedpilot[jobs]'`.

    With --site NAME or --all-sites, the mediator of a federation runs the command at its sites.

    \b
    Examples:
      fedpilot job submit --min CPU=4 --max CPU=16 -- python train.py
      fedpilot job list
      fedpilot job logs job-1f2e3d4c --follow
      fedpilot job stop job-1f2e3d4c
    """


@job.command(context_settings={"ignore_unknown_options": True})
@with_spec("--virtual-cluster")
@click.option("--in", "join", metavar="NAME", help="Run in this existing virtual cluster.")
@click.option("--id", metavar="ID", help="Id of the job and its virtual cluster. Default: random.")
@with_queue
@with_deadline("Give up after this time in the queue.")
@click.option(
    "--working-dir",
    metavar="DIR",
    help="Working folder of COMMAND: a folder to upload, or the URI of an archive.",
)
@click.option("--runtime-env", metavar="JSON", help="Ray runtime environment of the job.")
@click.option(
    "--on-preempt",
    type=click.Choice(["requeue", "fail"]),
    default="requeue",
    show_default=True,
    help="Whether COMMAND waits and runs again after its places were given to others.",
)
@click.option("--no-wait", is_flag=True, help="Submit the job, print its id, and end.")
@click.option(
    "--ray-cluster",
    "own",
    type=FILE,
    metavar="FILE",
    help="Start the Ray cluster that FILE declares, run the job there, and end the cluster; one of "
    "the provider `existing` is there already, and goes on. "
    "`fedpilot raycluster run` can run it again, end it in time and keep the cluster for a while.",
)
@with_jobs
@click.argument("command", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
def submit(
    read_spec: Callable[[], VirtualCluster],
    join: str | None,
    id: str | None,
    queue: QueueOptions,
    deadline_s: float | None,
    working_dir: str | None,
    runtime_env: str | None,
    on_preempt: Literal["requeue", "fail"],
    no_wait: bool,
    own: Path | None,
    command: Sequence[str],
    ray: RayAccess[Jobs],
    as_json: bool,
) -> None:
    """Run COMMAND as a job, in a virtual cluster that ends with it.

    State what it needs with --spec, with --virtual-cluster, or with --min, --max, --node,
    --min-nodes, --max-nodes, --policy and --max-actors. Without these it needs nothing, and may
    grow to all that is free. An AMOUNT is a number or a size: CPU=2,GPU=0.5,memory=4GiB. COMMAND
    starts once its resources are reserved. It runs on a machine of the Ray cluster, so its files
    must be there, or come with --working-dir.

    This command prints the job's log until the job ends; stderr says where the job waits in the
    queue, and why. Ctrl-C ends this command only; the job goes on. With --json, the log goes to
    stderr, and stdout gets the job as one document.

    If the job has to leave its resources to others, COMMAND and all that it started get SIGTERM,
    and SIGKILL when the grace is over. Then the job waits in the queue, and COMMAND runs again,
    whatever its exit code was; FEDPILOT_ATTEMPT counts 1, 2, ... With --on-preempt fail it does not
    run again.

    \b
    Examples:
      fedpilot job submit --min CPU=4 --max CPU=16 -- python train.py --epochs 3
      fedpilot job submit --node 2xCPU=4,GPU=1 --policy STRICT_SPREAD -- python ddp.py
      fedpilot job submit --node CPU=4 --min-nodes 2 --max-nodes 8 -- python tune.py
      fedpilot job submit --in speech --working-dir . -- python evaluate.py
      fedpilot job submit --runtime-env '{"pip": ["einops"]}' --min GPU=1 -- python fit.py
      fedpilot job submit --project vision --no-preemptible --min GPU=1 -- python serve.py
      id=$(fedpilot job submit --no-wait --spec large.yaml -- python sweep.py)
      fedpilot job submit --ray-cluster cluster.yaml --min CPU=4 -- python train.py

    \b
    Exit codes: 0 succeeded (or submitted, with --no-wait); 1 failed or stopped; 2 wrong spec or
    usage; 3 too large, not allowed in its project, or past its deadline before it started; 4 no Ray
    there, or no dashboard; 75 preempted, with --on-preempt fail; 130 interrupted, the job goes on.
    """
    if not command:
        raise click.UsageError("give the command to run, after --.")
    with exit_codes():
        spec = read_spec()
        if join and (spec.to_dict() or queue or deadline_s):
            raise click.UsageError(
                "--in uses a virtual cluster as it is; leave its spec and its queue out."
            )
        if own and (join or no_wait or ray.is_chosen):
            raise click.UsageError(
                "--ray-cluster starts a Ray cluster for this job alone, and ends it: leave --in, "
                "--no-wait, --address and --auth-mode out."
            )
        env = _runtime_env(runtime_env, working_dir)
        name = id or f"job-{secrets.token_hex(4)}"
        check_name(name)
        stop = f"  stop it: {ray.command('job', 'stop', name)}"
        fate = "nothing was submitted"
        try:
            with interruptions(), own_ray_cluster(own, ray) as ray, ray.opened() as jobs:
                show = ray.command("job", "show", name)
                fate = f"job {name} may be submitted, or not\n  see: {show}\n{stop}"
                with spinner(f"submitting {name}"), ray.answer_said_to_be_slow():
                    jobs.submit(
                        command,
                        None if join else spec,
                        join=join,
                        id=name,
                        deadline_s=deadline_s,
                        runtime_env=env,
                        on_preempt=on_preempt,
                        **queue,
                    )
                log = ray.command("job", "logs", name, "--follow")
                fate = f"job {name} goes on\n  its log: {log}\n{stop}"
                if no_wait and as_json:
                    print_json(jobs.show(name).to_dict())
                elif no_wait:
                    click.echo(name)
                if no_wait:
                    return
                click.echo(f"{SAYS}job {name} is submitted", err=True)
                followed = _follow(jobs, name, to_stderr=as_json)
                done = _end(jobs, name)
        except KeyboardInterrupt:
            fail(f"interrupted; {fate}", INTERRUPTED)
        if as_json:
            print_json(done.to_dict())
        if done.status == "SUCCEEDED":
            return
        if done.status == "STOPPED":
            fail(f"job {name} was stopped", FAILED)
        why = f": {done.message}" if done.message not in ("", followed.said) else ""
        if not followed.began:
            fail(f"job {name} never began{why}", REFUSED)
        fail(f"job {name} failed{why}", PREEMPTED if followed.preempted else FAILED)


def _runtime_env(text: str | None, working_dir: str | None) -> dict[str, Any]:
    """Check and build the job's runtime environment; SpecError before Ray is contacted."""
    env: Any = {}
    if text is not None:
        env = from_json("--runtime-env", text)
        if not isinstance(env, dict):
            raise SpecError(f"--runtime-env: wanted an object, found {text}")
        variables = env.get("env_vars", {})
        if not isinstance(variables, dict) or any(type(v) is not str for v in variables.values()):
            raise SpecError(f"--runtime-env: env_vars: wanted texts by name, found {variables}")
    if working_dir is not None:
        if "working_dir" in env:
            raise click.UsageError("--runtime-env has a working_dir; give one of them.")
        if "://" not in working_dir and not Path(working_dir).is_dir():
            raise SpecError(f"--working-dir: wanted a folder or a URI, found {working_dir!r}")
        env["working_dir"] = working_dir
    return dict(env)


def _follow(jobs: Jobs, id: str, *, to_stderr: bool) -> JobLog:
    """Print a log as it grows; all but the command's output goes to stderr."""
    before: list[str] = []
    log = JobLog()

    def tell(seconds: float) -> None:
        if not log.said and not log.began:
            what = "Ray has not started it, or is still preparing its runtime environment"
            click.echo(f"{SAYS}job {id} has waited for {seconds:.0f} s: {what}", err=True)

    with Patience(tell, first_s=QUIET_S, every_s=REPEATED_S):
        for source, text in log.read(jobs.follow(id)):
            match source:
                case LogSource.COMMAND:
                    click.echo(text, nl=False, err=to_stderr)
                case LogSource.FEDPILOT | LogSource.AGAIN:
                    click.echo(text, err=True)
                case LogSource.RAY:
                    before.append(text)
    if not log.began and not log.said:  # Ray could not start the job; its log says why
        click.echo("\n".join(before).rstrip(), err=True)
    return log


def _end(jobs: Jobs, id: str) -> Job:
    """Wait until Ray reports how the job ended, which it does shortly after the log ends."""
    from ..jobs.jobs import ENDED

    until = time.monotonic() + SETTLE_S
    while (found := jobs.show(id)).status not in ENDED:
        if time.monotonic() > until:
            raise FabricError(f"job {id!r} should have ended, but it is {found.status}")
        time.sleep(0.2)
    return found


@job.command("list")
@with_jobs
def list_(ray: RayAccess[Jobs], as_json: bool) -> None:
    """List the jobs of the Ray cluster, newest first.

    A WAITING job has not got its resources yet; its message says why.

    \b
    Examples:
      fedpilot job list
      fedpilot job list --json | jq -r '.jobs[] | select(.status == "WAITING") | .id'
    """
    with exit_codes():
        found = ray.ask(lambda jobs: jobs.list())
        if as_json:
            print_json({"jobs": [each.to_dict() for each in found]})
            return
        from .terminal.tables import job_table

        display(job_table(found, time.time()))


def _known(jobs: Jobs, id: str) -> tuple[Job, Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    return jobs.show(id), jobs.clusters.snapshot(), jobs.clusters.history()


@job.command()
@click.argument("id")
@with_jobs
def show(id: str, ray: RayAccess[Jobs], as_json: bool) -> None:
    """Show job ID, its virtual cluster, and work that runs outside it.

    \b
    Examples:
      fedpilot job show job-1f2e3d4c
      fedpilot job show job-1f2e3d4c --json | jq -r '.cluster.escapes[]'
    """
    with exit_codes():
        found, document, history = ray.ask(lambda jobs: _known(jobs, id))
        if as_json:
            print_json(found.to_dict())
            return
        from .terminal.tables import job_details

        display(job_details(found, document, history, time.time()))


@job.command()
@click.argument("id")
@with_jobs
def explain(id: str, ray: RayAccess[Jobs], as_json: bool) -> None:
    """Explain the state of job ID, and what would help.

    The command also prints the history of the job's virtual cluster.

    \b
    Examples:
      fedpilot job explain job-1f2e3d4c
      fedpilot job explain job-1f2e3d4c --json | jq -r '.sentences[]'
    """
    with exit_codes():
        from .terminal.explain import explained, job_sentences

        found, document, history = ray.ask(lambda jobs: _known(jobs, id))
        now, name = time.time(), found.virtual_cluster
        said = job_sentences(found.to_dict(), document, history, now)
        if as_json:
            told = [dict(event) for event in history if event["cluster"] == name]
            print_json({"id": id, "sentences": said, "history": told, "job": found.to_dict()})
            return
        display(explained(said, history, name, now))


@job.command()
@click.argument("id")
@click.option("--follow", "-f", is_flag=True, help="Print new output until the job ends.")
@with_jobs
def logs(id: str, follow: bool, ray: RayAccess[Jobs], as_json: bool) -> None:
    """Print the output of job ID, and the messages about its start.

    With --json, print one document with `id` and `log`; with --follow, at the end of the job.

    \b
    Examples:
      fedpilot job logs job-1f2e3d4c
      fedpilot job logs job-1f2e3d4c --follow | grep loss
    """
    with exit_codes(), ends_with_reader():
        try:
            with interruptions(), ray.opened() as jobs:
                parts = jobs.follow(id) if follow else iter([jobs.logs(id)])
                if as_json:
                    print_json({"id": id, "log": "".join(parts)})
                    return
                for text in parts:
                    click.echo(text, nl=False)
        except KeyboardInterrupt:
            fail(f"interrupted; job {id} goes on", INTERRUPTED)


@job.command()
@click.argument("id")
@with_jobs
def stop(id: str, ray: RayAccess[Jobs], as_json: bool) -> None:
    """Stop job ID: end its command and its virtual cluster.

    Ray kills a command that does not end within three seconds. All work in the virtual cluster ends
    too. A waiting job leaves the queue. A virtual cluster given with --in stays.

    \b
    Examples:
      fedpilot job stop job-1f2e3d4c
      fedpilot job stop job-1f2e3d4c --json
    """
    with exit_codes():
        told, status = ray.ask(lambda jobs: (jobs.stop(id), _end(jobs, id).status))
        stopped = told and status == "STOPPED"
        if as_json:
            print_json({"id": id, "stopped": stopped, "status": status})
        else:
            click.echo(f"stopped {id}" if stopped else f"{id} had ended already: {status}")
