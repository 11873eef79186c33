"""The example cases come out as they and the page about quotas say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cluster_documents import printed
from fedpilot.fabric.cli.terminal.simulated import case_view
from fedpilot.fabric.simulation.case_file import read_cases
from fedpilot.fabric.simulation.expectations import differences
from fedpilot.fabric.simulation.play import play

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples" / "scheduling").iterdir())
PAGE = (ROOT / "docs" / "how-to" / "try-quotas.md").read_text()


def blocks(kind: str) -> list[str]:
    """What the page has in blocks of a kind."""
    return [part.split("```")[0] for part in PAGE.split(f"```{kind}\n")[1:]]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_on_the_page_and_comes_out_as_both_say(file: Path) -> None:
    (case,) = read_cases(file)
    answer = play(case)
    assert differences(case, answer) == []
    shown = printed(case_view(case, answer, []), width=120)
    assert f"fedpilot simulate examples/scheduling/{file.name}" in PAGE
    assert [text for text in blocks("text") if text.strip() in shown]


def test_the_page_has_the_first_example() -> None:
    (shown,) = blocks("yaml")
    assert yaml.safe_load(shown) == yaml.safe_load(EXAMPLES[-1].read_text())


def test_with_equal_quotas_other_work_waits(tmp_path: Path) -> None:
    changed = yaml.safe_load(EXAMPLES[-1].read_text())
    del changed["expect"]
    for project in changed["projects"]:
        project["quota"]["default"]["gpu"] = 4
    file = tmp_path / "equal.yaml"
    file.write_text(yaml.safe_dump(changed))
    (case,) = read_cases(file)
    waiting = play(case)["waiting"]["vision-train"]["text"]
    assert "with it vision would exceed its fair share" in waiting
