"""Two versions of fedpilot for real processes: the last before the rooms, and the code here.

The old one is built as a wheel from the repository's history. What it needs besides comes from the
environment of the tests, and what is missing there is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from real_ray import ENVIRONMENT, REPOSITORY

OLD = "11fbf80d5c15c3f9b35a381652dbfc921dd45370"
"""The last commit before `fabric`, `mediator` and `federated` were divided into rooms."""
LIBRARIES = sysconfig.get_paths()["purelib"]
WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Version:
    """A Python that has one version of fedpilot."""

    name: str
    python: str

    def __str__(self) -> str:
        return self.name

    def fedpilot(
        self, *arguments: str, folder: Path, code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `fedpilot` until it ends, which it does with this exit code."""
        return self.run("-m", "fedpilot", *arguments, folder=folder, code=code, **env)

    def run(
        self, *arguments: str, folder: Path, code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run this Python until it ends, which it does with this exit code."""
        done = subprocess.run(
            [self.python, *arguments],
            cwd=folder,
            env={**ENVIRONMENT, **env},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
        )
        said = f"{self}: {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, said
        return done


NEW = Version("new", sys.executable)


def old_version(folder: Path) -> Version:
    """Build the old version into a folder; the test is skipped where history lacks it."""
    source, made = folder / "source", folder / "old"
    source.mkdir()
    _extract(source)
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder))
    NEW.run(*build, str(source), folder=folder)
    (wheel,) = folder.glob("*.whl")
    old = environment(made, LIBRARIES)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages(made))
    if missing := _missing(site_packages(made)):
        constraints = ("--constraint", str(source / "constraints.txt"))
        pip = ("-m", "pip", "--disable-pip-version-check", "--python", old.python, "install")
        NEW.run(*pip, "--quiet", *constraints, *missing, folder=folder)
    return old


def environment(folder: Path, *libraries: str) -> Version:
    """An environment that also finds what lies in these folders."""
    venv.create(folder, symlinks=True)
    (site_packages(folder) / "libraries.pth").write_text("\n".join(libraries))
    return Version(folder.name, str(folder / "bin" / "python"))


def site_packages(folder: Path) -> Path:
    """Where the packages of an environment are."""
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def _extract(folder: Path) -> None:
    """Lay out the old version's files."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git to take the old version from")
    archive = folder.with_suffix(".tar")
    command = [git, "-C", str(REPOSITORY), "archive", "--output", str(archive), OLD]
    if (done := subprocess.run(command, capture_output=True, text=True)).returncode != 0:
        pytest.skip(f"the repository's history lacks {OLD}: {done.stderr.strip()}")
    shutil.unpack_archive(archive, folder, filter="data")


def _missing(packages: Path) -> list[str]:
    """Names of what the wheel there needs and the environment of the tests lacks."""
    (metadata,) = packages.glob("fedpilot-*.dist-info/METADATA")
    needed = re.findall(r"^Requires-Dist: ([\w.-]+)(?!.*extra ==)", metadata.read_text(), re.M)
    return [name for name in needed if not _is_here(name)]


def _is_here(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
