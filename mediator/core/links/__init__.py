"""Sites' links to the mediator: how fast they are, and which ones delay rounds. Pure."""

from .record import LinkRecord
from .round_trips import RoundTrips
from .slow import LinkUse, LinkWatch, SlowLink
from .speed import LinkSpeed
from .words import in_words

__all__ = [
    "LinkRecord",
    "LinkSpeed",
    "LinkUse",
    "LinkWatch",
    "RoundTrips",
    "SlowLink",
    "in_words",
]
