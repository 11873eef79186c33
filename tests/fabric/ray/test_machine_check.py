"""What Ray says of an actor that could not be made tells which machine lacks what."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from fedpilot.fabric.errors import NotInstalled
from fedpilot.fabric.ray.machine_check import not_installed

DIED = """The actor died because of an error raised in its creation task, \
\x1b[36mray::virtual_cluster_manager:ManagerActor.__init__()\x1b[39m (pid=17246, ip=192.0.2.2, \
actor_id=ebea, repr=<fedpilot.fabric.manager.actor.FunctionActorManager._create_fake_actor_class.\
<locals>.TemporaryActor object at 0x7f0d03e81290>)
  At least one of the input arguments for this task could not be computed:
ray.exceptions.RaySystemError: System error: No module named 'MODULE'
traceback: Traceback (most recent call last):
ModuleNotFoundError: No module named 'MODULE'
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(
            DIED.replace("MODULE", "fedpilot"), ("192.0.2.2", "fedpilot"), id="without fedpilot"
        ),
        pytest.param(
            DIED.replace("MODULE", "fedpilot.fabric.new"),
            ("192.0.2.2", "fedpilot.fabric.new"),
            id="with an older one",
        ),
        pytest.param(DIED.replace("MODULE", "torch"), ("192.0.2.2", "torch"), id="without PyTorch"),
        pytest.param(DIED.replace("MODULE", "my_model"), None, id="without the user's own module"),
        pytest.param("The actor is dead because its owner has died.", None, id="another death"),
        pytest.param(
            "ModuleNotFoundError: No module named 'torch'", ("?", "torch"), id="no machine named"
        ),
    ],
)
def test_what_is_missing_is_told_from_what_ray_says(
    text: str, found: tuple[str, str] | None
) -> None:
    told = not_installed(text)
    assert (told and (told.machine, told.module)) == found


def test_the_message_names_machine_and_module_and_says_what_to_do() -> None:
    text = str(NotInstalled("192.0.2.2", "fedpilot"))
    assert "machine 192.0.2.2" in text
    assert "cannot import 'fedpilot'" in text
    assert "fedpilot doctor --address" in text


def test_a_machine_with_another_version_is_told_which_to_install() -> None:
    text = str(NotInstalled("192.0.2.2", "fedpilot.federated.site.node"))
    assert "another version of fedpilot" in text
    assert "'fedpilot.federated.site.node'" in text
    assert f"pip install fedpilot=={version('fedpilot')}" in text
    assert "fedpilot doctor --address" in text
