"""`runs verify` at the command line: exit codes, options, one document, progress."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from federations import ROUNDS
from fedpilot.cli import main
from fedpilot.federated.federation.verify.report import ProgressLine
from records import Archive, edit_manifest, flip


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["runs", "verify", *arguments], prog_name="fedpilot")


def test_the_command_says_what_is_what_by_its_exit_code(archive: Archive, base: Path) -> None:
    folder = ["--folder", str(archive.runs), "--replay", "none"]
    assert invoke("base", *folder).exit_code == 0
    assert invoke(str(base), "--replay", "none").exit_code == 0
    assert invoke("nobody", *folder).exit_code == 2
    assert invoke("base", "other", "third", *folder).exit_code == 2
    edit_manifest(base, code_digest="0" * 64)
    assert invoke("base", *folder).exit_code == 3
    flip(base / "model.safetensors")
    assert invoke("base", *folder).exit_code == 1


def test_only_what_decides_nothing_may_be_set(archive: Archive, base: Path) -> None:
    folder = ["--folder", str(archive.runs), "--replay", "none"]
    assert invoke("base", *folder, "--set", "resources.workers=1").exit_code == 0
    refused = invoke("base", *folder, "--set", "training.learning_rate=0.5")
    assert refused.exit_code == 2
    assert "training.learning_rate: 0.1 -> 0.5" in refused.stderr
    assert invoke("base", *folder, "--set", "training.learning_rat=0.5").exit_code == 2


def test_the_command_prints_one_document(archive: Archive, base: Path) -> None:
    result = invoke("base", "--folder", str(archive.runs), "--replay", "none", "--json")
    printed = json.loads(result.stdout)
    assert printed.keys() == {
        *("runs", "summary", "exit_code", "checks", "replay", "comparison", "round", "failure")
    }
    assert printed["checks"][0]["rounds"] == ROUNDS
    assert printed["exit_code"] == result.exit_code == 0


def test_progress_is_told_now_and_then() -> None:
    now, out = [0.0], io.StringIO()
    with ProgressLine(out, clock=lambda: now[0]) as telling:
        for second in range(25):
            now[0] = float(second)
            telling("training rounds again", second, 30)
    assert out.getvalue().splitlines() == [
        "training rounds again: 10 of 30",
        "training rounds again: 20 of 30",
    ]
