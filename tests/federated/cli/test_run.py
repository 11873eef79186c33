"""The commands as a newcomer meets them: what is wrong is said before anything starts."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedpilot.cli import COMMANDS, main
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from fedpilot.federated.federation.run_folder.folder import RunFolder

REPOSITORY = Path(__file__).resolve().parents[3]

GOOD = """
federation: {number_of_clients: 50, clients_per_round: 20, rounds: 2}
model: {model_type: mlp}
data: {dataset_type: digits}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="fedpilot")


def run_broken(text: str, *options: str) -> Result:
    Path("broken.yaml").write_text(text)
    return invoke("run", "broken.yaml", *options)


BROKEN = [
    pytest.param(
        GOOD.replace("rounds", "round"),
        2,
        ["broken.yaml:2", "federation.round", "nearest: federation.rounds"],
        id="an unknown key names the nearest",
    ),
    pytest.param(
        GOOD + "trainin: {batch_size: 5}\n",
        2,
        ["trainin", "nearest: training"],
        id="an unknown section names the nearest",
    ),
    pytest.param(
        GOOD + "learning_rate: 0.1\n",
        2,
        ["training.learning_rate"],
        id="a key outside its section says where it belongs",
    ),
    pytest.param(
        GOOD + "training: {batch_size: ten}\n",
        2,
        ["training.batch_size", "ten", "whole number"],
        id="text where a number belongs",
    ),
    pytest.param(
        GOOD + "training: {batch_size: 2.5}\n",
        2,
        ["training.batch_size", "2.5", "whole number"],
        id="a fraction where a whole number belongs",
    ),
    pytest.param(
        GOOD + "training: {learning_rate: -1}\n",
        2,
        ["training.learning_rate", "-1", "above 0"],
        id="a number out of range",
    ),
    pytest.param(
        GOOD + "training: {optimizer: sgdd}\n",
        2,
        ["training.optimizer", "sgdd", "sgd, adam, adamw", "nearest: sgd"],
        id="a choice that does not exist",
    ),
    pytest.param(
        GOOD + "training: {optimizer: adam, momentum: 0.9}\n",
        2,
        ["training.momentum", "optimizer"],
        id="momentum without sgd",
    ),
    pytest.param(
        GOOD.replace("rounds: 2", "client_sampling_rate: 0.5"),
        2,
        ["clients_per_round", "client_sampling_rate", "one of the two"],
        id="two ways to say how many",
    ),
    pytest.param(
        GOOD.replace("clients_per_round: 20", "clients_per_round: 51"),
        2,
        ["federation.clients_per_round", "51", "50"],
        id="a cohort larger than the population",
    ),
    pytest.param(
        GOOD.replace("digits}", "digits, data_distribution_kind: dirichlet}"),
        2,
        ["dirichlet_beta"],
        id="a kind without its parameter",
    ),
    pytest.param(
        GOOD.replace("digits}", "digits, labels_per_client: 2}"),
        2,
        ["data.labels_per_client", "shards"],
        id="a parameter of another kind",
    ),
    pytest.param(
        GOOD.replace("model: {model_type: mlp}\n", ""),
        2,
        ["model", "missing"],
        id="a section that must be there",
    ),
    pytest.param(
        GOOD.replace("number_of_clients: 50", "number_of_clients: 5000"),
        2,
        ["broken.yaml:2: federation.number_of_clients", "5000", "bootstrap"],
        id="more clients than samples in a disjoint kind",
    ),
    pytest.param(
        GOOD.replace("digits}", "digits, data_distribution_kind: natural}").replace(
            "number_of_clients: 50, ", ""
        ),
        2,
        ["data.data_distribution_kind", "natural"],
        id="natural clients in data that name none",
    ),
    pytest.param(
        GOOD.replace("digits", "digit"),
        2,
        ["data.dataset_type", "'digit'", "digits"],
        id="a data set that does not exist",
    ),
    pytest.param(
        GOOD.replace("digits", "npz, options: {path: missing.npz}"),
        2,
        ["broken.yaml:4: data.options", "missing.npz"],
        id="a data file that is not there",
    ),
    pytest.param(
        GOOD.replace("digits}", "cifar10, options: {path: nowhere}}"),
        2,
        ["nowhere", "data_batch_1.bin"],
        id="a data folder that is not there",
    ),
    pytest.param(
        GOOD.replace("digits}", "digits, options: {imge: true}}"),
        2,
        ["data.options", "imge", "image"],
        id="a misspelt option of the data set",
    ),
    pytest.param(
        GOOD.replace("mlp", "mpl"),
        2,
        ["model.model_type", "'mpl'", "mlp"],
        id="a model that does not exist",
    ),
    pytest.param(
        GOOD.replace("mlp}", "mlp, options: {hiden: [3]}}"),
        2,
        ["model.options", "hiden", "hidden"],
        id="a misspelt option of the model",
    ),
    pytest.param(
        GOOD.replace("mlp", "lenet"),
        2,
        ["model.model_type", "lenet", "(64,)"],
        id="a model of images for data that are none",
    ),
    pytest.param(
        GOOD.replace("mlp", "nowhere:Net"),
        2,
        ["model.model_type", "nowhere"],
        id="a dotted path that leads nowhere",
    ),
    pytest.param(
        GOOD.replace("digits}", "digits, test_fraction: 0.0}"),
        2,
        ["data.test_fraction", "evaluation.where"],
        id="no test set for the coordinator",
    ),
    pytest.param(GOOD + "run: [1\n", 2, ["broken.yaml"], id="YAML that does not parse"),
    pytest.param("", 2, ["broken.yaml", "empty"], id="an empty file"),
    pytest.param(
        GOOD + "resources: {workers: 2, ray: {address: 'localhost:1', num_cpus: 2}}\n",
        2,
        ["resources.ray.address", "num_cpus"],
        id="a size for a Ray that is not ours",
    ),
    pytest.param(
        GOOD + "resources: {workers: 3, ray: {num_cpus: 2}}\n",
        3,
        ["3 nodes of 1 CPU", "2"],
        id="a gang that can never fit says the most that could",
    ),
    pytest.param(
        GOOD + "resources: {workers: 2, gpus_per_worker: 1, ray: {num_gpus: 0}}\n",
        3,
        ["GPU"],
        id="GPUs that are not there",
    ),
    pytest.param(
        GOOD
        + "resources: {workers: 2, placement_group_strategy: STRICT_SPREAD, ray: {num_cpus: 4}}\n",
        3,
        ["STRICT_SPREAD", "1"],
        id="spread strictly over one machine",
    ),
    pytest.param(
        GOOD + "resources: {ray: {address: '127.0.0.1:1'}}\n",
        4,
        ["127.0.0.1:1"],
        id="a Ray that cannot be reached",
    ),
]


@pytest.mark.parametrize(("text", "code", "said"), BROKEN)
def test_a_broken_config_is_refused_in_words(text: str, code: int, said: list[str]) -> None:
    result = run_broken(text)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    for part in said:
        assert part in result.stderr
    assert list(Path("runs").glob("*")) == []


def test_an_override_is_checked_like_the_file() -> None:
    result = run_broken(GOOD, "--set", "training.batch_size=0")
    assert result.exit_code == 2
    assert "--set training.batch_size=0" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("run",), "CONFIG", id="run without a config"),
        pytest.param(("run", "a.yaml", "--resume", "b"), "either", id="config and resume"),
        pytest.param(
            ("run", "--resume", "b", "--run-id", "c"), "keeps its id", id="another id for it"
        ),
        pytest.param(
            ("run", "--resume", "b", "--mediator", "h:1", "--set", "run.name=c"),
            "at a mediator keeps its config",
            id="another config, out of reach",
        ),
        pytest.param(("run", "missing.yaml"), "missing.yaml", id="a config that is not there"),
        pytest.param(("run", "--resume", "nobody"), "no run 'nobody'", id="an unknown run"),
        pytest.param(("rnu", "a.yaml"), "Did you mean `run`?", id="a misspelt command"),
        pytest.param(("runs", "show", "nobody"), "no run 'nobody'", id="showing an unknown run"),
    ],
)
def test_bad_usage_ends_with_2(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


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
    assert f" x 38.4 kB = {total / 1e3:.1f} kB of memory" in text
    assert "keeps every update" not in invoke("check", "good.yaml").stdout


def test_a_run_id_that_is_taken_is_refused_before_anything_is_loaded() -> None:
    Path("good.yaml").write_text(GOOD)
    Path("runs/base").mkdir(parents=True)
    script = (
        "import sys\n"
        "from fedpilot.cli import main\n"
        "try: main(['run', 'good.yaml', '--run-id', 'base'])\n"
        "except SystemExit as end: assert end.code == 2, end.code\n"
        "heavy = {'ray', 'torch', 'fedpilot.federated.federation.federation'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "runs/base exists already; choose another run id" in done.stderr


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


def test_init_writes_a_config_that_is_right_and_keeps_what_is_there() -> None:
    assert invoke("init", "mine.yaml").exit_code == 0
    assert invoke("check", "mine.yaml").exit_code == 0
    assert invoke("init", "mine.yaml").exit_code == 2
    assert invoke("init", "mine.yaml", "--force").exit_code == 0
    told = invoke("init", "other.yaml", "--json")
    assert json.loads(told.stdout) == {"config": "other.yaml"}


def test_doctor_answers_as_json() -> None:
    result = invoke("doctor", "--json")
    assert {finding["status"] for finding in json.loads(result.stdout)["findings"]} <= {
        *("ok", "warn", "fail")
    }


def test_no_runs_is_no_error() -> None:
    assert "no runs" in invoke("runs", "list").stdout
    assert json.loads(invoke("runs", "list", "--json").stdout) == {"runs": [], "more": 0}


def test_the_newest_runs_of_a_folder_are_listed() -> None:
    for name in ("a", "b", "c"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "config.yaml").touch()
    few = invoke("runs", "list", "--last", "2")
    assert [line[0] for line in few.stdout.splitlines()[1:]] == ["b", "c"]
    assert "and 1 older; --all lists them" in few.stderr
    document = json.loads(invoke("runs", "list", "--last", "1", "--json").stdout)
    assert ([run["run_id"] for run in document["runs"]], document["more"]) == (["c"], 2)
    assert len(json.loads(invoke("runs", "list", "--all", "--json").stdout)["runs"]) == 3


def test_runs_of_a_folder_are_removed_unless_they_run() -> None:
    for name in ("a", "b"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "config.yaml").touch()
    with RunFolder.locked(Path("runs/b")):
        refused = invoke("runs", "remove", "a", "b", "--json")
        assert refused.exit_code != 0
        assert json.loads(refused.stdout) == {"removed": ["a"]}
    assert os.listdir("runs") == ["b"]
    missing = invoke("runs", "remove", "a")
    assert missing.exit_code == 2
    assert "no run a in runs/" in missing.stderr
    assert "removed b" in invoke("runs", "remove", "b").stdout
    assert os.listdir("runs") == []


def test_help_loads_neither_ray_nor_torch_nor_the_packages() -> None:
    script = (
        "import sys\n"
        "from fedpilot.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'ray', 'torch', 'numpy', 'pydantic', 'rich', 'fedpilot.federated'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert COMMANDS[command].summary.split()[0].lower() in result.output.lower()
    listed = result.output.partition("\nCommands:\n")[2]
    assert "..." not in listed, "each of its commands is told of in a whole sentence"
