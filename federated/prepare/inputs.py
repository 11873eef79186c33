"""What a configuration stands for once its data and its model are loaded: checked before any start.

This is where a configuration meets reality: the data set exists, the partition can be made, the
model accepts the data. Everything that can be wrong here is a `ConfigError` naming the key, found
before Ray is asked for anything. A site makes the same materials from the same configuration; of
data that lies at sites it makes its own part, and whoever coordinates knows what is declared.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from fedpilot.mediator.core.rules.disclosure import Declaration, Found, disclosed
from fedpilot.mediator.errors import PolicyRefused

from .. import data as datasets, models
from ..algorithms import algorithm_of
from ..config.schema import RunConfig, Training
from ..core.population import partition as partitions
from ..core.population.cohort_members import SamplesOf
from ..core.population.federated_data import (
    Declared,
    Elsewhere,
    Held,
    Place,
    Told,
    Union,
    UnionError,
    digest_of_ids,
    ids_of,
    united,
)
from ..core.population.groups import Groups
from ..core.population.partition import Partition, PartitionError
from ..core.population.sampling import Indices, share
from ..core.randomness import Purpose
from ..core.registry import RegistryError
from ..core.rounds.participation import asked
from ..core.rounds.round_costs import Costs
from ..core.state import Array, Role, Roles
from ..core.sums.updates import bytes_of_one
from ..core.user_code.user_errors import account_of
from ..data import DataError, Dataset
from ..data.declared import load_declared, survey
from ..engine.stacking import NotStackable, stack
from ..engine.training.client import client_update_function
from ..engine.training.modules import fitted, loss_function, roles_of, seed_torch, state_of
from ..errors import ConfigError, DataUnusable, FederatedError, Problem
from ..models import ModelError
from .budgets import check_budget
from .grouping import groups_of
from .update_costs import check_aggregation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SiteData:
    """What a site's workers share: samples, test set, and who holds what."""

    x: Array
    """(n, *input_shape), float32 or float64, or int64 (tokens)."""
    y: Array
    """(n,), int64."""
    test_x: Array
    test_y: Array
    num_classes: int
    partition: Partition
    groups: Groups | None = None
    """Of the clients whose samples are here, if the config asks for any."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.x.shape[1:]

    @property
    def nbytes(self) -> int:
        """Bytes of the samples."""
        return sum(a.nbytes for a in (self.x, self.y, self.test_x, self.test_y))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Materials:
    """Everything that a run starts from."""

    data: SiteData
    roles: Roles
    initial: dict[str, Array]
    """The model of round 0."""
    data_digest: str
    """Of the samples; for whoever coordinates data that lies at sites, of what they disclose."""
    cohort_size: int
    """Clients that a round asks."""
    enough: int
    """As many of them are enough: fewer than those with over-sampling."""
    here: range
    """The clients whose samples are here."""
    union: Union | None = None
    """Who is at which site, for whoever coordinates data that lies at sites."""

    @property
    def population(self) -> int:
        """Number of clients."""
        return self.data.partition.number_of_clients

    @property
    def parameters(self) -> int:
        """Numbers in the model's state."""
        return sum(array.size for array in self.initial.values())

    @property
    def bytes_of_update(self) -> int:
        """Bytes of one client's update."""
        return bytes_of_one(self.initial, self.roles)

    def samples_of(self) -> SamplesOf | None:
        """Look up how many samples clients hold, as far as it is known exactly; None if not."""
        if self.union is None:
            return self.data.partition.sizes
        exact = self.union.exact_samples()
        return None if exact is None else exact.__getitem__

    def told_of(self, site: str) -> Told:
        """How the samples of a site's clients may be told; exactly in a simulation."""
        return Told.EXACT if self.union is None else self.union.told.get(site, Told.NONE)

    def costs(self, config: RunConfig) -> Costs:
        """What a round of the run moves, counted by its tensors."""
        return Costs.of(self.initial, self.roles, algorithm_of(config.federation).needs)


def gather(config: RunConfig) -> Materials:
    """Load the data, make the partition, build the model; ConfigError for what does not fit."""
    dataset, test_x, test_y = _load_data(config)
    partition = _make_partition(config, dataset)
    here = range(partition.number_of_clients)
    groups = groups_of(config, partition, dataset.y, dataset.columns, here)
    data = SiteData(dataset.x, dataset.y, test_x, test_y, dataset.num_classes, partition, groups)
    initial, roles = _build_model(config, data)
    population = partition.number_of_clients
    enough = _cohort_size(config, population)
    materials = Materials(
        data=data,
        roles=roles,
        initial=initial,
        data_digest=_digest_of(dataset, test_x, test_y),
        cohort_size=asked(enough, config.participation.over_sampling, population),
        enough=enough,
        here=range(population),
    )
    check_aggregation(config.federation, materials.cohort_size, materials.bytes_of_update)
    check_budget(config, materials.costs(config))
    return materials


def gather_declared(config: RunConfig, declared: Mapping[str, Any]) -> Materials:
    """What a run starts from whose data lies at sites, from what those disclose of it, by site.

    The samples are not here: two blank ones show what they look like. ConfigError for what does not
    fit.
    """
    name = config.data.dataset or ""
    allowed = "data sets that sites declare, alike at all of them"
    with _blaming("data.dataset", allowed, UnionError):
        known = {site: Declared.from_json(site, name, each) for site, each in declared.items()}
        union = united(name, known, pattern=config.federation.client_id_pattern)
    _check_disclosed(config, union)
    schema = union.schema
    x = np.zeros((2, *schema.input_shape), dtype=schema.dtype)
    y = np.zeros(2, dtype=np.int64)
    data = SiteData(x, y, x[:0], y[:0], schema.num_classes, Elsewhere(union))
    initial, roles = _build_model(config, data)
    enough = _cohort_size(config, union.population)
    materials = Materials(
        data=data,
        roles=roles,
        initial=initial,
        data_digest=union.digest,
        cohort_size=asked(enough, config.participation.over_sampling, union.population),
        enough=enough,
        here=range(0),
        union=union,
    )
    check_aggregation(config.federation, materials.cohort_size, materials.bytes_of_update)
    check_budget(config, materials.costs(config))
    return materials


def disclosed_by(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a site of this machine discloses of a data set; nothing if it declares none of it.

    ConfigError for data that are not as declared.
    """
    if name not in data:
        return {}
    with _blaming("sites.site_files", "data as declared", DataError, RegistryError, OSError):
        found = survey(data[name])
    told = Found(samples=found["samples"], labels=found["labels"])
    return {name: disclosed(Declaration.from_json(name, data[name]), told, secret=b"")}


def _check_disclosed(config: RunConfig, union: Union) -> None:
    """Refuse to ask for what sites keep to themselves."""
    if config.outputs.client_digests and union.without_ids:
        sites = ", ".join(union.without_ids)
        raise ConfigError(
            [
                Problem(
                    key="outputs.client_digests",
                    found=f"true, and who its clients are does not leave site {sites}",
                    allowed="false, or data whose `disclose.ids` is `exact` in `site.yaml`",
                )
            ]
        )


def gather_here(
    config: RunConfig, site: str, declarations: Mapping[str, Any], place: Place
) -> Materials:
    """What a site's part of such a run starts from: the data that its admin declared.

    DataUnusable if the data is not what was declared and disclosed; no message says more of it than
    that. PolicyRefused for what the admin keeps at the site.
    """
    name = place.dataset
    if name not in declarations:
        raise DataUnusable(site, name, "no such data set is declared here")
    declaration = Declaration.from_json(name, declarations[name])
    if config.outputs.client_digests and not declaration.disclose.ids:
        raise PolicyRefused(
            site,
            f"datasets.{name}.disclose.ids of site.yaml",
            "`outputs.client_digests: true`, which tells of each client",
            "what does not name clients",
        )
    try:
        dataset = load_declared(declaration)
        owners = partitions.natural(dataset.client_ids)
    except Exception:
        log.exception("data set %s cannot be loaded", name)
        raise DataUnusable(site, name, "it is not as declared, or cannot be read") from None
    ids = [owners.client_id(index) for index in range(owners.number_of_clients)]
    told = digest_of_ids(ids) if declaration.disclose.ids else ""
    if (len(ids), told) != (place.clients, place.ids_digest):
        problem = "its clients are not those that it had when the site joined; join anew"
        raise DataUnusable(site, name, problem)
    called = ids_of(site, ids if declaration.disclose.ids else None, len(ids), place.pattern)
    held = Held(place.first, place.population, replace(owners, ids=called))
    assert declaration.num_classes is not None  # or it would not be as declared
    nobodys = dataset.x[:0], dataset.y[:0]
    try:
        groups = groups_of(config, held, dataset.y, dataset.columns, held.here)
    except ConfigError as error:
        found = error.problems[0].found
        raise DataUnusable(site, name, f"its clients make no groups: {found}") from None
    data = SiteData(dataset.x, dataset.y, *nobodys, declaration.num_classes, held, groups)
    try:
        initial, roles = _build_model(config, data)
    except ConfigError:
        log.exception("the model does not take data set %s", name)
        raise DataUnusable(site, name, "the model, or the loss, does not take it") from None
    enough = _cohort_size(config, place.population)
    return Materials(
        data=data,
        roles=roles,
        initial=initial,
        data_digest=dataset.digest,
        cohort_size=asked(enough, config.participation.over_sampling, place.population),
        enough=enough,
        here=held.here,
    )


_handed_over: WeakValueDictionary[str, Materials] = WeakValueDictionary()


def hand_over(materials: Materials) -> str:
    """A ticket by which a site in this very process takes these, without loading them twice."""
    ticket = secrets.token_hex(8)
    _handed_over[ticket] = materials
    return ticket


def take_over(ticket: str, config: RunConfig) -> Materials:
    """What was handed over in this process; any other site gathers its own."""
    return _handed_over.get(ticket) or gather(config)


@contextmanager
def _blaming(key: str, allowed: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn what goes wrong inside into a ConfigError about this key."""
    try:
        yield
    except kinds as error:
        text = str(error) or type(error).__name__
        if not isinstance(error, FederatedError) and (account := account_of(error)).users:
            text = account.reason
        raise ConfigError([Problem(key=key, found=text, allowed=allowed)]) from error


@contextmanager
def _blaming_users_code(key: str, allowed: str) -> Iterator[None]:
    """Turn what the user's own code raises inside into a ConfigError about this key."""
    try:
        yield
    except FederatedError:
        raise
    except Exception as error:
        if not (account := account_of(error)).users:
            raise
        problem = Problem(key=key, found=account.reason, allowed=allowed)
        raise ConfigError([problem]) from error


def _load_data(config: RunConfig) -> tuple[Dataset, Array, Array]:
    name, options = config.data.dataset_type or "", config.data.options
    with _blaming("data.dataset_type", _names(datasets.available()), RegistryError):
        datasets.resolve(name)
    allowed = f"the options of `{name}`: {_names(datasets.options(name))}"
    with _blaming("data.options", allowed, RegistryError):
        datasets.check(name, options)
    with (
        _blaming_users_code("data.dataset_type", "a loader that gives a `fedpilot.Dataset`"),
        _blaming("data.options", allowed, DataError, OSError),
    ):
        loaded = datasets.load(name, options)
    with _blaming("data.test_fraction", "a fraction of at least 0, below 1", DataError):
        train, test_x, test_y = datasets.split(
            loaded, config.data.test_fraction, config.run.random_seed
        )
    if config.evaluation.where == "coordinator" and not len(test_y):
        raise ConfigError(
            [
                Problem(
                    key="data.test_fraction",
                    found="an empty test set, with `evaluation.where: coordinator`",
                    allowed="a larger fraction, or `evaluation.where: sites`",
                )
            ]
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
    with _blaming(key, allowed, PartitionError):
        match data.data_distribution_kind:
            case "iid":
                made: Partition = partitions.iid(y, count, seed, id_pattern=pattern)
            case "dirichlet":
                beta = data.dirichlet_beta or 0.0
                made = partitions.dirichlet(y, count, beta, seed, id_pattern=pattern)
            case "shards":
                labels = data.labels_per_client or 0
                made = partitions.shards(y, count, labels, seed, id_pattern=pattern)
            case "quantity":
                beta = data.quantity_beta or 0.0
                made = partitions.quantity(y, count, beta, seed, id_pattern=pattern)
            case "natural":
                made = partitions.natural(dataset.client_ids)
            case "fixed":
                matrix = data.distribution_matrix or [[]]
                made = partitions.fixed(y, matrix, seed, id_pattern=pattern)
            case "bootstrap":
                made = partitions.bootstrap(
                    y,
                    count,
                    data.samples_per_client or 0,
                    seed,
                    dirichlet_beta=data.dirichlet_beta,
                    id_pattern=pattern,
                )
    found = made.number_of_clients
    if asked is not None and asked != found:
        raise ConfigError(
            [
                Problem(
                    key="federation.number_of_clients",
                    found=f"{asked}, but the data name {found} clients",
                    allowed=f"leave it out, or {found}",
                )
            ]
        )
    return made


def _build_model(config: RunConfig, data: SiteData) -> tuple[dict[str, Array], Roles]:
    name, options = config.model.model_type, config.model.options
    with _blaming("model.model_type", _names(models.available()), RegistryError):
        models.resolve(name)
    allowed = f"the options of `{name}`: {_names(models.options(name)) or 'none'}"
    with _blaming("model.options", allowed, RegistryError):
        models.check(name, options)
    fits = (
        f"a model for {_kind_of(data.x)} of shape {data.input_shape} and {data.num_classes} "
        "classes, as this data set has"
    )
    with (
        _blaming_users_code("model.model_type", fits),
        _blaming("model.model_type", fits, ModelError, FederatedError, TypeError, RuntimeError),
    ):
        seed_torch(config.run.random_seed, Purpose.INIT)
        built = models.build(name, options, data.input_shape, data.num_classes)
        module = fitted(built, data.x.dtype)
        initial = state_of(module)
        roles = roles_of(module, keep_buffers=config.model.buffers == "keep")
        module.eval()
    if Role.TRAINED not in roles.values():
        found = f"`{name}` has no parameter that requires a gradient"
        raise ConfigError([Problem(key="model.model_type", found=found, allowed=fits)])
    with _blaming("training.loss_function", "`cross_entropy` or `module:function`", RegistryError):
        loss = loss_function(config.training.loss_function)
    with (
        _blaming("model.model_type", fits, Exception),
        torch.no_grad(),
    ):
        probed = _probe(data.x)
        outputs = module(torch.from_numpy(data.x[probed]))
        if len(data.test_x):
            module(torch.from_numpy(data.test_x[_probe(data.test_x)]))
        if config.training.loss_function == "cross_entropy":
            _check_outputs(tuple(outputs.shape), len(probed), data.num_classes)
    scalar = "a function of (outputs, labels) that gives the mean loss, a tensor without dimensions"
    with _blaming("training.loss_function", scalar, Exception):
        _check_loss(loss(outputs.clone().requires_grad_(), torch.from_numpy(data.y[probed])))
    _check_way_of_training(config.training, module)
    return initial, roles


def _check_way_of_training(training: Training, module: torch.nn.Module) -> None:
    function = "`module:function` of a client, see `fedpilot.LocalClient`"
    with _blaming("training.client_update", function, RegistryError):
        client_update_function(training.client_update)
    if training.execution in ("folded", "mapped"):
        every = "`auto`, or `sequential`, which suits every model"
        with _blaming("training.execution", every, NotStackable):
            stack(module, training.execution, 1, rate=None)


def _probe(x: Array) -> Indices:
    """Two samples to try a model on; of tokens, the largest is among them."""
    rows = np.arange(min(2, len(x)))
    if x.dtype.kind == "i":
        rows[-1] = x.reshape(len(x), -1).max(axis=1).argmax()
    return rows


def _kind_of(x: Array) -> str:
    return "tokens (int64, as `transformer` takes them)" if x.dtype.kind == "i" else "samples"


def _check_outputs(shape: tuple[int, ...], samples: int, num_classes: int) -> None:
    if len(shape) != 2 or shape[0] != samples or shape[1] < num_classes:
        raise ValueError(
            f"for {samples} samples the model gives outputs of shape {shape}, where cross entropy "
            f"needs ({samples}, {num_classes})"
        )


def _check_loss(found: object) -> None:
    if not isinstance(found, torch.Tensor) or found.ndim or not found.requires_grad:
        what = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else repr(found)
        raise ValueError(f"it gives {what}, of which no gradient can be taken")


def _cohort_size(config: RunConfig, population: int) -> int:
    federation = config.federation
    if federation.client_sampling_rate is not None:
        return share(population, federation.client_sampling_rate)
    named = federation.clients_per_round
    if named is not None and named > population:
        raise ConfigError(
            [
                Problem(
                    key="federation.clients_per_round",
                    found=f"{named} clients per round out of a population of {population}",
                    allowed=f"at most {population}",
                )
            ]
        )
    return population if named is None else named


def _digest_of(dataset: Dataset, test_x: Array, test_y: Array) -> str:
    sha = hashlib.sha256(dataset.digest.encode())
    for array in (test_x, test_y):
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names)
