"""Tensors and a JSON header in one safetensors file, replaced atomically: never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedpilot.common.host.whole_files import replacing

from ..core.state import Array, State
from ..errors import RunRefused


def write_tensors(
    path: Path, tensors: State, header: Mapping[str, Any] | None = None, *, durable: bool = False
) -> None:
    """Write a temporary file and move it into place; `durable` survives a power cut too."""
    metadata = {"fedpilot": json.dumps(header)} if header is not None else None
    with replacing(path, durable=durable) as aside:
        save_file({n: np.asarray(a, order="C") for n, a in tensors.items()}, aside, metadata)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """(header, tensors); RunRefused names an invalid file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RunRefused(f"{path} cannot be read as safetensors: {error}") from error
    return json.loads(metadata.get("fedpilot", "{}")), tensors
