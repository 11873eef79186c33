"""The section `data`: what is learned from, and how its samples are dealt to clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge, Len, Lt, MinLen
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from fedpilot.common.strict_yaml.schema_problems import Conflict

from .values import NonNegativeFloat, Options, Positive, PositiveFloat, Section

DistributionKind = Literal[
    "iid", "dirichlet", "shards", "quantity", "natural", "fixed", "bootstrap"
]

DISTRIBUTION_KEYS: dict[str, tuple[str, ...]] = {
    "iid": (),
    "dirichlet": ("dirichlet_beta",),
    "shards": ("labels_per_client",),
    "quantity": ("quantity_beta",),
    "natural": (),
    "fixed": ("distribution_matrix",),
    "bootstrap": ("samples_per_client", "dirichlet_beta"),
}
"""Which keys of `data` belong to which `data_distribution_kind`."""


class Data(Section):
    """The data of the clients."""

    dataset_type: str | None = Field(default=None, examples=["digits"])
    """A built-in (`digits`, `synthetic`, `npz`, `idx`, `cifar10`, `cifar100`), or your own loader
    as `module:function`. Required without `from`. Every site loads the same data."""
    options: Options = Field(default={})
    """Keyword arguments of the loader, such as `path: data/mnist`."""
    from_: Literal["sites"] | None = Field(default=None, alias="from", examples=["sites"])
    """`sites`: the sites' admins declare the data, and it stays at the sites. The population is the
    union of the declared clients. Leave out all other keys of this section except `dataset`."""
    dataset: str | None = Field(default=None, examples=["scans"])
    """With `from: sites` (required): name of the data set in the sites' declarations. Sites that do
    not declare it take no part."""
    test_fraction: Annotated[float, Ge(0.0), Lt(1.0)] = 0.2
    """Share of the samples to hold out as the coordinator's test set, if the data set has none."""
    data_distribution_kind: DistributionKind = "iid"
    """How the samples are divided over the clients: `iid` at random; `dirichlet` with skewed labels
    and sizes; `shards` with few labels per client; `quantity` with skewed sizes; `natural` by the
    client ids in the data; `fixed` by a matrix; `bootstrap` drawn with replacement."""
    dirichlet_beta: PositiveFloat | None = Field(default=None, examples=[0.5])
    """For `dirichlet` (required), and for the label mix of `bootstrap`: concentration. Smaller is
    more skewed."""
    labels_per_client: Positive | None = Field(default=None, examples=[2])
    """For `shards` (required): most labels per client."""
    quantity_beta: PositiveFloat | None = Field(default=None, examples=[2.0])
    """For `quantity` (required): concentration of the clients' sizes. Smaller is more skewed."""
    distribution_matrix: (
        Annotated[list[Annotated[list[NonNegativeFloat], MinLen(1)]], MinLen(1)] | None
    ) = Field(default=None, examples=[[[0.5, 0.9], [0.5, 0.1]]])
    """For `fixed` (required): one row per client, one column per label; entry [i][j] is the share
    of label j's samples that client i gets."""
    samples_per_client: Positive | Annotated[list[Positive], Len(2, 2)] | None = Field(
        default=None, examples=[[20, 200]]
    )
    """For `bootstrap` (required): samples per client, or a range `[least, most]`."""

    @model_serializer(mode="wrap")
    def _only_what_counts(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Data at sites is not divided, so the keys that say how are left out."""
        values: dict[str, Any] = dumped(self)
        if self.from_ is None:
            return values
        return {name: value for name, value in values.items() if name in ("from", "dataset")}

    def _rules_of_site_data(self) -> Iterator[Conflict]:
        if self.dataset is None:
            yield Conflict(
                key="dataset",
                found="`from: sites` without `dataset`",
                allowed="the name of a data set that sites declare",
            )
        for name, field in type(self).model_fields.items():
            if name not in ("from_", "dataset") and getattr(self, name) != field.get_default():
                yield Conflict(
                    key=name,
                    found=f"`{name}` with `from: sites`",
                    allowed="leave it out: the sites declare their data and its clients",
                )

    def broken_rules(self) -> Iterator[Conflict]:
        if self.from_ is not None:
            yield from self._rules_of_site_data()
            return
        if self.dataset is not None:
            yield Conflict(
                key="dataset",
                found=f"`dataset: {self.dataset}` without `from: sites`",
                allowed="add `data.from: sites`, or use `dataset_type`",
            )
        if self.dataset_type is None:
            yield Conflict(
                key="dataset_type",
                found="neither `dataset_type` nor `from: sites`",
                allowed="one of the two",
            )
        kind = self.data_distribution_kind
        mine = DISTRIBUTION_KEYS[kind]
        if mine and getattr(self, mine[0]) is None:
            yield Conflict(
                key="data_distribution_kind",
                found=f"`{kind}` without `{mine[0]}`",
                allowed=f"add `data.{mine[0]}`, or another kind",
            )
        for key in sorted({key for keys in DISTRIBUTION_KEYS.values() for key in keys}):
            if getattr(self, key) is not None and key not in mine:
                kinds = [k for k, keys in DISTRIBUTION_KEYS.items() if key in keys]
                yield Conflict(
                    key=key,
                    found=f"`{key}` has no effect with `data_distribution_kind: {kind}`",
                    allowed=f"leave it out, or choose {' or '.join(f'`{k}`' for k in kinds)}",
                )
        widths = sorted({len(row) for row in self.distribution_matrix or ()})
        if len(widths) > 1:
            yield Conflict(
                key="distribution_matrix",
                found=f"rows of {widths[0]} to {widths[-1]} columns",
                allowed="rows of the same length, one column per label",
            )
        span = self.samples_per_client
        if isinstance(span, list) and span[0] > span[1]:
            yield Conflict(
                key="samples_per_client",
                found=f"{span}",
                allowed="[least, most] with least <= most",
            )
