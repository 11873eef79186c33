"""The two files of a site's admin: `site.yaml` declares its data, `policy.yaml` sets its rules.

Both are read strictly. Neither leaves the site: `core/rules/disclosure.py` decides what does of the
first; of the second, only the rule that a refusal names. Without a `site.yaml` a site declares no
data. Without a `policy.yaml` it takes part in every simulation, but gives no declared data to any
user and runs neither code other than fedpilot's nor commands for the mediator.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedpilot.common.strict_yaml.errors import BadFile, Problem
from fedpilot.common.strict_yaml.records import Strict, load
from fedpilot.common.strict_yaml.schema_problems import wrong_value
from fedpilot.common.strict_yaml.wording import Words
from fedpilot.common.text.amounts import RATE_IN_WORDS, SIZE_IN_WORDS, bytes_of, rate_of

from ...core.links import LinkSpeed
from ...core.rules.disclosure import Declaration, Disclosed, Disclosure, Residency
from ...core.rules.policy import (
    ANY_CODE,
    ROLE_PREFIX,
    ByteCaps,
    CommandPolicy,
    DatasetRule,
    Policy,
    ResourceCaps,
    Simulations,
)
from ...core.rules.roles import Role
from ...errors import PolicyRefused

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
RUNNERS = tuple(role for role in Role if role not in (Role.SITE, Role.MEDIATOR))
"""The roles that a user may have."""


def _size(value: Any) -> Any:
    """Parse a text as bytes; leave other values to the type's own check."""
    if not isinstance(value, str):
        return value
    found = bytes_of(value)
    if found is None:
        raise wrong_value(f'the text "{value[:40]}"', SIZE_IN_WORDS)
    return found


def _rate(value: Any) -> Any:
    """Parse a text as bytes per second; nothing else is a rate, since its unit would be a guess."""
    found = rate_of(value) if isinstance(value, str) else None
    if not found:
        raise wrong_value(f'"{value!s:.40}"', RATE_IN_WORDS)
    return found


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise wrong_value(f"the name {name[:80]!r}", "letters, digits, `.`, `_`, `-`; 63 at most")
    return name


def _user(name: str) -> str:
    role = name.removeprefix(ROLE_PREFIX)
    if name.startswith(ROLE_PREFIX) and role not in RUNNERS:
        roles = " or ".join(f"{ROLE_PREFIX}{each}" for each in RUNNERS)
        raise wrong_value(f'the text "{name[:40]}"', f"a name as in certificates, or {roles}")
    return name


def _code_digest(digest: str) -> str:
    if digest != ANY_CODE and not _DIGEST.fullmatch(digest):
        allowed = "64 digits of 0-9a-f, as `fedpilot check` prints them, or `any`"
        raise wrong_value(f'the text "{digest[:40]}"', allowed)
    return digest


Bytes = Annotated[int, BeforeValidator(_size), Ge(0), Words(SIZE_IN_WORDS)]
Rate = Annotated[float, BeforeValidator(_rate), Words(RATE_IN_WORDS)]
Name = Annotated[str, AfterValidator(_named)]
User = Annotated[str, AfterValidator(_user)]
Digest = Annotated[str, AfterValidator(_code_digest)]
Positive = Annotated[int, Gt(0)]
Amount = Annotated[float, Ge(0)]


# -- site.yaml ------------------------------------------------------------------------------------


class SchemaSection(Strict):
    """Shape and type of a sample, which the loader's samples must match."""

    input_shape: list[Positive]
    """Shape of a sample without the batch dimension, such as `[1, 28, 28]`."""
    dtype: Literal["float32", "float64", "float16", "int64", "int32", "uint8"] = "float32"
    """Type of a sample's values."""
    num_classes: Positive | None = None
    """Number of classes; left out if the target is not a class."""


class ClientsSection(Strict):
    """How samples belong to clients."""

    arise: Literal["file_per_client", "column", "id_list"]
    """What makes a client: a file named by the client's id, all samples with one value in a column,
    or an id in a list."""
    pattern: str | None = None
    """With `file_per_client`: pattern of the files below `path`; left out: `*`."""
    column: str | None = None
    """With `column` (required): name of the column of client ids."""
    file: str | None = None
    """With `id_list` (required): text file with an id per line; relative to `site.yaml`."""

    @model_validator(mode="after")
    def _belongs(self) -> ClientsSection:
        mine = {"file_per_client": "pattern", "column": "column", "id_list": "file"}[self.arise]
        for key in ("pattern", "column", "file"):
            value = getattr(self, key)
            if value is not None and key != mine:
                raise wrong_value(f"`{key}` with `arise: {self.arise}`", f"`{mine}` instead")
            if value is None and key == mine and key != "pattern":
                raise wrong_value(f"`arise: {self.arise}` without `{mine}`", f"add `{mine}`")
        return self


class DiscloseSection(Strict):
    """What the site discloses of this data set, besides name, schema, residency and number of
    clients. `rounded`: to tens; `noised`: with random noise."""

    ids: Literal["exact", "none"] = "none"
    """The clients' ids; with `none`, clients are numbered."""
    counts: Literal["exact", "rounded", "noised", "none"] = "none"
    """Number of samples of each client."""
    label_histogram: Literal["exact", "rounded", "noised", "none"] = "none"
    """Number of samples of each label, over all clients."""
    client_labels: Literal["exact", "rounded", "noised", "none"] = "none"
    """Number of samples of each label, of each client; their sum tells its samples. Noise is drawn
    for each client and label."""


class DatasetSection(Strict):
    """A declared data set."""

    dataset_type: str
    """Loader: a built-in, or `module:function`, as in a run's config."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the loader."""
    path: str | None = None
    """Folder or file of the data; relative to `site.yaml`."""
    schema_: SchemaSection = Field(alias="schema")
    clients: ClientsSection
    residency: Literal["pinned", "movable"] = "pinned"
    """Whether other sites may train a client if this site is lost (`movable`) or not (`pinned`)."""
    disclose: DiscloseSection = DiscloseSection()


class LinkSection(Strict):
    """The site's link to the mediator, which decides which clients exchange over it."""

    up: Rate | None = None
    """How fast the site sends, such as `100 Mbit/s`; counts until it is measured."""
    down: Rate | None = None
    """How fast the site receives, such as `1 Gbit/s`; counts until it is measured."""


class SiteFile(Strict):
    """`site.yaml`."""

    link: LinkSection = LinkSection()
    """The site's link to the mediator. What is neither declared nor measured counts as free."""
    datasets: dict[Name, DatasetSection] = Field(default_factory=dict)
    """The declared data sets, by name."""


def read_site_file(path: Path | None) -> dict[str, Declaration]:
    """The declared data sets by name; none without a file. BadFile if it is wrong."""
    if path is None:
        return {}
    sections = load(path, SiteFile).datasets
    return {name: _declaration(name, section, path) for name, section in sections.items()}


def read_link(path: Path | None) -> LinkSpeed:
    """The declared link of the site; unknown without a file. BadFile if it is wrong."""
    if path is None:
        return LinkSpeed()
    link = load(path, SiteFile).link
    return LinkSpeed(up=link.up, down=link.down)


def _declaration(name: str, section: DatasetSection, file: Path) -> Declaration:
    base, clients = file.absolute().parent, section.clients
    told: dict[str, Any] = {"arise": clients.arise}
    match clients.arise:
        case "file_per_client":
            told["pattern"] = clients.pattern or "*"
            if section.path is None:
                missing = Problem(
                    where=str(file),
                    key=f"datasets.{name}.path",
                    found="it is missing",
                    allowed="the folder with the files of `clients.arise: file_per_client`",
                )
                raise BadFile([missing])
        case "column":
            told["column"] = clients.column
        case "id_list":
            told["file"] = str(base / str(clients.file))
    return Declaration(
        name=name,
        dataset_type=section.dataset_type,
        options=section.options,
        path=None if section.path is None else str(base / section.path),
        input_shape=tuple(section.schema_.input_shape),
        dtype=section.schema_.dtype,
        num_classes=section.schema_.num_classes,
        clients=told,
        residency=Residency(section.residency),
        disclose=Disclosed(
            ids=section.disclose.ids == "exact",
            counts=Disclosure(section.disclose.counts),
            label_histogram=Disclosure(section.disclose.label_histogram),
            client_labels=Disclosure(section.disclose.client_labels),
        ),
    )


# -- policy.yaml ----------------------------------------------------------------------------------


class DatasetRuleSection(Strict):
    """The users and models that may train on a declared data set."""

    users: list[User]
    """Names as in certificates, or a role such as `role:operator`."""
    models: list[str] | None = None
    """Patterns such as `mlp` or `hospital.models:*`; left out: all that the policy's `models`
    allows."""


class ResourcesSection(Strict):
    """The most resources of one run at this site."""

    vnodes: Positive | None = None
    """Vnodes, with one worker each."""
    cpus: Amount | None = None
    """CPUs of all its vnodes."""
    gpus: Amount | None = None
    """GPUs of all its vnodes."""
    memory: Bytes | None = None
    """Memory of all its vnodes."""


class BytesSection(Strict):
    """The most bytes of models and updates in each direction."""

    to_site: Bytes | None = None
    """Bytes that enter the site, mainly models."""
    from_site: Bytes | None = None
    """Bytes that leave the site, mainly updates."""


class PolicyFile(Strict):
    """`policy.yaml`. A key that is left out sets no limit, except for `datasets`, `commands`,
    `code_digests` and `simulations`."""

    users: list[User] | None = None
    """Users that may train here: names as in certificates, or a role such as `role:operator`. Left
    out: all users that the mediator admits."""
    models: list[str] | None = None
    """Patterns of the models that may train here. A pattern with a package name, such as
    `hospital.models:*`, also allows this site to load that package's installed models."""
    code_digests: list[Digest] | None = None
    """Digests of users' modules that may run here, as `fedpilot check` prints them, or `any`. Left
    out: built-ins and installed models that `models` names, but no code that a run brings."""
    datasets: dict[Name, DatasetRuleSection] = Field(default_factory=dict)
    """Rules for declared data sets. No user may train on a data set without a rule."""
    resources: ResourcesSection = ResourcesSection()
    minimum_cohort: Positive = 1
    """Fewest clients that an answer may cover; the site refuses answers about fewer."""
    bytes_per_round: BytesSection = BytesSection()
    """Limits for one run in one round."""
    bytes_per_day: BytesSection = BytesSection()
    """Limits for all runs together, per day in UTC."""
    simulations: Literal["none", "builtin"] | list[str] = "builtin"
    """Undeclared data with which runs may simulate clients: `none`; `builtin`, built-in data sets
    that read no file; or a list of folders, relative to `policy.yaml`, from which runs may also
    read files."""
    commands: Literal["none", "read", "all"] = "none"
    """`fedpilot cluster` and `fedpilot job` commands that the site runs for the mediator: `none`,
    those that only `read`, or `all`."""


def read_policy(path: Path | None) -> Policy:
    """Read a policy file; the default policy without one. BadFile if it is wrong."""
    if path is None:
        return Policy()
    found = load(path, PolicyFile)
    return Policy(
        users=_tuple_or_none(found.users),
        models=_tuple_or_none(found.models),
        code_digests=_tuple_or_none(found.code_digests),
        datasets={
            name: DatasetRule(users=tuple(rule.users), models=_tuple_or_none(rule.models))
            for name, rule in found.datasets.items()
        },
        resources=ResourceCaps(**found.resources.model_dump()),
        minimum_cohort=found.minimum_cohort,
        bytes_per_round=ByteCaps(**found.bytes_per_round.model_dump()),
        bytes_per_day=ByteCaps(**found.bytes_per_day.model_dump()),
        simulations=_simulations(found.simulations, path.parent),
        commands=CommandPolicy(found.commands),
    )


def policy_of(site: str, path: Path | None) -> Policy:
    """Read a site's present policy to decide on a mediator's request.

    A file that cannot be read allows nothing: PolicyRefused; only the site's log says why.
    """
    try:
        return read_policy(path)
    except BadFile as error:
        log.warning("the policy cannot be read, so all is refused: %s", error)
        allowed = "one that can: the site's own log says what is wrong with it"
        raise PolicyRefused(site, "policy.yaml", "a file that cannot be read", allowed) from None


def _simulations(rule: str | list[str], folder: Path) -> Simulations | tuple[str, ...]:
    if isinstance(rule, str):
        return Simulations(rule)
    return tuple(str((folder / each).resolve()) for each in rule)


def _tuple_or_none(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
