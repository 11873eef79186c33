"""Removes what the control plane of one Ray cluster keeps in a Redis; a process of its own.

Ray's own function does it, since the names of the keys are Ray's. It aborts its process if Redis
cannot be used. The login comes by standard input.
"""

from __future__ import annotations

import sys

from .. import private_ray
from .redis_login import RedisLogin


def main() -> int:
    """Remove the keys; 1 if some may be left."""
    login = RedisLogin.of(sys.stdin.read())
    removed = private_ray.redis_cleanup()(
        host=login.host,
        port=login.port,
        password=login.password,
        use_ssl=login.encrypted,
        storage_namespace=login.namespace,
        username=login.username,
    )
    return 0 if removed else 1


if __name__ == "__main__":
    sys.exit(main())
