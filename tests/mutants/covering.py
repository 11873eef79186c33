"""Which tests run a line of a shell, measured: the fast tests once, under coverage.

As a plugin of pytest it names the running test to coverage, so that lines that other threads run
count for it too, and notes how long each test took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutants"
FAST = "not ray and not slow and not soak"
SHELLS = ("common", "fabric", "mediator", "federated")
OMITTED = ("*/core/*", "*/proto/*", "fabric/testing/*")
"""The cores, what is generated, and the fakes for tests."""
FEW = "few"
"""A profile of hypothesis: enough inputs to see which lines a property runs."""

settings.register_profile(FEW, deadline=None, max_examples=5)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines that run from now on are this test's."""
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(item.nodeid)
    began = time.monotonic()
    yield
    with open(os.environ["MUTANTS_DURATIONS"], "a") as file:
        print(json.dumps([item.nodeid, round(time.monotonic() - began, 3)]), file=file)


def measure(name: str, tests: list[str]) -> int:
    """Run tests under coverage; what they cover is kept by name, beside earlier measurements."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    settings_file = FOLDER / "coveragerc"
    settings_file.write_text(
        "[run]\nrelative_files = true\n"
        f"source =\n    {chr(10).join('    ' + each for each in SHELLS).strip()}\n"
        f"omit =\n    {chr(10).join('    ' + each for each in OMITTED).strip()}\n"
    )
    durations = FOLDER / f"{name}.durations"
    durations.unlink(missing_ok=True)
    pythonpath = [
        str(ROOT / "src"),
        str(ROOT / "tests"),
        str(ROOT / "tests" / "support"),
        *map(str, (ROOT / "tests" / "support").glob("[a-z]*/")),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = {
        **os.environ,
        "MUTANTS_DURATIONS": str(durations),
        "HYPOTHESIS_PROFILE": FEW,
        "PYTHONPATH": os.pathsep.join(filter(None, pythonpath)),
    }
    measuring = ["coverage", "run", f"--rcfile={settings_file}"]
    measuring.append(f"--data-file={FOLDER / name}.coverage")
    running = ["pytest", "-q", "-p", "mutants.covering", "-p", "no:cacheprovider", "-m", FAST]
    command = [sys.executable, "-m", *measuring, "-m", *running, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


@dataclass
class Covered:
    """Which tests run which line, and how long they take."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def tests(self, path: str, lines: range) -> set[str]:
        """Those that run one of the lines."""
        here = self.lines.get(path, {})
        return set().union(*(here.get(line, set()) for line in lines))

    def sorted(self, path: str, tests: set[str]) -> list[str]:
        """Tests of a module, those first that are named for it, then the quickest."""
        module = f"test_{Path(path).stem}"
        return sorted(
            tests, key=lambda test: (module not in test, self.seconds.get(test, 1.0), test)
        )


def keep(name: str, tests: list[str]) -> None:
    """Note which tests run a mutant's line, for whoever seeks the ones that kill it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.tests").write_text("\n".join(tests))


def kept(name: str) -> list[str]:
    """Those tests; none if they were never noted."""
    file = FOLDER / f"{name}.tests"
    return file.read_text().splitlines() if file.is_file() else []


def seconds() -> dict[str, float]:
    """How long each test took."""
    found: dict[str, float] = {}
    for file in sorted(FOLDER.glob("*.durations")):
        found |= dict(json.loads(line) for line in file.read_text().splitlines())
    return found


def covered() -> Covered:
    """All that was measured."""
    found = Covered()
    for file in sorted(FOLDER.glob("*.coverage")):
        data = coverage.CoverageData(str(file))
        data.read()
        for path in data.measured_files():
            here = found.lines.setdefault(path, {})
            for line, contexts in data.contexts_by_lineno(path).items():
                if tests := {each for each in contexts if each}:
                    here.setdefault(line, set()).update(tests)
    found.seconds = seconds()
    return found
