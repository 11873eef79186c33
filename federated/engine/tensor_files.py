"""Tensors and a JSON header in one safetensors file, replaced atomically: never a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..core.state import Array, State
from ..errors import RunRefused


def write_tensors(
    path: Path, tensors: State, header: Mapping[str, Any] | None = None, *, durable: bool = False
) -> None:
    """Write the file beside its place and move it there; `durable` survives a power cut too."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    metadata = {"fedpilot": json.dumps(header)} if header is not None else None
    try:
        save_file({n: np.asarray(a, order="C") for n, a in tensors.items()}, aside, metadata)
        aside.chmod(0o666 & ~_umask())
        if durable:
            with aside.open("rb") as file:
                os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _umask() -> int:
    """What other files of this process are made with; safetensors makes private ones."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """(header, tensors); RunRefused names a file that is no such file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RunRefused(f"{path} cannot be read as safetensors: {error}") from error
    return json.loads(metadata.get("fedpilot", "{}")), tensors
