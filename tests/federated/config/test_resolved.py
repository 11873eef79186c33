"""What decides the bits is in the identity, what does not is not, and a config survives writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.common.strict_yaml.wording import all_keys, may_be_none
from fedpilot.federated.config import (
    RunConfig,
    as_before,
    differences,
    identity,
    load_config,
    parse_config,
    to_yaml,
    with_execution,
)

BASE: dict[str, Any] = {
    "federation": {"number_of_clients": 50, "rounds": 40},
    "model": {"model_type": "mlp", "options": {"hidden": [128]}},
    "data": {
        "dataset_type": "digits",
        "data_distribution_kind": "dirichlet",
        "dirichlet_beta": 0.5,
    },
    "evaluation": {"where": "sites", "early_stopping": {"patience": 3}},
}
AT_SITES = ("federation.number_of_clients=null", "data={from: sites, dataset: scans}")
CARRIED = ("participation.deadline_s=9", "participation.late_updates=carry")
SCHEDULE_KEYS = ("", ".kind", ".warmup_rounds", ".gamma", ".every")
STEPPING = ("training.schedule={kind: step, gamma: 0.9, every: 2}",)
DECAYING = ("training.schedule={kind: linear, decay_rounds: 9, final_rate: 0.01}",)
ADAM = ("federation.aggregation_strategy=fedadam",)
GROUPS = ("federation.topology=hierarchical", "hierarchy={groups: {by: label}}")
NEIGHBORS = ("federation.topology=k_connected", "federation.aggregation_strategy=dpsgd")
GRAPH = (*NEIGHBORS, "graph={degree: 4}")

CHANGES: dict[str, tuple[str, ...]] = {
    "run.random_seed": ("run.random_seed=1",),
    "federation.number_of_clients": ("federation.number_of_clients=51",),
    "federation.client_id_pattern": ("federation.client_id_pattern=c{index}",),
    "federation.rounds": ("federation.rounds=41",),
    "federation.clients_per_round": ("federation.clients_per_round=5",),
    "federation.client_sampling_rate": ("federation.client_sampling_rate=0.5",),
    "federation.aggregation_strategy": ("federation.aggregation_strategy=median",),
    "federation.trim": (
        "federation.aggregation_strategy=trimmed_mean",
        "federation.trim=0.2",
    ),
    "federation.byzantine_clients": (
        "federation.aggregation_strategy=krum",
        "federation.byzantine_clients=2",
    ),
    "federation.krum_keeps": (
        "federation.aggregation_strategy=multi_krum",
        "federation.byzantine_clients=2",
        "federation.krum_keeps=9",
    ),
    "federation.server_momentum": (
        "federation.aggregation_strategy=fedavgm",
        "federation.server_momentum=0.5",
    ),
    "federation.server_betas": (*ADAM, "federation.server_betas=[0.5, 0.99]"),
    "federation.server_tau": (*ADAM, "federation.server_tau=0.1"),
    "federation.server_bias_correction": (*ADAM, "federation.server_bias_correction=true"),
    "federation.topology": GROUPS,
    "hierarchy": GROUPS,
    "hierarchy.groups.by": (*GROUPS, "hierarchy.groups={by: column, column: ward}"),
    "hierarchy.groups.column": (*GROUPS, "hierarchy.groups={by: column, column: ward}"),
    "hierarchy.groups.count": (*GROUPS, "hierarchy.groups={by: blocks, count: 5}"),
    "hierarchy.rounds_per_group": GROUPS,
    "hierarchy.clients_per_round": (*GROUPS, "hierarchy.clients_per_round=2"),
    "hierarchy.client_sampling_rate": (*GROUPS, "hierarchy.client_sampling_rate=0.5"),
    "graph": GRAPH,
    "graph.degree": GRAPH,
    "graph.probability": (
        "federation.topology=erdos_renyi",
        "federation.aggregation_strategy=dpsgd",
        "graph={probability: 0.2}",
    ),
    "graph.rows": (
        "federation.topology=torus",
        "federation.aggregation_strategy=dpsgd",
        "graph={rows: 5}",
    ),
    "graph.branching": (
        "federation.topology=tree",
        "federation.aggregation_strategy=dpsgd",
        "graph={branching: 3}",
    ),
    "graph.file": (
        "federation.topology=custom",
        "federation.aggregation_strategy=dpsgd",
        "graph={file: a.edges}",
    ),
    "graph.weights": (*NEIGHBORS, "graph={degree: 4, weights: lazy}"),
    "graph.mixing_steps": (*NEIGHBORS, "graph={degree: 4, mixing_steps: 2}"),
    "graph.adapt": (*NEIGHBORS, "graph={degree: 4, adapt: similar}"),
    "graph.adapt_every": (*NEIGHBORS, "graph={degree: 4, adapt: similar, adapt_every: 5}"),
    "federation.server_learning_rate": ("federation.server_learning_rate=0.5",),
    "federation.assignment": ("federation.assignment=round_robin",),
    "model.model_type": ("model.model_type=cnn",),
    "model.options": ("model.options.hidden=[64]",),
    "model.buffers": ("model.buffers=keep",),
    "data.dataset_type": ("data.dataset_type=npz",),
    "data.options": ("data.options.path=x",),
    "data.from": AT_SITES,
    "data.dataset": AT_SITES,
    "data.test_fraction": ("data.test_fraction=0.1",),
    "data.data_distribution_kind": ("data.data_distribution_kind=iid", "data.dirichlet_beta=null"),
    "data.dirichlet_beta": ("data.dirichlet_beta=1",),
    "data.labels_per_client": (
        "data.data_distribution_kind=shards",
        "data.dirichlet_beta=null",
        "data.labels_per_client=2",
    ),
    "data.quantity_beta": (
        "data.data_distribution_kind=quantity",
        "data.dirichlet_beta=null",
        "data.quantity_beta=2",
    ),
    "data.distribution_matrix": (
        "federation.number_of_clients=null",
        "data.data_distribution_kind=fixed",
        "data.dirichlet_beta=null",
        "data.distribution_matrix=[[1, 0], [0, 1]]",
    ),
    "data.samples_per_client": (
        "data.data_distribution_kind=bootstrap",
        "data.samples_per_client=[1, 9]",
    ),
    "training.number_of_epochs": ("training.number_of_epochs=2",),
    "training.batch_size": ("training.batch_size=2",),
    "training.optimizer": ("training.optimizer=adam",),
    "training.learning_rate": ("training.learning_rate=0.2",),
    **{f"training.schedule{key}": STEPPING for key in SCHEDULE_KEYS},
    "training.schedule.decay_rounds": DECAYING,
    "training.schedule.final_rate": DECAYING,
    "training.momentum": ("training.momentum=0.9",),
    "training.nesterov": ("training.momentum=0.9", "training.nesterov=true"),
    "training.proximal_mu": ("training.proximal_mu=0.1",),
    "training.max_gradient_norm": ("training.max_gradient_norm=2",),
    "training.weight_decay": ("training.weight_decay=0.1",),
    "training.loss_function": ("training.loss_function=mine:loss",),
    "training.shuffle": ("training.shuffle=false",),
    "training.client_update": ("training.client_update=mine:client_update",),
    "training.execution": ("training.execution=folded",),
    "training.chunk_size": ("training.execution=sequential", "training.chunk_size=8"),
    "evaluation.every": ("evaluation.every=2",),
    "evaluation.where": ("evaluation.where=coordinator",),
    "evaluation.clients": ("evaluation.clients=all",),
    "evaluation.fraction": ("evaluation.clients=fraction", "evaluation.fraction=0.5"),
    "evaluation.nodes": (*GRAPH, "evaluation.nodes=all"),
    "evaluation.batch_size": ("evaluation.batch_size=2",),
    "evaluation.metric": ("evaluation.metric=loss",),
    "evaluation.early_stopping": ("evaluation.early_stopping=null",),
    "evaluation.early_stopping.patience": ("evaluation.early_stopping.patience=4",),
    "evaluation.early_stopping.min_delta": ("evaluation.early_stopping.min_delta=0.1",),
    "evaluation.early_stopping.target": ("evaluation.early_stopping.target=0.9",),
    "resources.cpus_per_worker": ("resources.cpus_per_worker=2",),
    "resources.gpus_per_worker": ("resources.gpus_per_worker=0.5",),
    "resources.groups": (
        "resources.groups=[{name: a, workers: 1, clients: {share: 0.5}}, "
        "{name: b, workers: 1, cpus_per_worker: 2}]",
    ),
    "participation.over_sampling": ("participation.over_sampling=0.5",),
    "robustness.max_site_share": ("robustness.max_site_share=0.5",),
    "robustness.max_update_norm": ("robustness.max_update_norm=5",),
    "robustness.max_client_norm": ("robustness.max_client_norm=5",),
    "participation.late_updates": CARRIED,
    "participation.staleness_exponent": (*CARRIED, "participation.staleness_exponent=1"),
    "participation.most_rounds_late": (*CARRIED, "participation.most_rounds_late=2"),
}
"""For every key that decides: overrides of `BASE` that change it."""

WITHOUT_EFFECT: dict[str, str] = {
    "run.name": "other",
    "run.reproducible": "strict",
    "resources.workers": "3",
    "resources.memory_per_worker": "2GB",
    "resources.store_bytes": "1GB",
    "resources.placement_group_strategy": "PACK",
    "resources.reserve_timeout": "1",
    "resources.project": "vision",
    "resources.pool": "gpus",
    "resources.priority_class": "build",
    "resources.start_timeout": "1",
    "resources.worker_timeout": "1",
    "resources.worker_restarts": "0",
    "resources.node_idle_timeout": "1",
    "resources.ray.address": "auto",
    "resources.ray.cluster": "cluster.yaml",
    "resources.ray.auth_mode": "token",
    "resources.ray.num_cpus": "2",
    "resources.ray.num_gpus": "0",
    "participation.quorum": "0.5",
    "participation.deadline_s": "9",
    "participation.replacement": "false",
    "participation.wait_for_sites_s": "9",
    "participation.closing_s": "9",
    "traffic.round_bytes": "1GB",
    "traffic.run_bytes": "1GiB",
    "traffic.site_bytes": "1000000",
    "sites.count": "3",
    "sites.min_sites": "2",
    "sites.required": "[local]",
    "training.execution_model": "1",
    "training.execution_reason": "it is Tuesday",
    "outputs.folder": "elsewhere",
    "outputs.checkpoint_every": "2",
    "outputs.curves": "false",
    "outputs.client_digests": "true",
    "outputs.tensorboard": "true",
}


def digest(config: RunConfig) -> str:
    return identity(config, "c0de", "da7a")


def test_the_identity_of_a_config_stays_what_it_is() -> None:
    assert digest(parse_config(BASE)) == (
        "0e8574b078fcf62aa5a0970a8296af75ea144bce05fb5b18182ae72a9185cd8f"
    )


def test_sampled_nodes_are_what_is_left_out() -> None:
    keys = [*NEIGHBORS, "graph={degree: 4}"]
    said = [*keys, "evaluation.nodes=sampled"]
    assert digest(parse_config(BASE, keys)) == digest(parse_config(BASE, said))


def test_ten_rounds_between_adaptations_are_what_is_left_out() -> None:
    keys = [*NEIGHBORS, "graph={degree: 4, adapt: similar}"]
    said = [*NEIGHBORS, "graph={degree: 4, adapt: similar, adapt_every: 10}"]
    assert digest(parse_config(BASE, keys)) == digest(parse_config(BASE, said))


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("fedavg", ["server_learning_rate=1"]),
        ("fedavgm", ["server_learning_rate=1.0", "server_momentum=0.9"]),
        ("fedyogi", ["server_learning_rate=0.1", "server_betas=[0.9, 0.99]", "server_tau=0.001"]),
        ("fedadam", ["server_bias_correction=false"]),
    ],
)
def test_what_a_server_optimizer_uses_by_itself_is_what_is_left_out(
    strategy: str, said: list[str]
) -> None:
    keys = [f"federation.aggregation_strategy={strategy}"]
    more = [*keys, *(f"federation.{each}" for each in said)]
    assert digest(parse_config(BASE, keys)) == digest(parse_config(BASE, more))


def test_a_graph_without_weights_has_the_identity_of_earlier_ones() -> None:
    """They recorded what was the default."""
    keys = [*NEIGHBORS, "graph={degree: 4}"]
    then = ["graph.weights=metropolis", "federation.assignment=capacity"]
    assert digest(parse_config(BASE, keys)) == digest(parse_config(BASE, [*keys, *then]))


def test_every_key_is_known_to_decide_or_not() -> None:
    leaves = {
        key.path
        for key in all_keys(RunConfig)
        if (not key.section or may_be_none(key.field.annotation)) and "sweep" not in key.path
    }
    copies = {"participation.replicate_every", "participation.reassign_every"}
    others = {"sites.site_files", *copies}
    assert leaves == set(CHANGES) | set(WITHOUT_EFFECT) | others


@pytest.mark.parametrize("key", CHANGES)
def test_a_deciding_key_changes_the_identity(key: str) -> None:
    before, after = parse_config(BASE), parse_config(BASE, CHANGES[key])
    assert digest(before) != digest(after)
    assert any(line.startswith(key) for line in differences(before, after))


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_another_key_does_not(key: str) -> None:
    before, after = parse_config(BASE), parse_config(BASE, [f"{key}={WITHOUT_EFFECT[key]}"])
    assert before != after
    assert digest(before) == digest(after)
    assert differences(before, after) == ()


@pytest.mark.parametrize("key", ["replicate_every", "reassign_every"])
def test_where_states_of_a_graph_are_decides_nothing(key: str) -> None:
    before = parse_config(BASE, GRAPH)
    after = parse_config(BASE, [*GRAPH, f"participation.{key}=5"])
    assert before != after
    assert digest(before) == digest(after)
    assert differences(before, after) == ()


def test_the_files_that_declare_data_decide_by_what_they_declare() -> None:
    before = parse_config(BASE, AT_SITES)
    after = parse_config(BASE, [*AT_SITES, "sites.site_files=[a.yaml]"])
    assert before != after
    assert digest(before) == digest(after)


def test_data_at_sites_is_written_down_without_what_does_not_count() -> None:
    config = parse_config(BASE, AT_SITES)
    assert "data:\n  from: sites\n  dataset: scans\n" in f"{to_yaml(config)}\n"
    assert config.model_dump(mode="json")["data"] == {"from": "sites", "dataset": "scans"}
    assert RunConfig.model_validate(config.model_dump(mode="json"), strict=False) == config


def test_vnode_classes_decide_only_if_clients_get_other_bits_in_them() -> None:
    def classes(first: str = "", second: str = "", share: float = 0.5) -> RunConfig:
        one = f"{{name: a, workers: 1, clients: {{share: {share}}}{first}}}"
        return parse_config(BASE, [f"resources.groups=[{one}, {{name: b, workers: 3{second}}}]"])

    threads = ", cpus_per_worker: 2"
    assert digest(classes()) == digest(parse_config(BASE))
    assert digest(classes()) == digest(classes(second=", memory_per_worker: 2GB", share=0.3))
    assert digest(classes(threads, threads)) == digest(
        parse_config(BASE, ["resources.cpus_per_worker=2"])
    )
    others = [classes(), classes(threads), classes("", threads), classes(threads, share=0.3)]
    others += [classes(", gpus_per_worker: 1"), classes(", gpus_per_worker: 1", threads)]
    assert len({digest(each) for each in others}) == len(others)
    (found,) = differences(classes(threads), classes(threads, share=0.3))
    assert found.startswith("resources.groups: ")


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        pytest.param("cpus_per_worker", "1", "1.5", id="a part of a CPU gives no thread"),
        pytest.param("cpus_per_worker", "0.5", "1", id="there is at least one thread"),
        pytest.param("gpus_per_worker", "0.5", "1", id="a share of a GPU is a GPU"),
    ],
)
def test_threads_and_the_kind_of_device_decide_and_not_the_sizes(
    key: str, one: str, other: str
) -> None:
    configs = [parse_config(BASE, [f"resources.{key}={value}"]) for value in (one, other)]
    assert digest(configs[0]) == digest(configs[1])


def test_code_and_data_are_part_of_the_identity() -> None:
    config = parse_config(BASE)
    digests = {identity(config, code, data) for code, data in [("a", "b"), ("b", "a"), ("a", "a")]}
    assert len(digests) == 3


EARLIER = (
    *("training.execution=folded", "training.chunk_size=64"),
    *("training.execution_model=1", "training.execution_reason=it is cheaper"),
)


@pytest.mark.parametrize(
    ("overrides", "execution", "chunk_size"),
    [
        pytest.param([], "folded", 64, id="auto is what it was"),
        pytest.param(["training.execution=folded"], "folded", 64, id="so is the size"),
        pytest.param([*EARLIER], "folded", 64, id="the same by name"),
        pytest.param(["training.execution=mapped"], "mapped", "auto", id="another way"),
        pytest.param(
            ["training.execution=folded", "training.chunk_size=8"], "folded", 8, id="another size"
        ),
    ],
)
def test_auto_means_what_it_meant_in_the_earlier_run(
    overrides: list[str], execution: str, chunk_size: int | str
) -> None:
    earlier, mine = parse_config(BASE, EARLIER), parse_config(BASE, overrides)
    found = as_before(mine, earlier)
    assert (found.training.execution, found.training.chunk_size) == (execution, chunk_size)
    assert (digest(found) == digest(earlier)) == ((execution, chunk_size) == ("folded", 64))
    changes: dict[str, object] = {"execution": execution, "chunk_size": chunk_size}
    if (execution, chunk_size) == ("folded", 64):
        changes |= {"execution_model": 1, "execution_reason": "it is cheaper"}
    assert found.training == mine.training.model_copy(update=changes), "and nothing else changes"


def test_an_earlier_run_that_found_nothing_out_decides_nothing() -> None:
    auto = parse_config(BASE)
    for overrides in ([], ["training.execution=sequential"], [*EARLIER]):
        mine = parse_config(BASE, overrides)
        assert as_before(mine, auto) == mine


def test_an_earlier_run_that_named_its_execution_only_does_not_name_mine() -> None:
    """It died before it found out its chunk size: there is nothing to keep."""
    earlier = parse_config(BASE, ["training.execution=folded"])
    assert as_before(parse_config(BASE), earlier) == parse_config(BASE)


def test_what_auto_was_found_to_mean_is_a_config_that_can_be_written() -> None:
    for execution in ("sequential", "folded", "mapped", "compiled"):
        found = with_execution(parse_config(BASE), execution, 16)
        named = [f"training.execution={execution}", "training.chunk_size=16"]
        assert found == parse_config(BASE, named)
        assert digest(found) != digest(parse_config(BASE))


def test_differences_show_both_values() -> None:
    after = parse_config(
        BASE, ["federation.rounds=10", "federation.clients_per_round=5", "model.options.hidden=[]"]
    )
    assert differences(parse_config(BASE), after) == (
        "federation.rounds: 40 -> 10",
        'model.options: {"hidden": [128]} -> {"hidden": []}',
        "federation.clients_per_round: not given -> 5",
    )


def test_differences_are_told_as_they_are_written() -> None:
    before, after = (
        parse_config(BASE, [f"data.options.path=scans/{city}.npz"]) for city in ("Zürich", "Genève")
    )
    (found,) = differences(before, after)
    assert "Zürich" in found
    assert "Genève" in found


def test_a_config_is_written_in_full_and_readable() -> None:
    lines = to_yaml(parse_config(BASE)).splitlines()
    assert lines[0] == "run:"
    for line in (
        "  random_seed: 0",
        "    hidden: [128]",
        "  learning_rate: 0.1",
        "  shuffle: true",
    ):
        assert line in lines
    assert "" in lines


def test_every_key_that_may_be_null_has_null_as_its_default() -> None:
    """Since `to_yaml` leaves nulls out."""
    for key in all_keys(RunConfig):
        if may_be_none(key.field.annotation):
            assert key.field.get_default() is None, key.path


options = st.dictionaries(
    st.text(),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**62), 2**62)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(deadline=None)
@given(options, st.floats(1e-300, 1e300), st.text())
def test_what_is_written_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], rate: float, folder: str
) -> None:
    config = parse_config(
        {
            **BASE,
            "model": {"model_type": "mlp", "options": options},
            "training": {"learning_rate": rate},
            "outputs": {"folder": folder},
        }
    )
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_text(to_yaml(config), encoding="utf-8", newline="")
    again = load_config(path)
    assert again == config
    assert digest(again) == digest(config)
    assert to_yaml(again) == to_yaml(config)


def test_keys_changed_together_are_written_and_read(tmp_path: Path) -> None:
    for overrides in CHANGES.values():
        config = parse_config(BASE, overrides)
        path = tmp_path / "written.yaml"
        path.write_text(to_yaml(config), encoding="utf-8")
        assert load_config(path) == config


def test_numbers_are_written_as_python_writes_them(tmp_path: Path) -> None:
    numbers = [0.1, 1e-7, 1e22, 5e-324, 3, 0, 12345678901234567890.0, 0.30000000000000004]
    options = {"all": [numbers, [numbers]], "and": "text, [0.1, 1e-7]", "mixed": [1, "two"]}
    config = parse_config({**BASE, "model": {"model_type": "mlp", "options": options}})
    text = to_yaml(config)
    assert f"all: [{numbers}, [{numbers}]]" in text
    path = tmp_path / "written.yaml"
    path.write_text(text)
    assert load_config(path) == config
