"""Accuracy is not what pays for speed: fedpilot as it comes, and a plain loop on the same clients.

Partition, cohorts, orders of samples and first models are fedpilot's own pure functions, so that
only the training differs. Both are judged on every fifth of the digits, which neither trains on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import fedpilot_run
import torch
from measuring import HERE, Run, measured, parser, spread, table
from models import train
from torch import nn
from workload import CLASSES, digits

from fedpilot import Federation
from fedpilot.federated.config import parse_config
from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.core.population.sampling import cohort
from fedpilot.federated.core.randomness import Purpose, client_key, stream
from fedpilot.federated.data import Dataset
from fedpilot.federated.models import build
from fedpilot.federated.prepare.inputs.local_data import gather
from fedpilot.federated.prepare.inputs.run_inputs import RunInputs

SECTION = "accuracy"
FEDERATIONS = ("w2", "dirichlet")


def every_fifth() -> Dataset:
    """The digits, every fifth of them to test on."""
    x, y = digits()
    test = torch.arange(len(y)).numpy() % 5 == 0
    return Dataset(
        name="digits", x=x[~test], y=y[~test], num_classes=CLASSES, test_x=x[test], test_y=y[test]
    )


def config(name: str, seed: int, rounds: int, folder: str) -> dict[str, Any]:
    """w2, or 50 clients with few labels each."""
    made = fedpilot_run.config("w2", rounds=rounds, folder=folder)
    made["run"] |= {"name": name, "random_seed": seed}
    made["data"] |= {"dataset_type": "accuracy:every_fifth"}
    if name == "dirichlet":
        made["federation"] |= {"number_of_clients": 50, "clients_per_round": 10}
        del made["data"]["samples_per_client"]
        made["data"] |= {"data_distribution_kind": "dirichlet", "dirichlet_beta": 0.1}
        del made["training"]["shuffle"]
    return made


def sequential(config: RunConfig, inputs: RunInputs) -> nn.Module:
    """Plain PyTorch, one client after another."""
    torch.set_num_threads(1)
    data, seed, rate = inputs.data, config.run.random_seed, config.training.learning_rate
    model = build("mlp", config.model.options, data.input_shape, data.num_classes)
    state = {name: torch.tensor(value) for name, value in inputs.initial.items()}
    for number in range(1, config.federation.rounds + 1):
        total = {
            name: torch.zeros_like(value, dtype=torch.float64) for name, value in state.items()
        }
        weight = 0
        for index in cohort(inputs.population, inputs.cohort_size, seed, number).tolist():
            mine = data.partition.indices(index)
            if config.training.shuffle:
                key = client_key(data.partition.client_id(index))
                order = stream(seed, Purpose.TRAIN, round=number, key=key)
                mine = mine[order.permutation(len(mine))]
            model.load_state_dict(state)
            train(model, data.x[mine], data.y[mine], rate)
            for name, value in model.state_dict().items():
                total[name] += len(mine) * value.double()
            weight += len(mine)
        state = {name: (value / weight).float() for name, value in total.items()}
    model.load_state_dict(state)
    return model


def judged(model: nn.Module, inputs: RunInputs) -> float:
    """Accuracy on the test set, in percent."""
    x, y = torch.from_numpy(inputs.data.test_x), torch.from_numpy(inputs.data.test_y)
    with torch.inference_mode():
        return 100 * float((model.eval()(x).argmax(1) == y).double().mean())


def compared(name: str, seed: int, rounds: int) -> Run:
    """Both ways, once."""
    with tempfile.TemporaryDirectory() as folder:
        parsed = parse_config(config(name, seed, rounds, folder), [])
        with Federation(parsed, search=[str(HERE / "training")]) as federation:
            federation.run()
            ours = federation.module()
    inputs = gather(parsed)
    loop = sequential(parsed, inputs)
    pairs = zip(ours.parameters(), loop.parameters(), strict=True)
    furthest = max(float((mine - theirs).detach().abs().max()) for mine, theirs in pairs)
    mine, theirs = judged(ours, inputs), judged(loop, inputs)
    return {"seed": seed, "fedpilot": mine, "loop": theirs, "furthest_weight": furthest}


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table; means over the seeds."""
    rows = []
    for name, each in runs.items():
        mine, theirs = ([run[who] for run in each] for who in ("fedpilot", "loop"))
        means = [sum(values) / len(values) for values in (mine, theirs)]
        apart = spread(abs(m - t) for m, t in zip(mine, theirs, strict=True)).high
        furthest = max(run["furthest_weight"] for run in each)
        cells = [f"{mean:.2f} %" for mean in means]
        cells += [f"{means[0] - means[1]:+.2f}", f"{apart:.2f}", f"{furthest:.1e}"]
        rows.append([name, *cells, str(len(each))])
    header = ["federation", "fedpilot", "plain loop", "difference, points"]
    return table([*header, "largest of a seed", "furthest weight", "seeds"], rows)


def main() -> None:
    options = parser(__doc__ or "", reps=5)  # a turn is a seed
    options.add_argument("--rounds", type=int, default=100)
    arguments = options.parse_args()

    def once(name: str, turn: int) -> Run:
        return compared(name, turn + 1, arguments.rounds)

    def say(run: Run) -> str:
        return f"fedpilot {run['fedpilot']:.2f} %  loop {run['loop']:.2f} %"

    print("\n" + text(measured(SECTION, FEDERATIONS, once, say, arguments)))
