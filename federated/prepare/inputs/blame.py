"""Turn errors in preparing inputs into errors about a key of the config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...core.user_code.user_errors import account_of
from ...errors import ConfigError, FederatedError


@contextmanager
def blaming(key: str, allowed: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds in the block into a ConfigError about this key."""
    try:
        yield
    except kinds as error:
        text = str(error) or type(error).__name__
        if not isinstance(error, FederatedError) and (account := account_of(error)).users:
            text = account.reason
        raise ConfigError.about(key, text, allowed) from error


@contextmanager
def blaming_users_code(key: str, allowed: str) -> Iterator[None]:
    """Turn errors of the user's own code in the block into a ConfigError about this key."""
    try:
        yield
    except FederatedError:
        raise
    except Exception as error:
        if not (account := account_of(error)).users:
            raise
        raise ConfigError.about(key, account.reason, allowed) from error
