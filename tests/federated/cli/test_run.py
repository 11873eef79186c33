"""The commands as a newcomer meets them: what is wrong is said before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result

from command_line import GOOD, invoke
from fedpilot.cli import COMMANDS

pytestmark = pytest.mark.usefixtures("own_folder")


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
        GOOD + "resources: {ray: {cluster: nowhere.yaml}}\n",
        2,
        ["nowhere.yaml", "there is no such file"],
        id="a declaration of a Ray cluster that is not there",
    ),
    pytest.param(
        GOOD + "resources: {workers: 3, ray: {num_cpus: 2}}\n",
        3,
        ["3 workers (1 CPU each)", "--set resources.workers=2"],
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
        pytest.param(("run", "a.yaml", "--resume", "b"), "exactly one", id="config and resume"),
        pytest.param(
            ("run", "--resume", "b", "--run-id", "c"), "keeps its id", id="another id for it"
        ),
        pytest.param(
            ("run", "--resume", "b", "--mediator", "h:1", "--set", "run.name=c"),
            "keeps its config at a mediator",
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
