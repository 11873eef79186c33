"""Put benchmarks/results.json into docs/benchmarks.md and draw docs/images/benchmarks.png.

The page's tables lie between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import run
from clusters import answers, autoscaler, exchange, healing, lifecycle, reserve, scheduler, tasks
from measuring import HERE, RESULTS, Run, load, ratios, spread, table
from mediation import link_bytes, sites, transfer
from run import OURS, grouped, rates
from training import accuracy, population, round_time, topologies, whole_process
from workload import BATCH, WORKLOADS

PAGE = HERE.parent / "docs" / "benchmarks.md"
PICTURE = PAGE.parent / "images" / "benchmarks.png"
PLACE = re.compile(r"(<!-- begin (\w+) -->\n)(.*?)(<!-- end \2 -->)", re.DOTALL)
NOTHING = "Not measured yet."

MODELS = {
    "mlp": "MLP 64-128-10, 9,610 parameters",
    "cnn": "CNN, 1.6 M parameters",
    "resnet18": "ResNet-18, 11.2 M parameters",
    "transformer": "4 layers of width 192, 1.8 M parameters",
}
Results = Mapping[str, Any]


def filled(page: str, results: Results) -> str:
    """The page with everything that is generated in its place."""
    return PLACE.sub(lambda m: f"{m[1]}{PLACES[m[2]](results).strip()}\n{m[4]}", page)


def workloads(_results: Results) -> str:
    rows = [
        [
            name,
            MODELS[each.model],
            f"{each.population:,}",
            f"{each.cohort:,}",
            " to ".join(map(str, sorted(set(each.samples)))),
            str(each.rate),
        ]
        for name, each in WORKLOADS.items()
    ]
    header = ["workload", "model", "clients", "clients per round", "samples of a client", "rate"]
    recipe = f"A client does one epoch of plain SGD, in order, in batches of {BATCH}."
    return f"{table(header, rows)}\n\n{recipe}"


def environment(results: Results) -> str:
    """Where the sections were measured, and with what; said once if it is the same for all."""
    said: dict[str, list[str]] = {}
    for section in SECTIONS:
        if section in results:
            machine, found = results[section]["machine"], results[section]["versions"]
            where = (
                f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
                f"Python {machine['python']}"
            )
            said.setdefault(where, [])
            for name, packages in found.items():
                versions = ", ".join(f"{p} {v}" for p, v in sorted(packages.items()))
                line = f"    * {name}: {versions}"
                if line not in said[where]:
                    said[where].append(line)
    return "\n".join(f"* {where}\n" + "\n".join(lines) for where, lines in said.items()) or NOTHING


def peers(results: Results) -> str:
    groups = grouped(results["peers"]["runs"]) if "peers" in results else {}
    return (
        "\n\n".join(
            f"### {name}: {title(name)}\n\n{run.text(runs)}" for name, runs in groups.items()
        )
        or NOTHING
    )


def title(workload: str) -> str:
    """What a workload is, in few words."""
    each = WORKLOADS[workload]
    return f"{MODELS[each.model]}, {each.cohort:,} of {each.population:,} clients"


def picture(results: Results) -> str:
    if "peers" not in results:
        return NOTHING
    return "![Clients per second of fedpilot and its peers](images/benchmarks.png)"


def section(name: str, text: Callable[[Mapping[str, list[Run]]], str]) -> Callable[[Results], str]:
    """A place that one benchmark fills."""
    return lambda results: text(results[name]["runs"]) if name in results else NOTHING


MEASURED = (
    *(round_time, whole_process, population, topologies),
    *(lifecycle, healing, autoscaler, reserve, tasks, scheduler, answers, exchange, accuracy),
    *(transfer, link_bytes, sites),
)
SECTIONS = ("peers", *(each.SECTION for each in MEASURED))
PLACES: dict[str, Callable[[Results], str]] = {
    "picture": picture,
    "workloads": workloads,
    "environment": environment,
    "peers": peers,
    **{each.SECTION: section(each.SECTION, each.text) for each in MEASURED},
}

INK, FADED, FAINT = "#1f2933", "#52606d", "#cbd2d9"
BARS = {
    "fedpilot": ("fedpilot, 2 workers", "#0b7285"),
    "loop": ("plain PyTorch loop, its best", "#adb5bd"),
    "pfl": ("pfl-research, its best", "#f2b36f"),
    "Flower": ("Flower, its best", "#e8590c"),
}
"""Part of a name -> what the bar is called, and its colour."""


def best(runs: Mapping[str, list[Run]], part: str) -> list[float]:
    """Clients per second, turn by turn: fedpilot with two workers, others in their best setting."""
    mine = [OURS] if part == "fedpilot" else [name for name in runs if part in name]
    found = [rates(runs[name]) for name in mine if name in runs]
    return max(found, key=lambda each: spread(each).median, default=[])


def short(number: float) -> str:
    """Three digits that count."""
    digits = max(0, 2 - math.floor(math.log10(number)))
    return f"{float(f'{number:.3g}'):,.{digits}f}"


def draw(results: Results, path: Path) -> None:
    """Bars of clients per second, a group for each workload, on a logarithmic scale."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    groups = grouped(results["peers"]["runs"])
    figure = Figure(figsize=(10, 1.2 + 1.22 * len(groups)), dpi=150, layout="constrained")
    axes = figure.subplots()
    slowest, fastest, top = math.inf, 0.0, 0.0
    for workload, runs in groups.items():
        model, _, more = title(workload).partition(", ")
        at_left = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(-0.015, top + 0.5, workload, **at_left, fontsize=11, weight="bold", color=INK)
        label = f"{model}\n" + more.replace("parameters, ", "parameters\n")
        axes.text(-0.015, top + 1.05, label, **at_left | {"va": "top"}, fontsize=8.5, color=FADED)
        ours = best(runs, "fedpilot")
        for part, (_, colour) in BARS.items():
            mine = part == "fedpilot"
            if theirs := best(runs, part):
                rate = spread(theirs).median
                slowest, fastest = min(slowest, rate), max(fastest, rate)
                axes.barh(top, rate, height=0.86, align="edge", color=colour)
                times = "" if mine or not ours else f"  (× {short(ratios(ours, theirs).median)})"
                axes.annotate(
                    short(rate) + times,
                    (rate, top + 0.43),
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=9 if mine else 8.5,
                    weight="bold" if mine else "normal",
                    color=INK,
                    bbox={"color": "white", "pad": 1},
                )
            elif part == "Flower" and not WORKLOADS[workload].flower_rounds:
                said = "Flower: no round within two minutes"
                at_left |= {"ha": "left", "fontsize": 8.5}
                axes.text(0.006, top + 0.43, said, **at_left, color=FADED)
            else:
                continue
            top += 1
        top += 1.2
    axes.set_xscale("log")
    axes.set_xlim(10 ** math.floor(math.log10(slowest) - 0.3), 5 * fastest)
    axes.set_ylim(top - 0.8, -0.6)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    cores = results["peers"]["machine"]["cores"]
    axes.set_xlabel(
        f"clients trained per second, {cores} CPU cores, logarithmic; in brackets: how many times "
        "as fast fedpilot is",
        fontsize=9.5,
        color=INK,
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    figure.legend(
        handles=[Patch(color=colour, label=label) for label, colour in BARS.values()],
        loc="outside upper right",
        ncols=len(BARS),
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
    )
    figure.savefig(path, format="png")


def main() -> None:
    results = load(RESULTS)
    PAGE.write_text(filled(PAGE.read_text(), results))
    print(f"wrote {PAGE.relative_to(HERE.parent)}")
    if "peers" in results:
        draw(results, PICTURE)
        print(f"wrote {PICTURE.relative_to(HERE.parent)}")
