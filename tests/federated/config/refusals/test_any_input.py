"""Whatever the input is, it is read, or refused with a ConfigError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from config_files import GOOD, write, yaml_like
from fedpilot.federated.config import RunConfig, load_config, parse_config
from fedpilot.federated.errors import ConfigError

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


def check(refused: ConfigError) -> None:
    assert refused.problems
    assert str(refused).encode()


def load_or_refuse(path: str, overrides: tuple[str, ...] = ()) -> None:
    try:
        load_config(path, overrides)
    except ConfigError as refused:
        check(refused)


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode(errors="replace")))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    load_or_refuse(write(tmp_path_factory.getbasetemp(), content))


@settings(deadline=None)
@given(yaml_like)
def test_anything_like_yaml_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    load_or_refuse(write(tmp_path_factory.getbasetemp(), content))


@settings(deadline=None)
@given(st.text(max_size=30) | yaml_like, yaml_like)
def test_any_override_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, path: str, value: str
) -> None:
    file = write(tmp_path_factory.getbasetemp(), GOOD)
    load_or_refuse(file, (path, f"model.options={value}", f"training.{path}={value}"))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(list(RunConfig.model_fields)) | st.text() | st.integers(),
        plain
        | st.dictionaries(
            st.sampled_from(
                ["options", "samples_per_client", "distribution_matrix", "name", "workers", "ray"]
            ),
            plain,
        ),
    )
)
def test_any_mapping_is_taken_or_refused(values: dict[Any, Any]) -> None:
    try:
        parse_config(values)
    except ConfigError as refused:
        check(refused)
