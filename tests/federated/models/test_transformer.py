"""The built-in transformer learns from sequences, in a form that clients can share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedpilot.federated import data, models

WORDS, LENGTH, FEATURES, CLASSES = 11, 6, 5, 3
SMALL = {"layers": 2, "width": 16, "heads": 4}

KINDS = [
    pytest.param({"vocabulary": WORDS}, (LENGTH,), id="tokens"),
    pytest.param({}, (LENGTH, FEATURES), id="numbers"),
]


def build(options: dict[str, Any], shape: tuple[int, ...], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return models.build("transformer", {**SMALL, **options}, shape, CLASSES)


def samples(count: int, shape: tuple[int, ...]) -> Tensor:
    if len(shape) == 1:
        return torch.randint(WORDS, (count, *shape))
    return torch.randn(count, *shape)


@pytest.mark.parametrize(("options", "shape"), KINDS)
def test_it_gives_logits_for_batches_of_any_size(
    options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    model = build(options, shape)
    x = samples(5, shape)
    together = model(x)
    assert together.shape == (5, CLASSES)
    alone = torch.cat([model(each) for each in x.split(1)])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize(("options", "shape"), KINDS)
def test_a_gradient_reaches_every_weight(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    model = build(options, shape)
    y = torch.arange(20) % CLASSES
    functional.cross_entropy(model(samples(20, shape)), y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        # A key's bias moves all scores of a place by the same amount: its gradient is none.
        assert name.endswith("key.bias") or bool(parameter.grad.abs().sum() > 1e-8), name


@pytest.mark.parametrize(("options", "shape"), KINDS)
def test_equal_seeds_give_equal_models(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    x = samples(4, shape)
    assert torch.equal(build(options, shape)(x), build(options, shape)(x))
    assert not torch.equal(build(options, shape)(x), build(options, shape, seed=1)(x))


@pytest.mark.parametrize(("options", "shape"), KINDS)
def test_its_code_can_be_traced_and_uses_weights_by_layers_only(
    options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    model = build({**options, "dropout": 0.1}, shape)
    traced = fx.symbolic_trace(model)
    assert not [node for node in traced.graph.nodes if node.op == "get_attr"]
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_module"}
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    assert owners <= called
    assert not list(model.buffers())
    for count in (1, 7):
        x = samples(count, shape)
        assert torch.equal(traced.eval()(x), model.eval()(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_computes_in_the_type_of_its_weights(dtype: torch.dtype) -> None:
    model = build({"vocabulary": WORDS}, (LENGTH,)).to(dtype)
    assert model(samples(2, (LENGTH,))).dtype == dtype


def test_the_order_of_tokens_matters() -> None:
    model = build({"vocabulary": WORDS}, (LENGTH,))
    x = torch.arange(LENGTH)[None]
    assert not torch.allclose(model(x), model(x.flip(1)), atol=1e-6)


def test_its_size_is_that_of_its_options() -> None:
    model = models.build("transformer", {"vocabulary": 256}, (64,), 10)
    layer = 12 * 192**2 + 13 * 192
    expected = (256 + 64) * 192 + 4 * layer + 2 * 192 + 193 * 10
    assert sum(each.numel() for each in model.parameters()) == expected
    narrow = models.build(
        "transformer", {"vocabulary": 256, "layers": 1, "feed_forward": 1}, (64,), 10
    )
    layer = 6 * 192**2 + 10 * 192
    expected = (256 + 64) * 192 + layer + 2 * 192 + 193 * 10
    assert sum(each.numel() for each in narrow.parameters()) == expected


def test_dropout_is_there_when_asked_for() -> None:
    def rates(dropout: float) -> list[float]:
        model = build({"vocabulary": WORDS, "dropout": dropout}, (LENGTH,))
        return [each.p for each in model.modules() if isinstance(each, nn.Dropout)]

    assert rates(0.0) == []
    assert rates(0.25) == [0.25] * 5


def test_it_learns_made_up_texts() -> None:
    made = data.load(
        "synthetic", {"samples": 300, "vocabulary": 50, "sequence_length": 16, "classes": CLASSES}
    )
    x, y = torch.from_numpy(made.x), torch.from_numpy(made.y)
    model = build({"vocabulary": 50}, made.input_shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for batch_x, batch_y in zip(x[:200].split(10), y[:200].split(10), strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch_x), batch_y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        right = (model(x[200:]).argmax(1) == y[200:]).float().mean()
    assert float(right) > 0.7


@pytest.mark.parametrize(
    ("options", "shape", "told"),
    [
        pytest.param({}, (64,), "the option `vocabulary`", id="tokens without their number"),
        pytest.param({}, (3, 8, 8), r"\(length, features\).* \(3, 8, 8\)", id="images"),
        pytest.param({"vocabulary": 9}, (6, 5), "leave `vocabulary` out", id="numbers as tokens"),
        pytest.param({"vocabulary": 0}, (6,), "vocabulary is 1 at least", id="no tokens"),
        pytest.param({}, (0, 5), r"it needs sequences, .* \(0, 5\)", id="empty sequences"),
        pytest.param({}, (), r"it needs sequences, .* \(\)", id="no sequences"),
        pytest.param({"heads": 5}, (6, 5), "multiple of heads, found 16 and 5", id="odd heads"),
        pytest.param({"layers": 0}, (6, 5), "1 at least, found 0, 16, 4 and 4", id="no layers"),
        pytest.param({"heads": 0}, (6, 5), "1 at least, found 2, 16, 0 and 4", id="no heads"),
        pytest.param({"feed_forward": 0}, (6, 5), "are 1 at least", id="no hidden units"),
        pytest.param({"dropout": 1.0}, (6, 5), r"dropout is in \[0, 1\)", id="dropping all"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: dict[str, Any], shape: tuple[int, ...], told: str
) -> None:
    with pytest.raises(models.ModelError, match=told):
        build(options, shape)
