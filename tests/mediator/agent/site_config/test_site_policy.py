"""A policy that cannot be read allows nothing, and tells the mediator nothing of itself."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fedpilot.mediator.agent.site_config.site_policy import policy_of
from fedpilot.mediator.core.rules.policy import Policy
from fedpilot.mediator.errors import PolicyRefused
from fedpilot.mediator.wire.failures import told


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("users: [anna]\nminimum_cohrt: 5\n", id="a typo"),
        pytest.param("users: [anna\n", id="no YAML"),
        pytest.param(None, id="no file"),
    ],
)
def test_what_is_wrong_stays_in_the_sites_own_log(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.yaml"
    if text is not None:
        path.write_text(text)
    with caplog.at_level(logging.WARNING), pytest.raises(PolicyRefused) as caught:
        policy_of("paris", path)
    assert str(caught.value) == (
        "the policy of site paris refuses it by the rule policy.yaml: found a file that cannot be "
        "read; allowed is one that can: the site's own log says what is wrong with it"
    )
    wire = told(caught.value).SerializeToString()
    assert not any(secret in wire for secret in (bytes(tmp_path), b"anna", b"cohrt"))
    assert str(path) in caplog.text


def test_without_a_file_it_is_the_default() -> None:
    assert policy_of("paris", None) == Policy()
