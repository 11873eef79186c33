"""The plans of the page on assignments: one graph over three sites, divided by each strategy."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedpilot.common.text.amounts import brief, in_bytes
from fedpilot.federated.core.planning.document import document_of
from fedpilot.federated.core.planning.plan import Plan
from fedpilot.federated.federation.remote.planning import plan_file
from fedpilot.federated.federation.report.plan_picture import figure_of

from .pages import ASSIGNMENTS, blocks, files
from .pictures import Picture

CONFIG = "my.yaml"
STRATEGIES = {
    "round_robin": "round_robin",
    "capacity": "capacity",
    "locality": "locality",
    "data_affinity": "data_affinity",
    "own": "my_strategies:by_upload",
}
"""By the name of the picture: as after `federation.assignment`."""
DOTS_PER_INCH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A strategy's plan."""

    name: str
    strategy: str
    plan: Plan


def plans() -> list[Shown]:
    """The plans of the page's config and command, a strategy after another."""
    options = _options()
    with _folder() as folder:
        found = []
        for name, strategy in STRATEGIES.items():
            plan = plan_file(folder / CONFIG, [f"federation.assignment={strategy}"], **options)
            assert isinstance(plan, Plan), plan
            found.append(Shown(name=name, strategy=strategy, plan=plan))
    return found


def _options() -> dict[str, list[str]]:
    """What the page's command adds and removes."""
    (command,) = (each for each in blocks(ASSIGNMENTS, "sh") if "--add-site" in each)
    words = shlex.split(command.replace("\\\n", " "))
    pairs = list(itertools.pairwise(words))
    return {
        key: [word for option, word in pairs if option == f"--{key}-site"]
        for key in ("add", "remove")
    }


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder with the page's config and code, which may be imported while it is there."""
    config = next(each for each in blocks(ASSIGNMENTS, "yaml") if "data:\n" in each)
    modules, path = set(sys.modules), [*sys.path]
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in {CONFIG: config, **files(ASSIGNMENTS)}.items():
            (folder / file).write_text(text, encoding="utf-8")
        try:
            yield folder
        finally:
            sys.path[:] = path
            for file in files(ASSIGNMENTS):
                if (module := file.partition(".")[0]) not in modules:
                    sys.modules.pop(module, None)


def plan_pictures(found: list[Shown]) -> Iterator[Picture]:
    """What `fedpilot plan --picture` draws of each."""
    for each in found:
        yield Picture(
            name=f"assignments/{each.name}",
            facts=[each.strategy, document_of(each.plan), _places(each.plan)],
            figure=lambda each=each: figure_of(each.plan, each.strategy),
            dots_per_inch=DOTS_PER_INCH,
        )


def _places(plan: Plan) -> dict[str, list[list[int]]]:
    """The clients of each site, as ranges."""
    shares = plan.assignment.shares
    return {site: [[r.start, r.stop, r.step] for r in share] for site, share in shares.items()}


def table(found: list[Shown]) -> list[str]:
    """What each strategy's plan costs."""
    sites = [site.site for site in found[0].plan.sites]
    return [
        f"| `assignment` | clients at {', '.join(sites)} | edges between sites "
        "| models that cross in a round | bytes to and from the sites | a round takes |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(_row(each))} |" for each in found),
    ]


def _row(shown: Shown) -> Iterator[str]:
    plan = shown.plan
    assert plan.cut is not None
    assert plan.seconds is not None
    assert plan.bound is not None
    heading = "a-strategy-of-your-own" if shown.name == "own" else shown.name
    yield f"[`{shown.strategy}`](#{heading})"
    yield ", ".join(str(site.clients) for site in plan.sites)
    yield f"{plan.cut.edges:.0f}"
    yield f"{plan.cut.models:.0f}"
    yield f"{in_bytes(plan.bytes_in)}, {in_bytes(plan.bytes_out)}"
    yield f"{brief(plan.seconds)}, bound by the {plan.bound.resource} of {plan.bound.site}"
