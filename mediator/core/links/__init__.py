"""Sites' links to the mediator: how fast they are, and which ones delay rounds. Pure."""

from .slow import LinkUse, LinkWatch, SlowLink
from .speed import LinkSpeed

__all__ = ["LinkSpeed", "LinkUse", "LinkWatch", "SlowLink"]
