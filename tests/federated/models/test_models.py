"""Built-in models fit the data they are given, or say why they do not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

from fedpilot.federated import models
from fedpilot.federated.core.user_code.registry import BadOption, UnknownName

BUILT_IN = ("cnn", "lenet", "logistic_regression", "mlp", "resnet18")
IMAGES_ONLY = ("cnn", "lenet", "resnet18")
SMALL: dict[str, dict[str, Any]] = {"resnet18": {"width": 4}}


class Mine(nn.Module):
    """A model of the user's: takes the number of classes, not the shape."""

    def __init__(self, num_classes: int, *, width: int = 2) -> None:
        super().__init__()
        self.out = nn.Linear(width, num_classes)


def free_size(**options: int) -> nn.Module:
    return nn.Linear(options.get("inputs", 1), options.get("num_classes", 1))


def not_a_model() -> str:
    return "model"


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in model.parameters()]


def test_the_built_ins_are_listed() -> None:
    assert set(BUILT_IN) <= set(models.available())


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(
    "shape",
    [(1, 8, 8), (3, 9, 11), (1, 13, 8), (1, 28, 28), (3, 32, 32)],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_every_model_takes_images_and_learns_from_them(name: str, shape: tuple[int, ...]) -> None:
    model = models.build(name, SMALL.get(name), shape, 7)
    logits = model(torch.randn(3, *shape))
    assert logits.shape == (3, 7)
    logits.square().mean().backward()
    gradients = [each.grad for each in model.parameters()]
    assert all(each is not None and bool(each.isfinite().all()) for each in gradients)


@pytest.mark.parametrize("name", ["logistic_regression", "mlp"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 2, 3, 4)])
def test_dense_models_take_any_shape(name: str, shape: tuple[int, ...]) -> None:
    assert models.build(name, {}, shape, 4)(torch.randn(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("name", BUILT_IN)
def test_models_have_no_statistics_of_batches(name: str) -> None:
    assert not list(models.build(name, SMALL.get(name), (1, 8, 8), 10).buffers())


@pytest.mark.parametrize("name", BUILT_IN)
def test_equal_seeds_give_equal_first_weights(name: str) -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(models.build(name, SMALL.get(name), (1, 8, 8), 10).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", BUILT_IN)
def test_clients_can_be_trained_side_by_side(name: str) -> None:
    model = models.build(name, SMALL.get(name), (1, 8, 8), 3)
    stacked = {key: torch.stack([value.detach()] * 2) for key, value in model.named_parameters()}
    x = torch.randn(2, 4, 1, 8, 8)

    def one_client(weights: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(model, weights, (inputs,))
        return out

    together = torch.func.vmap(one_client)(stacked, x)
    alone = torch.stack([model(each) for each in x])
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_mlp_for_digits_is_two_linear_layers() -> None:
    model = models.build("mlp", None, (64,), 10)
    assert isinstance(model, nn.Sequential)
    assert [type(each) for each in model] == [nn.Linear, nn.ReLU, nn.Linear]
    assert shapes(model) == [(128, 64), (128,), (10, 128), (10,)]


def test_hidden_layers_are_as_asked() -> None:
    deep = models.build("mlp", {"hidden": [200, 200]}, (1, 28, 28), 10)
    assert shapes(deep)[::2] == [(200, 784), (200, 200), (10, 200)]
    assert shapes(models.build("mlp", {"hidden": []}, (64,), 10)) == [(10, 64), (10,)]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        pytest.param("lenet", (1, 28, 28), 10, 61_706, id="LeNet-5 has 61,706 parameters"),
        pytest.param("cnn", (1, 28, 28), 62, 1_206_590, id="the EMNIST CNN has 1,206,590"),
        pytest.param("resnet18", (3, 32, 32), 10, 11_173_962, id="ResNet-18 has 11,173,962"),
    ],
)
def test_models_have_the_size_of_the_published_ones(
    name: str, shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    model = models.build(name, {}, shape, classes)
    assert sum(each.numel() for each in model.parameters()) == parameters


def test_dropout_is_there_when_asked_for() -> None:
    plain = models.build("cnn", {}, (3, 32, 32), 10)
    dropping = models.build("cnn", {"dropout": 0.25}, (3, 32, 32), 10)
    assert not [each for each in plain.modules() if isinstance(each, nn.Dropout)]
    assert [each.p for each in dropping.modules() if isinstance(each, nn.Dropout)] == [0.25, 0.25]


def test_a_resnet_has_group_norms_of_the_groups_asked_for() -> None:
    model = models.build("resnet18", {"groups": 4, "width": 8}, (3, 32, 32), 10)
    norms = [each for each in model.modules() if isinstance(each, nn.GroupNorm)]
    assert {each.num_groups for each in norms} == {4}
    assert len(norms) == 20


@pytest.mark.parametrize("name", IMAGES_ONLY)
@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 5, 8), (1, 8, 5)])
def test_a_model_of_images_refuses_other_data(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(models.ModelError) as caught:
        models.build(name, {}, shape, 10)
    text = str(caught.value)
    assert text.startswith(f"model {name!r}: it needs images of shape (channels, height, width)")
    assert str(shape) in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        pytest.param("mlp", {"hidden": [0]}, "1 unit at least", id="an empty layer"),
        pytest.param("cnn", {"dropout": 1.0}, r"dropout is in \[0, 1\)", id="dropping all"),
        pytest.param("resnet18", {"width": 9}, "multiple of groups", id="an odd width"),
        pytest.param("resnet18", {"groups": 0}, "multiple of groups", id="no groups"),
    ],
)
def test_an_option_out_of_range_is_refused(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(models.ModelError, match=told):
        models.build(name, options, (3, 32, 32), 10)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        pytest.param("mlp", {"hiden": [3]}, r"\(did you mean 'hidden'\?\)", id="a misspelt one"),
        pytest.param("mlp", {"num_classes": 3}, "filled in from the data", id="one of the data's"),
        pytest.param("mlp", {"hidden": "big"}, "'hidden' cannot be 'big'", id="a word"),
        pytest.param("lenet", {"width": 3}, "'width' does not exist; it takes none", id="any"),
    ],
)
def test_a_wrong_option_is_refused(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        models.build(name, options, (64,), 10)
    with pytest.raises(BadOption, match=told):
        models.check(name, options)


def test_an_unknown_model_gets_the_nearest_and_all() -> None:
    with pytest.raises(UnknownName, match=r"'resnet' \(did you mean 'resnet18'\?\); there are cnn"):
        models.build("resnet", {}, (3, 32, 32), 10)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """This module, under a name that a config could give."""
    import sys

    monkeypatch.setitem(sys.modules, "my_models", sys.modules[__name__])
    return "my_models"


def test_a_dotted_path_gets_only_what_it_names(here: str) -> None:
    model = models.build(f"{here}:Mine", {"width": 5}, (64,), 3)
    assert shapes(model) == [(3, 5), (3,)]
    assert models.options(f"{here}:Mine") == ("width",)
    with pytest.raises(BadOption, match="option 'zzz' does not exist; it takes width"):
        models.build(f"{here}:Mine", {"zzz": 5}, (64,), 3)


def test_a_function_of_any_options_decides_for_itself(here: str) -> None:
    model = models.build(f"{here}:free_size", {"inputs": 4, "num_classes": 2}, (64,), 3)
    assert shapes(model) == [(2, 4), (2,)]


def test_what_is_no_module_is_refused(here: str) -> None:
    with pytest.raises(models.ModelError, match=r"gave str, not a torch\.nn\.Module"):
        models.build(f"{here}:not_a_model", {}, (64,), 3)


def test_a_registered_model_is_found_by_its_name() -> None:
    models.register_model("mine_for_a_test")(Mine)
    assert "mine_for_a_test" in models.available()
    assert models.resolve("mine_for_a_test") is Mine
    assert shapes(models.build("mine_for_a_test", {}, (64,), 3)) == [(3, 2), (3,)]
