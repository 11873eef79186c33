"""What earlier trials of executions found, kept in the user's cache folder: one small file each.

The key names everything that a trial depends on: the model and its code, the optimizer, the shapes,
the versions, the CPU or GPU. A file that cannot be read or written costs a trial, nothing else.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config.schema import Training
from ..core.execution import Choice, Execution, Kind, Question

FORMAT = 2
OURS = frozenset({"torch", "builtins", "typing"})
"""Packages whose code their versions tell."""


def folder() -> Path:
    """Where the files lie: below XDG_CACHE_HOME, or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedpilot" / "executions"


def key(
    module: nn.Module,
    training: Training,
    question: Question,
    *,
    input_shape: tuple[int, ...],
    sizes: list[int],
    memory: int,
    device: torch.device,
) -> str:
    """SHA-256 (hex) of all that the outcome of a trial depends on; `sizes` are the clients'."""
    kinds = {kind for layer in module.modules() for kind in type(layer).__mro__}
    code = {_source(kind) for kind in kinds if kind.__module__.partition(".")[0] not in OURS}
    facts = {
        "format": FORMAT,
        "model": str(module),
        "code": sorted(code),
        "fedpilot": metadata.version("fedpilot"),
        "tensors": [(n, str(t.dtype), list(t.shape)) for n, t in module.state_dict().items()],
        "training": training.model_dump(mode="json", exclude={"execution", "chunk_size"}),
        "question": [question.kind, question.chunk_size, question.cohort],
        "input": list(input_shape),
        "sizes": sorted(sizes),
        "memory": memory >> 28,
        "torch": torch.__version__,
        "numba": metadata.version("numba"),
        "processor": _processor(device),
        "threads": torch.get_num_threads(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def recall(key: str) -> Choice | None:
    """What an earlier trial chose, if there was one."""
    try:
        found = json.loads((folder() / f"{key}.json").read_text())
        size = int(found["chunk_size"])
        return Choice(Execution(Kind(found["kind"]), size), found["reason"]) if size > 0 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(key: str, choice: Choice) -> None:
    """Keep what a trial chose."""
    execution = choice.execution
    text = json.dumps(
        {
            "kind": str(execution.kind),
            "chunk_size": execution.chunk_size,
            "reason": choice.reason,
        }
    )
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        aside = folder() / f".{key}.{os.getpid()}.tmp"
        aside.write_text(text + "\n")
        aside.replace(folder() / f"{key}.json")


def _source(kind: type[Any]) -> str:
    """The module's code where there is one, since a class calls what stands beside it."""
    try:
        return inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):
        return kind.__qualname__


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "cpu family", "model\t")):
                return f"{line.partition(':')[2].strip()} {torch.backends.cpu.get_cpu_capability()}"
    return f"{platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
