"""A PyTorch module as the federation uses it: its state as NumPy arrays, and their roles."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...core.execution.kernel import cpu_kind
from ...core.population.sampling import Indices
from ...core.proof.environment_diff import ALL
from ...core.randomness import Purpose, torch_seed
from ...core.state import Array, State, TensorRole, role_of
from ...errors import RunRefused
from .training_code import resolve_loss

# oneMKL's matmuls otherwise depend on where in memory a matrix begins, so that a client's bits
# would depend on its place in a chunk. oneMKL reads this on its first use. It overrides the user's
# environment: the bits are the config's.
os.environ["MKL_CBWR"] = "AUTO"

ONE_GENERATOR = threading.RLock()
"""Hold this lock from a seed to the last draw: threads of a process share PyTorch's generator."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""

LIMITING = (
    *("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
    *("NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT"),
)
"""Variables that limit a library's instructions, and so decide bits."""

HELD = frozenset(
    {
        *(torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    }
)
"""Types of tensors that a state may hold."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) -> the mean loss of a batch, a scalar."""


def roles_of(module: nn.Module, *, keep_buffers: bool) -> dict[str, TensorRole]:
    """The role of every tensor of the module's state; RunRefused for one NumPy cannot hold."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    roles = {}
    for name, tensor in module.state_dict().items():
        parameter = parameters.get(name)
        roles[name] = role_of(
            parameter=parameter is not None,
            requires_grad=parameter is not None and parameter.requires_grad,
            kind=_numpy(name, tensor).dtype.kind,
            keep_buffers=keep_buffers,
        )
    return roles


def fitted(module: nn.Module, dtype: np.dtype[Any]) -> nn.Module:
    """The module in its samples' type: float64 for float64 samples, otherwise float32."""
    return module.double() if dtype == np.float64 else module


def state_of(module: nn.Module) -> dict[str, Array]:
    """A copy of the module's state, on the CPU."""
    return {name: _numpy(name, tensor).copy() for name, tensor in module.state_dict().items()}


def seed_torch(seed: int, purpose: Purpose, *, round: int = 0, key: int = 0) -> None:
    """Make torch's own generators a function of these counters (initial weights, dropout)."""
    value = torch_seed(seed, purpose, round=round, key=key)
    # Not torch.manual_seed: it formats a stack trace for every unused device.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(value)


def settle(threads: int, device: str) -> torch.device:
    """Make this process a worker: threads, deterministic kernels, memory that it keeps."""
    torch.set_num_threads(threads)
    _keep_freed_memory()
    if device.startswith("cuda"):
        # cuBLAS reads it when it first multiplies; without it streams may share a workspace.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
    return torch.device(device)


def _keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next tensor of that size.

    By default it returns large blocks to the system, and getting their pages again takes longer
    than a CNN's steps write to them. A no-op elsewhere.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def loss_function(name: str) -> Loss:
    """`cross_entropy`, or the user's own, registered or by dotted path."""
    found: Loss = resolve_loss(name)
    return found


def environment() -> Mapping[str, Any]:
    """Facts besides the config that decide bits, for the manifest."""
    limits = " ".join(f"{n}={os.environ[n]}" for n in LIMITING if os.environ.get(n))
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": importlib.metadata.version("numba"),
        "ray": importlib.metadata.version("ray"),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_kind": cpu_kind(),
        "instructions": limits or ALL,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def client_digests(stacked: Mapping[str, Tensor]) -> Iterator[dict[str, str]]:
    """By client of stacked tensors (k, *shape): 16 hex digits over the bytes of each."""
    arrays = {name: _numpy(name, tensor) for name, tensor in sorted(stacked.items())}
    for client in range(len(next(iter(arrays.values())))):
        yield {
            name: hashlib.blake2b(rows[client].tobytes(), digest_size=8).hexdigest()
            for name, rows in arrays.items()
        }


def to_tensors(state: State, device: torch.device) -> dict[str, Tensor]:
    """A state's tensors on a device; never shares memory with the read-only object store."""
    return {name: torch.from_numpy(np.array(array)).to(device) for name, array in state.items()}


def own_rows(
    models: Mapping[str, Array], places: slice | Indices, device: torch.device
) -> dict[str, Tensor]:
    """Some clients' models as tensors; callers only read them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return {name: torch.from_numpy(rows[places]).to(device) for name, rows in models.items()}


def _numpy(name: str, tensor: Tensor) -> Array:
    if tensor.dtype not in HELD:
        raise RunRefused(
            f"the model's tensor {name!r} has dtype {tensor.dtype}, which cannot be summed "
            "exactly; use float16, float32, float64 or an integer type"
        )
    return tensor.detach().cpu().numpy()
