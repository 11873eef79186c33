"""Functions and classes of a script or a notebook work as losses, client updates and models."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from federations import Lab
from fedpilot.federated import ConfigError, register_client_update, register_loss, register_model
from fedpilot.federated.config import parse_config
from fedpilot.federated.core.user_code.registry import BadPath, RegistryError, UnknownName
from fedpilot.federated.engine.training.training_code import resolve_client_update, resolve_loss
from fedpilot.federated.prepare.user_code.user_code import bring, carried


def tripled(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return 3 * nn.functional.cross_entropy(outputs, labels)


@pytest.fixture
def notebook() -> Iterator[types.ModuleType]:
    """A module that exists in this process alone."""
    module = types.ModuleType("cells_of_a_notebook")
    code = (
        "import torch\n"
        "from torch import nn\n"
        "def loss(outputs, labels):\n"
        "    return 3 * nn.functional.cross_entropy(outputs, labels)\n"
        "def update(client):\n"
        "    pass\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, input_shape, num_classes):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(input_shape[0], num_classes)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n"
        "net, an_update = Net((6,), 3), update\n"
    )
    exec(compile(code, "<cell>", "exec"), module.__dict__)
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def names(lab: Lab, **keys: Any) -> Any:
    return parse_config(lab.config(**keys))


def test_what_only_this_process_knows_goes_along_to_workers(
    lab: Lab, notebook: types.ModuleType
) -> None:
    register_loss("a-loss-for-a-test")(tripled)
    config = names(
        lab,
        model__model_type=f"{notebook.__name__}:Net",
        training__loss_function="a-loss-for-a-test",
        training__client_update=f"{notebook.__name__}:update",
    )
    found = carried(config)
    assert found == {
        "model.model_type": notebook.Net,
        "training.loss_function": tripled,
        "training.client_update": notebook.update,
    }


def test_what_workers_can_import_does_not(lab: Lab, user_code: str) -> None:
    importlib.import_module(user_code)
    config = names(lab, training__client_update=f"{user_code}:plain_sgd")
    assert carried(config) == {}


def test_what_was_brought_is_found_by_its_name_where_it_cannot_be_imported() -> None:
    def update(client: Any) -> None:
        pass

    wanted = {
        "training.loss_function": "__main__:loss_of_a_test",
        "training.client_update": "update_of_a_test",
    }
    with pytest.raises(RegistryError):
        resolve_loss("__main__:loss_of_a_test")
    bring(wanted, {"training.loss_function": tripled, "training.client_update": update})
    assert resolve_loss("__main__:loss_of_a_test") is tripled
    assert resolve_client_update("update_of_a_test") is update


def test_a_run_trains_with_what_was_registered(lab: Lab, user_code: str) -> None:
    code = importlib.import_module(user_code)
    register_loss("tripled-in-a-test")(tripled)
    register_client_update("plain-in-a-test")(code.plain_sgd)
    registered = lab.run(
        training__loss_function="tripled-in-a-test", training__client_update="plain-in-a-test"
    )
    named = lab.run(
        training__loss_function=f"{__name__}:tripled",
        training__client_update=f"{user_code}:plain_sgd",
    )
    assert registered.digest == named.digest


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param(
            {"model__model_type": "cells_of_a_notebook:net"},
            "it is an instance of Net, where a class or a function is asked for",
            id="a model that is one already",
        ),
        pytest.param(
            {"training__loss_function": "cells_of_a_notebook:Net"},
            r"it is the class Net, where an instance or a function is asked for: `Net\(\)`",
            id="a class for a loss",
        ),
        pytest.param(
            {"training__client_update": "cells_of_a_notebook:Net"},
            "it is the class Net, where an instance or a function is asked for",
            id="a class for a client update",
        ),
        pytest.param(
            {"training__loss_function": "cross_entropi"},
            "no loss is called 'cross_entropi' .did you mean 'cross_entropy'",
            id="a typo",
        ),
    ],
)
def test_an_instance_for_a_class_and_a_class_for_an_instance_are_told(
    keys: dict[str, Any], words: str, lab: Lab, notebook: types.ModuleType
) -> None:
    with pytest.raises(ConfigError, match=words):
        lab.federation(**keys)


def test_so_they_are_when_they_are_registered(notebook: types.ModuleType) -> None:
    with pytest.raises(RegistryError, match="instance of Net, where a class or a function"):
        register_model("an-instance")(notebook.net)
    with pytest.raises(RegistryError, match="the class Net, where an instance or a function"):
        register_loss("a-class")(notebook.Net)


def test_a_loss_may_be_an_instance(lab: Lab) -> None:
    register_loss("an-instance-in-a-test")(nn.CrossEntropyLoss())
    run = lab.run(training__loss_function="an-instance-in-a-test", federation__rounds=1)
    assert run.digest == lab.run(federation__rounds=1).digest


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(UnknownName, match="any 'module:name' of your own"):
        resolve_client_update("nobodys")
    with pytest.raises(BadPath):
        resolve_loss("nowhere:at_all")
