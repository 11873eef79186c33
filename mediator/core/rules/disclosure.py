"""Decides what leaves a site about a declared data set: exactly what its admin discloses.

The name, schema, residency and number of clients always leave: no cohort can be drawn without them.
Client ids, samples per client and label counts leave as declared. A number is

* `exact`: as it is;
* `rounded`: to the nearest multiple of ten, halves up;
* `noised`: with two-sided geometric noise (Ghosh et al. 2009, epsilon 1/2), never below 0. It
  depends on the site's secret, the number and its subject, never on time, so repeated questions
  cannot average it out;
* `none`: left out.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

ROUNDED_TO = 10
EPSILON = 0.5
"""Of the noise: likelihoods of neighbouring numbers differ by a factor of at most exp(epsilon)."""


class Disclosure(StrEnum):
    """How a number leaves the site."""

    EXACT = "exact"
    ROUNDED = "rounded"
    NOISED = "noised"
    NONE = "none"


class Residency(StrEnum):
    """Whether a client's work may be done at another site."""

    PINNED = "pinned"
    MOVABLE = "movable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosed:
    """What may leave the site about one data set."""

    ids: bool = False
    """Whether the clients' ids leave; otherwise clients are numbered."""
    counts: Disclosure = Disclosure.NONE
    """Samples of each client."""
    label_histogram: Disclosure = Disclosure.NONE
    """Samples of each label, of the whole data set."""
    client_labels: Disclosure = Disclosure.NONE
    """Samples of each label, of each client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A data set as the site's admin declares it."""

    name: str
    dataset_type: str
    """The loader: a built-in, or `module:function`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    """Absolute. Like the options, it stays at the site."""
    input_shape: tuple[int, ...]
    dtype: str
    num_classes: int | None
    clients: Mapping[str, Any]
    """How clients arise: `arise` with `pattern`, `column` or `file`; stays at the site."""
    residency: Residency = Residency.PINNED
    disclose: Disclosed = Disclosed()

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values, for the workload at this site."""
        return {
            "dataset_type": self.dataset_type,
            "options": dict(self.options),
            "path": self.path,
            "schema": self.schema(),
            "clients": dict(self.clients),
            "residency": str(self.residency),
            "disclose": {
                "ids": self.disclose.ids,
                "counts": str(self.disclose.counts),
                "label_histogram": str(self.disclose.label_histogram),
                "client_labels": str(self.disclose.client_labels),
            },
        }

    @classmethod
    def from_json(cls, name: str, values: Mapping[str, Any]) -> Self:
        schema, told = values["schema"], values["disclose"]
        return cls(
            name=name,
            dataset_type=values["dataset_type"],
            options=values["options"],
            path=values["path"],
            input_shape=tuple(schema["input_shape"]),
            dtype=schema["dtype"],
            num_classes=schema["num_classes"],
            clients=values["clients"],
            residency=Residency(values["residency"]),
            disclose=Disclosed(
                ids=told["ids"],
                counts=Disclosure(told["counts"]),
                label_histogram=Disclosure(told["label_histogram"]),
                client_labels=Disclosure(told.get("client_labels", Disclosure.NONE)),
            ),
        )

    def schema(self) -> dict[str, Any]:
        """What a sample looks like."""
        return {
            "input_shape": list(self.input_shape),
            "dtype": self.dtype,
            "num_classes": self.num_classes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The content of a declared data set; stays at the site."""

    samples: Mapping[str, int | None]
    """Samples of each client, by id; None where the loader does not say."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """Samples of each label."""
    client_labels: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Samples of each label that a client has, by its id; empty where that is not disclosed."""


def disclosed(declaration: Declaration, found: Found, secret: bytes) -> dict[str, Any]:
    """What leaves the site about one data set, as JSON values. The noise depends on `secret`."""
    told = declaration.disclose
    name, clients = declaration.name, sorted(found.samples)
    document: dict[str, Any] = {
        "schema": declaration.schema(),
        "residency": str(declaration.residency),
        "clients": len(clients),
    }
    if told.ids:
        document["ids"] = clients
    counts = [found.samples[id] for id in clients]
    if told.counts is not Disclosure.NONE and None not in counts:
        document["counts"] = [
            _told(told.counts, count or 0, secret, f"{name}/counts/{id}")
            for id, count in zip(clients, counts, strict=True)
        ]
        document["counts_are"] = str(told.counts)
    if told.label_histogram is not Disclosure.NONE and found.labels:
        document["label_histogram"] = {
            label: _told(told.label_histogram, count, secret, f"{name}/labels/{label}")
            for label, count in sorted(found.labels.items())
        }
    if told.client_labels is not Disclosure.NONE and found.client_labels:
        document["client_labels"] = [
            [
                _told(told.client_labels, count, secret, f"{name}/clients/{id}/{label}")
                for label, count in enumerate(found.client_labels[id])
            ]
            for id in clients
        ]
        document["client_labels_are"] = str(told.client_labels)
    return document


def _told(how: Disclosure, number: int, secret: bytes, about: str) -> int:
    if how is Disclosure.ROUNDED:
        return (number + ROUNDED_TO // 2) // ROUNDED_TO * ROUNDED_TO
    if how is Disclosure.NOISED:
        return max(0, number + _noise(secret, f"{about}/{number}"))
    return number


def _noise(secret: bytes, about: str) -> int:
    """Two-sided geometric: the difference of two geometric numbers."""
    drawn = hmac.digest(secret, about.encode(), hashlib.sha256)
    return _geometric(drawn[:8]) - _geometric(drawn[8:16])


def _geometric(bits: bytes) -> int:
    uniform = (int.from_bytes(bits, "big") + 1) / (1 << 64)
    return math.floor(math.log(uniform) / -EPSILON)
