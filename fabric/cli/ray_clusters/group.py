"""The group `fedpilot raycluster` and its commands."""

from __future__ import annotations

import click

from fedpilot.common.terminal.commands import CommandGroup

from .declaring import apply, delete, get, scale
from .looking import env, events, explain, list_, show
from .running import run
from .serving import serve
from .waiting import wait


@click.group(
    cls=CommandGroup,
    commands=[apply, get, list_, show, explain, scale, delete, wait, events, env, run, serve],
)
def raycluster() -> None:
    """Declare Ray clusters, and have them started, healed, scaled and ended.

    A declaration has the names of KubeRay's RayCluster resource (ray.io/v1): a head, and groups of
    workers with their numbers, parameters and resources. `serve` keeps what is declared: it starts
    machines, replaces those that die, and ends those that are too many. It may be stopped and
    started again: the machines go on, and the next `serve` takes them over.

    \b
    Examples:
      fedpilot raycluster serve &
      fedpilot raycluster apply cluster.yaml
      fedpilot raycluster wait demo
      eval "$(fedpilot raycluster env demo)"       # then `ray status`, `fedpilot cluster list`
      fedpilot raycluster scale demo workers 4
      fedpilot raycluster delete demo
      fedpilot raycluster run cluster.yaml -- python train.py

    \b
    A declaration of a head and two workers on this computer:
      metadata: {name: demo}
      spec:
        headGroupSpec: {rayStartParams: {num-cpus: "1"}}
        workerGroupSpecs:
          - groupName: workers
            replicas: 2
            maxReplicas: 8
            rayStartParams: {num-cpus: "2"}
    """
