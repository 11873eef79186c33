"""The five commands of the tutorial about sites do what the page says, as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from real_ray import ENVIRONMENT, REPOSITORY, end_session, eventually, free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

PAGE = REPOSITORY / "docs" / "tutorial-three-sites.md"
SITES = ("oslo", "paris", "tokyo")
WITHIN_S = 300.0


def commands(heading: str) -> list[str]:
    """The shell blocks of a section of the tutorial."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    return re.findall(r"^```sh\n(.*?)^```$", section.partition("\n## ")[0], re.M | re.S)


@dataclass
class Newcomer:
    """A shell that somebody types into, in a folder of their own."""

    folder: Path
    shell: subprocess.Popen[str]

    def types(self, command: str, then: str) -> str:
        """Type a command, wait for words that come after it, and say all that came."""
        log = self.folder / "screen"
        before = len(log.read_text())
        assert self.shell.stdin is not None
        self.shell.stdin.write(f"{command}\n")
        self.shell.stdin.flush()
        eventually(lambda: bool(re.search(then, log.read_text()[before:])), WITHIN_S, then)
        return log.read_text()[before:]


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    home = {"HOME": str(tmp_path), "FEDPILOT_CONFIG_DIR": str(tmp_path / "settings")}
    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    with open(tmp_path / "screen", "w") as screen:
        shell = subprocess.Popen(
            ["bash"],
            cwd=tmp_path,
            env={**ENVIRONMENT, **home, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=screen,
            stderr=screen,
            text=True,
            start_new_session=True,
        )
    try:
        yield Newcomer(tmp_path, shell)
    finally:
        assert shell.stdin is not None
        shell.stdin.close()
        end_session(shell.pid)


def test_five_commands_lead_to_three_sites(newcomer: Newcomer) -> None:
    """They are changed in the ports, which others may use here, and in the number of rounds."""
    mediator, profile, join, look, run = commands("The five commands")
    address = f"127.0.0.1:{free_port()}"
    assert mediator == "fedpilot mediator start &\n"
    start = f"fedpilot mediator start --listen {address} --join-port {free_port()} &"
    said = newcomer.types(start, "for a site of another admin")
    assert profile.replace("127.0.0.1:7461", address).strip() in said, "it says what comes next"

    newcomer.types(profile.replace("127.0.0.1:7461", address), "added here")
    newcomer.types(join, r"(?s)(connected to the mediator.*){3}")
    newcomer.types(f"until [ $({look.strip()} | grep -c ready) = 3 ]; do sleep 1; done", "")
    newcomer.types(look, "".join(rf"{site} +● ready[^\n]*\n" for site in SITES))

    said = newcomer.types(f"{run.strip()} --set federation.rounds=3", "runs fetch")
    assert "  sites    3: oslo 1 vnode, paris 1 vnode, tokyo 1 vnode\n" in said
    assert "(resumed)" not in said
    assert "finished after" in said
    assert "Traceback" not in (newcomer.folder / "screen").read_text()
