"""Writes what follows from the code: the reference of keys and commands, tables and pictures.

`python docs/generate.py` writes it, `--check` only says what is out of date. The page on exit codes
is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedpilot.common.strict_yaml.wording import (
    Key,
    fields_of,
    keys_of,
    meaning_of,
    section_in,
    type_in_words,
)
from fedpilot.fabric.core.ray_clusters.metering import BOUNDS_S, IDLE_S, ClusterMeter
from fedpilot.fabric.ray_clusters.metrics.exporter import PATIENCE_S
from fedpilot.fabric.ray_clusters.metrics.families import ExposedCluster, families
from fedpilot.fabric.spec.queues import QueuesSection
from fedpilot.fabric.spec.ray_cluster.schema import RayClusterSection
from fedpilot.fabric.spec.ray_cluster.start_parameters import PARAMETERS, Treatment
from fedpilot.federated.config.schema import RunConfig
from fedpilot.mediator.agent.site_config.site_files import PolicyFile, SiteFile

if TYPE_CHECKING:
    from shown.pictures import Picture

REFERENCE = Path(__file__).parent / "reference"

CONFIG_HEAD = """\
# The config of a run

One YAML 1.2 file describes a run. `fedpilot init` writes one with every key explained. `fedpilot
check` validates one without starting anything. `--set section.key=value` changes a key on the
command line.

fedpilot guesses nothing. Before it starts anything, it refuses an unknown key, a value of another
type (`"5"` is not a number, `yes` is not `true`) and a key that is given twice. Each message has
the line, what was found, what is allowed, and the nearest existing key. The one conversion: a whole
number is also a number. An empty section has its defaults. fedpilot does not read tags, anchors,
aliases, environment variables and templates.
"""

METRICS_HEAD = """\
# Metrics of declared Ray clusters

`fedpilot raycluster serve --metrics-file FILE` keeps these metrics in a file, in Prometheus' text
format. `--metrics-listen [HOST:]PORT` answers `GET /metrics` with them, on 127.0.0.1 unless HOST is
given. Both work together. The file is replaced as a whole each second, as the textfile collector of
node_exporter wants it. Everyone who reaches the address can read the metrics, without a password
and in clear text; they hold names and numbers, and no secrets.

The server is that of `prometheus_client`; it speaks OpenMetrics too. It takes a thread and an open
file for each caller, without a limit, and hangs up on one that is silent for {patience_s} s.
Callers end the process of the metrics if they are as many as the files that it may open
(`ulimit -n`). It starts again, with counters that begin anew; the lifecycle manager and the
autoscaler are other processes and go on. So give a HOST that only your Prometheus reaches.

Counters and histograms begin when `serve` does. The buckets of a histogram end at these seconds:
{buckets}.

* **Reaction** is the time from a declaration, by a person or by the autoscaler, to the first event
  of the lifecycle manager for it.
* **Ready** is the time from a declaration to the event `cluster_ready`. A declaration that starts
  no machine and ends none is not measured.
* **Heal** is the time from the event that a ready cluster is not whole any more, without a new
  declaration, to the event `cluster_ready`.
* **Idle** is a machine on which no work has been for {idle_s} s. For clusters at KubeRay that is
  not known. The share of a longer time is the rate of `fedpilot_raycluster_idle_seconds_total`
  divided by the rate of `fedpilot_raycluster_machine_seconds_total`.

"""

SITE_FILES_HEAD = """\
# The files of a site

A site's admin writes two YAML files, which the site's agent reads: `fedpilot site join --site-file
site.yaml --policy policy.yaml`. `fedpilot site policy check` prints what they allow, or all their
errors. How to use them: [declare data](../how-to/declare-data-at-a-site.md), [a site's
policy](../how-to/operate-a-federation.md#a-sites-policy).

The agent refuses an unknown key or a value of another type; the message has the line, what was
found, what is allowed, and the nearest existing key. A size is a number of bytes, or a text such as
`16GiB` or `100MB`. Neither file leaves the site.

Without a `site.yaml` a site has no data of its own. Without a `policy.yaml` it takes part in every
simulation, gives no user access to declared data, loads no code that a run brings, and runs no
commands for the mediator. In a policy, a missing key sets no limit, with four exceptions:
`commands`, code that a run brings, data sets without a rule, and simulations, which then use
built-in data sets that read no file.
"""

SITE_FILES = {"site.yaml": SiteFile, "policy.yaml": PolicyFile}

QUEUE_FILE = "queues.yaml"
QUEUE_FILE_HEAD = """\
# The file of queues

A YAML file that divides a Ray cluster among projects: `fedpilot queue apply queues.yaml`. [Set
quotas for teams](../how-to/share-a-ray-cluster-among-teams.md) shows how to use it.

```yaml
pools:
  - name: gpus
    selector: {gpu-type: "in(a100,h100)"}
departments:
  - name: research
    quota: {gpus: {GPU: 12, CPU: null}, default: {CPU: 32}}
projects:
  - name: vision
    department: research
    quota: {gpus: {GPU: 8, CPU: null}, default: {CPU: 16}}
    users: [alice, "role:researcher"]
    classes: [train, interactive-preemptible]
  - name: speech
    department: research
    quota: {gpus: {GPU: 4, CPU: null}, default: {CPU: 16}}
    reclaimable: false
classes:
  - {name: nightly, priority: 10}
settings:
  starvation_s: 3600
  grace_s: 30
```

**Pools.** A machine belongs to the first pool whose selector its labels meet, or to `default`. A
workload runs in one pool: in the one that it names with `--pool`, or in the first one in which its
project has a quota and that could hold it.

**Queues.** Each project has a queue in each pool. A quota is what a project, or all projects of a
department together, may always have. If one queue of a pool names a resource in `quota` or
`over_quota_weight`, all queues of that pool must name it in `quota`, with a number or `null`, which
is unlimited. A resource that no queue of a pool names is not divided there. Quotas may add up to
more than there is. Resources are named as in Ray: `CPU`, `GPU`, `memory` (in bytes), or a custom
name.

**`default`.** Work that names no project is in the project `default`. It exists even if the file
does not declare it: without a quota, and with weight 1 for what is left over.

**Classes.** Work that names no class is of class `train`. `inference` (125) and `build` (100) are
not preemptible, `interactive-preemptible` (75) and `train` (50) are, and so is an own class below
100, unless it says otherwise. `--preemptible` and `--no-preemptible` override the class. Work that
is not preemptible must fit the quota.

fedpilot refuses unknown keys, names that are given twice or contain `/`, departments, pools and
classes that do not exist, and negative amounts, before anything changes; the message has the line,
what was found, what is allowed, and the nearest that exists.

**Past usage.** With a `usage_effect` above 0, a queue that has used more than its part of a pool
lately gets a smaller part of what no quota uses, and one that has used less gets a larger part.
Quotas are not touched. Projects whose work does not fit together so take turns, about one in each
half-life; a minimum runtime keeps what has just started. The history begins when a file with a
`usage_effect` is applied, outlives the manager, and is forgotten once a file without one is
applied. `fedpilot queue list --json` has the part of the pool that each queue has used, as `used`.
"""

RAY_CLUSTER = "ray-cluster.yaml"
RAY_CLUSTER_HEAD = """\
# The document RayCluster

A YAML or JSON file that declares a Ray cluster: a head, and groups of workers. It has the names of
KubeRay's resource (`ray.io/v1`), for all providers of machines, and sections `fedpilot` for what
KubeRay does not have.

```yaml
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: team-a
spec:
  headGroupSpec:
    rayStartParams: {num-cpus: "0", dashboard-host: 127.0.0.1}
  workerGroupSpecs:
    - groupName: small
      replicas: 2
      minReplicas: 1
      maxReplicas: 4
      rayStartParams: {num-cpus: "2"}
    - groupName: large
      maxReplicas: 1
      resources: {CPU: "16", memory: 64Gi, GPU: "1"}
      labels: {zone: a}
      fedpilot: {cost: 8}
  fedpilot:
    provider: ssh
    hosts: [a.example.org, b.example.org]
    idleSeconds: 120
```

**Providers.** `local` starts the machines of a cluster on this computer, `ssh` on hosts over SSH,
and `kuberay` gives the document to KubeRay, without the sections `fedpilot`. `existing` names a Ray
cluster that runs already, by its `address` and perhaps a `tokenFile`, and declares nothing else.
fedpilot refuses a key that the provider cannot follow, and names it. A key that has no effect, such
as a container's `image` outside Kubernetes, is a warning.

**Amounts.** What a machine offers comes from `resources` of its group, or else from
`rayStartParams`; a group may not have both. CPUs, GPUs and memory that neither names come from the
`resources.limits` of the first container in the pod template (CPUs also from its `requests`), and
last from the host itself. CPUs, GPUs and bytes are whole: a quantity such as `500m` is rounded up,
as in KubeRay. Labels in Ray come from `labels` of the group, or else from `rayStartParams`; the
labels of a pod are not among them.

**Counts.** `replicas` is by default `minReplicas`, which is by default 0. A group without
`maxReplicas` never grows beyond its `replicas`; only with `kuberay` it has KubeRay's default,
2147483647.

**Strictness.** Before anything starts, fedpilot refuses an unknown key outside pod templates, a
value of another type, counts out of range and names that are given twice; the message has the line,
what was found, what is allowed, and the nearest that exists. A file has at most 1 MiB.
"""

PARAMETERS_HEAD = """\
## Parameters of `ray start`

`rayStartParams` has parameters of `ray start` (Ray 2.60) without dashes in front; numbers become
text. fedpilot keeps a machine's addresses, names and folders to itself. With `kuberay` all of them
are handed on, except `labels`, which KubeRay takes from the group.
"""

CLI_HEAD = """\
# The commands

The output of `--help` for every command. [Exit codes](exit-codes.md) explains the exit codes.
"""


def reference() -> dict[Path, str]:
    """The generated pages, by the file that each belongs in."""
    return {
        REFERENCE / "config.md": config_page(),
        REFERENCE / "site-files.md": site_files_page(),
        REFERENCE / "queue-file.md": queue_file_page(),
        REFERENCE / "ray-cluster.md": ray_cluster_page(),
        REFERENCE / "metrics.md": metrics_page(),
        REFERENCE / "cli.md": cli_page(),
    }


def figures() -> tuple[dict[Path, str], list[Picture]]:
    """The pages with a generated table, and the pictures; they take plans, and so PyTorch."""
    from shown import graphs, plans
    from shown.graph_pictures import graph_pictures
    from shown.pages import ASSIGNMENTS, TOPOLOGIES, with_table

    made = plans.plans()
    pages = {
        TOPOLOGIES: with_table(TOPOLOGIES, graphs.table()),
        ASSIGNMENTS: with_table(ASSIGNMENTS, plans.table(made)),
    }
    return pages, [*graph_pictures(), *plans.plan_pictures(made)]


def config_page() -> str:
    """Every key of the config, a table per section."""
    parts = [CONFIG_HEAD]
    for section in keys_of(RunConfig):
        parts += _section(section)
    return "\n".join(parts)


def _section(section: Key) -> Iterator[str]:
    assert section.section is not None
    required = " Required." if section.field.is_required() else ""
    yield from _table_of(section.path, section.section, f"{section.meaning}{required}")


def _table_of(path: str, section: type[BaseModel], meaning: str) -> Iterator[str]:
    yield f"## `{path}`\n"
    yield f"{meaning}\n"
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    keys = keys_of(section, path)
    for key in keys:
        takes = key.allowed
        if key.section or key.items:
            what, below = ("a section", "") if key.section else ("a list of sections", "[]")
            takes = f"{what}, [`{key.path}{below}`](#{_anchor(key)})"
        cells = (f"`{key.name}`", takes, _default(key), key.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
    for key in keys:
        if key.section:
            yield from _section(key)
        elif key.items is not None:
            about = " ".join((key.items.__doc__ or "").split())
            yield from _table_of(f"{key.path}[]", key.items, about)


def _anchor(key: Key) -> str:
    return key.path.translate(_NOT_IN_ANCHORS)


def _default(key: Key) -> str:
    if key.field.is_required():
        return "required"
    if key.section:
        return "not given" if key.default is None else "its defaults"
    default = key.default
    if default is None:
        return "not given"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def site_files_page() -> str:
    """Every key of the two files of a site's admin, a table per section."""
    parts = [SITE_FILES_HEAD]
    for file, kind in SITE_FILES.items():
        parts += [f"## `{file}`\n", *_keys_of_file(file, kind, "")]
    return "\n".join(parts)


def queue_file_page() -> str:
    """Every key of a file of queues, a table per section."""
    parts = [QUEUE_FILE_HEAD, "## Keys\n", *_keys_of_file(QUEUE_FILE, QueuesSection, "")]
    return "\n".join(parts)


def ray_cluster_page() -> str:
    """Every key of the document RayCluster, a table per section, and its parameters."""
    keys = _keys_of_file(RAY_CLUSTER, RayClusterSection, "")
    return "\n".join([RAY_CLUSTER_HEAD, "## Keys\n", *keys, PARAMETERS_HEAD, *_parameters()])


def metrics_page() -> str:
    """Every metric of declared Ray clusters."""
    rows = ["| metric | kind | labels | value |", "|---|---|---|---|"]
    meter = ClusterMeter(machine_s={"small": 1.0}, idle_s={"small": 1.0})
    groups = {"small": {"ready": 1, "idle": 1}}
    cluster = ExposedCluster(name="demo", state="ready", groups=groups, meter=meter)
    for each in families([cluster], managed=True):
        name = f"{each.name}_total" if each.type == "counter" else each.name
        shown = [f"`{label}`" for label in each.samples[0].labels if label != "le"]
        labels = ", ".join(shown) or "none"
        rows.append(f"| `{name}` | {each.type} | {labels} | {each.documentation} |")
    buckets = ", ".join(f"{bound:g}" for bound in BOUNDS_S)
    head = METRICS_HEAD.format(buckets=buckets, idle_s=f"{IDLE_S:g}", patience_s=f"{PATIENCE_S:g}")
    return "\n".join([head, *rows, ""])


def _parameters() -> Iterator[str]:
    yield "| parameter | takes | what becomes of it |"
    yield "|---|---|---|"
    for name, each in PARAMETERS.items():
        fate = str(each.treatment)
        if each.treatment is Treatment.REFUSED:
            fate = f"refused; instead: {each.instead}"
        fate += "; for the head only" if each.of_heads else ""
        yield f"| `{name}` | {each.kind} | {fate} |"
    yield ""


def _keys_of_file(file: str, kind: type[BaseModel], path: str) -> Iterator[str]:
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    inner = []
    for name, field in fields_of(kind).items():
        below, shown = _below(field, f"{path}{name}")
        takes = type_in_words(field.annotation, field.metadata)
        if below is not None:
            anchor = f"{file}-{shown}".translate(_NOT_IN_ANCHORS).lower()
            what = "a list of sections" if shown.endswith("[]") else "a section"
            takes = f"{what}, [`{shown}`](#{anchor})"
            inner.append((below, shown))
        cells = (f"`{name}`", takes, _default_in_file(field), meaning_of(kind, name, below))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
    for below, shown in inner:
        yield f"### `{file}`: `{shown}`\n"
        yield from _keys_of_file(file, below, f"{shown}.")


_NOT_IN_ANCHORS = str.maketrans("", "", ".<>[]")


def _below(field: FieldInfo, path: str) -> tuple[type[BaseModel] | None, str]:
    """The section that a key, or each of its names or items, holds, and how it is called."""
    if (section := section_in(field.annotation)) is not None:
        return section, path
    if get_origin(field.annotation) is dict:
        return section_in(get_args(field.annotation)[1]), f"{path}.<name>"
    if get_origin(field.annotation) is list:
        return section_in(get_args(field.annotation)[0]), f"{path}[]"
    return None, path


def _default_in_file(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None or default in ({}, []):
        return "not given"
    if isinstance(default, BaseModel):
        return "its defaults"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def cli_page() -> str:
    """The help of every command, as the command line prints it."""
    from fedpilot.cli import main  # here, so that the config page needs no command line

    context = click.Context(
        main,
        info_name="fedpilot",
        terminal_width=90,
        max_content_width=90,
        help_option_names=["-h", "--help"],
    )
    return "\n".join([CLI_HEAD, *_command(main, context)])


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## `{context.command_path}`\n"
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                below = click.Context(
                    inner,
                    parent=context,
                    info_name=name,
                    terminal_width=90,
                    max_content_width=90,
                )
                yield from _command(inner, below)


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if something is out of date.")
@click.option("--only", type=click.Choice(["reference", "figures"]), help="Leave the other out.")
@click.option("--redraw", is_flag=True, help="Draw pictures again whose facts have not changed.")
def main(check: bool, only: str | None, redraw: bool) -> None:
    """Write every page whose text has changed, and every picture whose facts have."""
    pages, pictures = ({}, []) if only == "reference" else figures()
    if only != "figures":
        pages |= reference()
    texts = {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in pages}
    changed = [path for path, text in pages.items() if texts[path] != text]
    drawn = [picture for picture in pictures if redraw or not picture.is_current]
    if not check:
        for path in changed:
            path.write_text(pages[path], encoding="utf-8")
        for picture in drawn:
            picture.draw()
    for path in [*changed, *(picture.path for picture in drawn)]:
        click.echo(f"{'out of date:' if check else 'wrote'} {path}")
    if check and (changed or drawn):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
