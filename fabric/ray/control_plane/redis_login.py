"""How the control plane of one Ray cluster uses a Redis, as text for other processes and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisLogin:
    """A Redis, who uses it, and for which keys."""

    host: str
    port: int
    encrypted: bool = False
    username: str = ""
    password: str = field(default="", repr=False)
    namespace: str
    """What the keys of one Ray cluster begin with, apart from what Ray adds."""

    @property
    def address(self) -> str:
        """As Ray takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.encrypted else 'redis'}://{host}:{self.port}"

    @property
    def text(self) -> str:
        """All of it, the password too."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> RedisLogin:
        return cls(**json.loads(text))
