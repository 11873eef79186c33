"""What a config resolves to, and what check says about a run of it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import GOOD, invoke
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation

pytestmark = pytest.mark.usefixtures("own_folder")

REPOSITORY = Path(__file__).resolve().parents[3]


def test_check_prints_what_the_config_resolves_to() -> None:
    Path("good.yaml").write_text(GOOD)
    result = invoke("check", "good.yaml", "--json")
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout)
    assert printed["config"]["training"]["learning_rate"] == 0.1
    assert printed["clients"] == 50
    assert printed["parameters"] == 9610
    assert printed["bytes_of_updates"] == 0
    training = printed["config"]["training"]
    assert (training["execution"], training["chunk_size"]) == ("compiled", 20)
    assert "as fast as one by one" in training["execution_reason"]


def test_check_says_the_identity_that_a_run_has() -> None:
    Path("good.yaml").write_text(GOOD)
    printed = json.loads(invoke("check", "good.yaml", "--json").stdout)
    with Federation("good.yaml", cluster=FakeCluster([fake_machine("a", CPU=2)])) as federation:
        federation.start()
        assert printed["identity"] == federation.identity
    text = invoke("check", "good.yaml").stdout
    assert f"identity {printed['identity'][:16]}" in text
    assert "execution: compiled" in text


OWN_LOSS = """
from torch.nn.functional import cross_entropy
from loss_parts_for_check import scale

def loss(outputs, labels):
    return scale * cross_entropy(outputs, labels)
"""


@pytest.fixture
def own_loss(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The option that names a loss beside the config."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("losses_for_check.py").write_text(OWN_LOSS)
    Path("loss_parts_for_check.py").write_text("scale = 2.0\n")
    Path("good.yaml").write_text(GOOD)
    yield "training.loss_function=losses_for_check:loss"
    for name in ("losses_for_check", "loss_parts_for_check"):
        sys.modules.pop(name, None)


def test_check_says_which_code_would_go_to_sites(own_loss: str) -> None:
    """And writes it for their admins, who list its digest."""
    result = invoke("check", "good.yaml", "--set", own_loss, "--code", "code.zip")
    assert result.exit_code == 0, result.stderr
    digest = hashlib.sha256(Path("code.zip").read_bytes()).hexdigest()
    files = "loss_parts_for_check.py, losses_for_check.py"
    assert f"# code that would go to sites: {files}\n#   sha256 {digest}\n" in result.stdout
    facts = json.loads(invoke("check", "good.yaml", "--set", own_loss, "--json").stdout)
    assert (facts["code_digest"], facts["code_digests"]) == (digest, [digest])
    assert facts["code_files"] == files.split(", ")


def test_check_has_no_code_to_write_where_none_is_named() -> None:
    Path("good.yaml").write_text(GOOD)
    result = invoke("check", "good.yaml", "--code", "code.zip")
    assert result.exit_code == 2
    assert "good.yaml names no module of your own" in result.stderr
    assert not Path("code.zip").exists()


def test_check_says_what_an_algorithm_costs_that_needs_every_update() -> None:
    Path("good.yaml").write_text(GOOD)
    setting = ("--set", "federation.aggregation_strategy=median")
    printed = json.loads(invoke("check", "good.yaml", "--json", *setting).stdout)
    total = printed["bytes_of_updates"]
    assert total == printed["clients_per_round"] * printed["parameters"] * 4
    text = invoke("check", "good.yaml", *setting).stdout
    assert "`median` keeps every update of a round: " in text
    assert f" x 38.4 KB = {total / 1e3:.0f} KB of memory" in text
    assert "keeps every update" not in invoke("check", "good.yaml").stdout


def test_the_resolved_config_is_a_config() -> None:
    Path("good.yaml").write_text(GOOD)
    Path("resolved.yaml").write_text(invoke("check", "good.yaml").stdout)
    first, second = (
        json.loads(invoke("check", name, "--json").stdout)
        for name in ("good.yaml", "resolved.yaml")
    )
    assert first == second


@pytest.mark.parametrize(
    "config", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_shipped_config_is_right(config: Path) -> None:
    result = invoke("check", str(config))
    assert result.exit_code == 0, result.stderr
