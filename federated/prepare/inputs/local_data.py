"""The inputs of a run that loads its data set here and divides it over simulated clients."""

from __future__ import annotations

import hashlib
import secrets
from weakref import WeakValueDictionary

import numpy as np

from ... import data as datasets
from ...config.schema import RunConfig
from ...core.population.partitions import disjoint
from ...core.population.partitions.bootstrap import bootstrap
from ...core.population.partitions.partition import Partition, PartitionError
from ...core.state import Array
from ...core.user_code.registry import RegistryError
from ...data import DataError, Dataset
from ...errors import ConfigError
from ..grouping import groups_of
from ..vnode_classes import check_used, classes_of
from .blame import blaming, blaming_users_code
from .model import build_model
from .run_inputs import RunInputs, SiteData, affordable, inputs_of


def gather(config: RunConfig) -> RunInputs:
    """Load the data, make the partition, build the model; ConfigError for a mismatch."""
    dataset, test_x, test_y = _load_data(config)
    partition = _make_partition(config, dataset)
    here = range(partition.number_of_clients)
    groups = groups_of(config, partition, dataset.y, dataset.columns, here)
    data = SiteData(dataset.x, dataset.y, test_x, test_y, dataset.num_classes, partition, groups)
    classes = classes_of(config, partition, dataset.columns, here)
    check_used(config, classes)
    model, digest = build_model(config, data), _digest_of(dataset, test_x, test_y)
    made = inputs_of(config, data, model, data_digest=digest, here=here, classes=classes)
    return affordable(config, made)


_handed_over: WeakValueDictionary[str, RunInputs] = WeakValueDictionary()


def hand_over(inputs: RunInputs) -> str:
    """A ticket with which a site in this process takes the inputs without loading them again."""
    ticket = secrets.token_hex(8)
    _handed_over[ticket] = inputs
    return ticket


def take_over(ticket: str, config: RunConfig) -> RunInputs:
    """The inputs handed over in this process; other sites load their own."""
    return _handed_over.get(ticket) or gather(config)


def _load_data(config: RunConfig) -> tuple[Dataset, Array, Array]:
    name, options = config.data.dataset_type or "", config.data.options
    with blaming("data.dataset_type", ", ".join(datasets.available()), RegistryError):
        datasets.resolve(name)
    allowed = f"the options of `{name}`: {', '.join(datasets.options(name))}"
    with blaming("data.options", allowed, RegistryError):
        datasets.check(name, options)
    with (
        blaming_users_code("data.dataset_type", "a loader that gives a `fedpilot.Dataset`"),
        blaming("data.options", allowed, DataError, OSError),
    ):
        loaded = datasets.load(name, options)
    with blaming("data.test_fraction", "a fraction of at least 0, below 1", DataError):
        train, test_x, test_y = datasets.split(
            loaded, config.data.test_fraction, config.run.random_seed
        )
    if config.evaluation.where == "coordinator" and not len(test_y):
        raise ConfigError.about(
            "data.test_fraction",
            found="an empty test set, with `evaluation.where: coordinator`",
            allowed="a larger fraction, or `evaluation.where: sites`",
        )
    return train, test_x, test_y


def _make_partition(config: RunConfig, dataset: Dataset) -> Partition:
    data, seed, y = config.data, config.run.random_seed, dataset.y
    pattern = config.federation.client_id_pattern
    asked = config.federation.number_of_clients
    count = asked or 0
    key = "federation.number_of_clients"
    if data.data_distribution_kind in ("natural", "fixed", "shards"):
        key = "data.data_distribution_kind"
    allowed = f"what `data_distribution_kind: {data.data_distribution_kind}` can share out"
    with blaming(key, allowed, PartitionError):
        match data.data_distribution_kind:
            case "iid":
                made: Partition = disjoint.iid(y, count, seed, id_pattern=pattern)
            case "dirichlet":
                beta = data.dirichlet_beta or 0.0
                made = disjoint.dirichlet(y, count, beta, seed, id_pattern=pattern)
            case "shards":
                labels = data.labels_per_client or 0
                made = disjoint.shards(y, count, labels, seed, id_pattern=pattern)
            case "quantity":
                beta = data.quantity_beta or 0.0
                made = disjoint.quantity(y, count, beta, seed, id_pattern=pattern)
            case "natural":
                made = disjoint.natural(dataset.client_ids)
            case "fixed":
                matrix = data.distribution_matrix or [[]]
                made = disjoint.fixed(y, matrix, seed, id_pattern=pattern)
            case "bootstrap":
                made = bootstrap(
                    y,
                    count,
                    data.samples_per_client or 0,
                    seed,
                    dirichlet_beta=data.dirichlet_beta,
                    id_pattern=pattern,
                )
    found = made.number_of_clients
    if asked is not None and asked != found:
        raise ConfigError.about(
            "federation.number_of_clients",
            found=f"{asked}, but the data names {found} clients",
            allowed=f"leave it out, or {found}",
        )
    return made


def _digest_of(dataset: Dataset, test_x: Array, test_y: Array) -> str:
    sha = hashlib.sha256(dataset.digest.encode())
    for array in (test_x, test_y):
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
