"""Detects a clock that is behind the certificates that this machine must check.

TLS treats a certificate that is not valid yet as forged; gRPC reports "Deadline Exceeded" only.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress

from .certificates import day, read_certificate
from .errors import IdentityError

LOOK_S = 3.0
"""How long a mediator has to show its certificate."""


def too_early(certificates: Mapping[str, str], now: float) -> str:
    """Say which certificate is not valid yet; empty if all are.

    `certificates` maps names to PEM; `now` is in epoch seconds. IdentityError for anything else.
    """
    for name, text in certificates.items():
        begins_at = read_certificate(text, name).not_valid_before_utc.timestamp()
        if now < begins_at:
            return (
                f"{name} is valid from {day(begins_at)} on, and this machine's clock says "
                f"{day(now)}: set the clock"
            )
    return ""


def too_early_for(address: str, now: float) -> str:
    """Check the certificate that a server at `host:port` shows, without verifying it."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, ValueError, IdentityError):
        shown = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=LOOK_S)
        return too_early({"the mediator's certificate": shown}, now)
    return ""
