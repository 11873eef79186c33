"""What sites declare of a data set, and the union of it."""

from __future__ import annotations

from typing import Any

from fedpilot.federated.core.population.federated_data.declarations import Declared
from fedpilot.federated.core.population.federated_data.union import Union, united

SCHEMA = {"input_shape": [1, 28, 28], "dtype": "float32", "num_classes": 10}

PATTERN = "client_{index}"


def told(clients: int = 3, **more: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "residency": "pinned", "clients": clients, **more}


def union_of(**sites: dict[str, Any]) -> Union:
    known = {name: Declared.from_json(name, "scans", told(**more)) for name, more in sites.items()}
    return united("scans", known, pattern=PATTERN)
