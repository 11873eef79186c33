"""FoldedModule: a module whose batch holds the samples of several clients.

The module's own code runs unchanged on (clients * batch) samples; its layers with weights are
replaced by stacked ones. Checks ensure that only known layers use weights, that only nn.Dropout
draws random numbers, and that torch.fx can trace the code: no branch depends on values. Mixed
samples (as in batch normalization) show when the probe compares with training one by one.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from .layers import LAYERS, Axis
from .protocol import NotStackable

RANDOM = frozenset(
    {
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout"),
        *("feature_alpha_dropout", "rrelu", "gumbel_softmax", "bernoulli", "bernoulli_", "rand"),
        *("rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "multinomial"),
        *("normal", "normal_", "uniform_", "exponential_", "poisson", "random_"),
    }
)
RANDOM_LAYERS = (
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)


class FoldedModule:
    """A Stacked module with replaced layers; raises NotStackable where that would be wrong."""

    def __init__(self, module: nn.Module, capacity: int, *, fused: bool) -> None:
        """Where it can, a backward pass is itself the step of plain SGD if `fused`."""
        self._module = copy.deepcopy(module).train()
        uses = _uses(self._module)
        self._axis = Axis()
        self.rows: dict[str, Tensor] = {}
        self._fixed: dict[str, Tensor] = {}
        self._fused: set[str] = set()
        self.leaves: dict[str, Tensor] = {}
        """Tensors that the optimizer moves: none that the backward pass moves itself."""
        self.random = any(isinstance(m, nn.Dropout) and m.p > 0 for m in module.modules())
        shared = first_names(self._module)
        replaced: dict[int, nn.Module] = {}
        for path, layer in list(self._module.named_modules(remove_duplicate=False)):
            if type(layer) in LAYERS:
                if id(layer) not in replaced:
                    once = fused and uses[path] == 1
                    replaced[id(layer)] = self._replacement(path, layer, capacity, shared, once)
                self._put(path, replaced[id(layer)])
        self._axis.spark = self._axis.spark.to(next(module.parameters()).device).requires_grad_()

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """Frozen parameters and buffers."""
        return self._fixed | dict(self._module.named_buffers(remove_duplicate=False))

    def step_at(self, rate: float) -> None:
        """Set the rate of the steps in backward passes."""
        self._axis.rate = rate

    def seed(self, generators: Sequence[torch.Generator]) -> None:
        """Set each row's generator."""
        self._axis.generators = generators

    def forward(self, clients: int, x: Tensor) -> Tensor:
        """Run the module's own code on the folded batch."""
        axis = self._axis
        axis.clients = clients
        self.leaves = {
            name: rows[:clients].detach().requires_grad_()
            for name, rows in self.rows.items()
            if name not in self._fused
        }
        axis.now = (
            {name: fixed.expand(clients, *fixed.shape) for name, fixed in self._fixed.items()}
            | {name: self.rows[name][:clients] for name in self._fused}
            | self.leaves
        )
        out: Tensor = self._module(x)
        return out

    def _replacement(
        self, path: str, layer: nn.Module, capacity: int, shared: Mapping[int, str], fused: bool
    ) -> nn.Module:
        names, own = {}, dict(layer.named_parameters(recurse=False))
        for local, parameter in own.items():
            name = shared.get(id(parameter), f"{path}.{local}" if path else local)
            names[local] = name
            value = parameter.detach()
            if not parameter.requires_grad:
                self._fixed[name] = value
            elif name not in self.rows:
                self.rows[name] = value.new_empty((capacity, *value.shape))
        kind = LAYERS[type(layer)]
        trained = all(parameter.requires_grad for parameter in own.values())
        fused = (
            fused and kind.fusable and trained and not any(id(p) in shared for p in own.values())
        )
        if fused:
            self._fused.update(names.values())
        try:
            made: nn.Module = kind(layer, self._axis, names, fused=fused)
        except TypeError as error:
            raise NotStackable(f"{path} ({type(layer).__name__}) has {error}") from error
        return made

    def _put(self, path: str, layer: nn.Module) -> None:
        if not path:
            self._module = layer
            return
        owner, _, attribute = path.rpartition(".")
        setattr(self._module.get_submodule(owner), attribute, layer)


def first_names(module: nn.Module) -> dict[int, str]:
    """The first name of every parameter with several (tied weights), by its identity."""
    named = list(module.named_parameters(remove_duplicate=False))
    often = Counter(id(parameter) for _, parameter in named)
    return {id(p): name for name, p in reversed(named) if often[id(p)] > 1}


class _Tracer(fx.Tracer):
    """Traces the modules of one thread: torch.fx alone would trace those of all threads."""

    one_at_a_time = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LAYERS or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module) -> fx.Graph:
    """The graph of a module's code; NotStackable if it depends on values."""
    try:
        with _Tracer.one_at_a_time:
            return _Tracer().trace(module)
    except Exception as error:
        raise NotStackable(f"its code cannot be traced ({_first_line(error)})") from error


def _uses(module: nn.Module) -> Counter[str]:
    """How often each layer is called in a pass; NotStackable for what folding would get wrong."""
    if type(module) in LAYERS:
        return Counter({"": 1})
    parameters = dict(module.named_parameters(remove_duplicate=False))
    uses: Counter[int] = Counter()
    for node in trace(module).nodes:
        target = str(node.target)
        if node.op == "get_attr" and target in parameters:
            raise NotStackable(f"its code uses the parameter {target} by itself")
        if node.op in ("call_function", "call_method") and name_of(node.target) in RANDOM:
            raise NotStackable(f"its code draws random numbers by {name_of(node.target)}")
        if node.op == "call_module":
            layer = module.get_submodule(target)
            uses[id(layer)] += 1
            _check_leaf(target, layer)
    called = dict(module.named_modules(remove_duplicate=False))
    for path, layer in called.items():
        if type(layer) in LAYERS and uses[id(layer)] == 0 and any(True for _ in layer.parameters()):
            raise NotStackable(f"its code never calls {path}")
    return Counter({path: uses[id(layer)] for path, layer in called.items()})


def _check_leaf(path: str, layer: nn.Module) -> None:
    if type(layer) in LAYERS:
        return
    kind = type(layer).__name__
    if isinstance(layer, RANDOM_LAYERS):
        raise NotStackable(f"{path} ({kind}) draws random numbers")
    if next(layer.parameters(), None) is not None or next(layer.buffers(), None) is not None:
        raise NotStackable(f"{path} ({kind}) has no folded form")


def name_of(target: Any) -> str:
    """The name of a torch.fx step: a method or layer by its name, or a function."""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]
