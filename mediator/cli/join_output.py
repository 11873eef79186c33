"""What `fedpilot site join` tells of its agent's life: events on stdout, its log on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from fedpilot.fabric.terminal.layout import timestamp


def log_to_stderr() -> None:
    """Have the agent's log go there, a line per entry."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)


_TEXTS = {
    "joined": "site {site} has joined the mediator at {mediator}; its folder is {home}",
    "connected": "connected to the mediator at {mediator}{held}",
    "disconnected": "the session has ended and is begun anew: {reason}",
    "ray_in_trouble": "the Ray cluster cannot be worked with: {reason}",
    "ray_is_back": "the Ray cluster at {address} can be worked with; machines: {machines}",
    "disk_in_trouble": "no work is taken: {reason}",
    "disk_has_room": "the disk has room again",
    "runner_adopted": "the runner of {run} (pid {pid}) is taken over",
    "runner_ended": "the runner of {run} has ended: {reason}",
    "runners_left": "left running for the next `site join`: {runs}; they end by themselves when "
    "their leases of {lease_s:g} s are over",
    "certificate_renewed": "the certificate of this site was renewed; it is good until {until}",
    "certificate_not_renewed": "the certificate of this site ends in {days} days, and is not "
    "renewed: {reason}; the last resort is a token, by `fedpilot site token`",
}


def sayer(as_json: bool) -> Callable[..., None]:
    """Tells events on stdout: an object per line, or a sentence."""

    def say(event: str, /, **fields: Any) -> None:
        if as_json:
            moment = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = json.dumps({"event": event, "time": moment, **fields})
        else:
            shown = {k: ", ".join(v) if isinstance(v, list) else v for k, v in fields.items()}
            shown["held"] = f", holding {fields['orders']} orders" if fields.get("orders") else ""
            if "expires_at" in fields:
                shown["until"] = timestamp(fields["expires_at"])
            line = _TEXTS[event].format(**shown)
        click.echo(line)

    return say
