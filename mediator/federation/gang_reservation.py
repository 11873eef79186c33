"""Reserves a gang: carries the core's two phases to the sites; no answer counts as a refusal."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ..core.reservation import Answer, Refusal, ReservationOutcome, SiteStep, Verb, reserve
from ..errors import MediatorError
from .site import GangRequest, Site

log = logging.getLogger(__name__)

ANSWER_S = 120.0
"""How much longer than the reservation a site may take: it first starts a process and attaches to
Ray. An unreachable site is lost long before that.
"""


def reserve_gang(
    sites: Mapping[str, Site],
    request: GangRequest,
    *,
    min_sites: int,
    required: Collection[str] = (),
) -> ReservationOutcome:
    """Prepare at all sites at once; commit at those that promise, if there are enough."""
    conversation = reserve(tuple(sites), min_sites=min_sites, required=required)
    try:
        asks = next(conversation)
        while True:
            asks = conversation.send(_answers(sites, asks, request))
    except StopIteration as end:
        outcome: ReservationOutcome = end.value
        return outcome


def _answers(
    sites: Mapping[str, Site], asks: Sequence[SiteStep], request: GangRequest
) -> Mapping[str, Answer]:
    asked = {ask.site: _put(ask.verb, sites[ask.site], request) for ask in asks}
    deadline = time.monotonic() + request.timeout_s + ANSWER_S
    answers: dict[str, Answer] = {}
    for site, future in asked.items():
        try:
            answers[site] = future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            answers[site] = Refusal(site, "no answer in time", full=True)
        except MediatorError as error:
            answers[site] = Refusal(site, str(error))
        except Exception as error:  # a site can send any of our errors
            log.exception("site %s failed to answer", site)
            answers[site] = Refusal(site, f"{type(error).__name__}: {error}")
    return answers


def _put(verb: Verb, site: Site, request: GangRequest) -> Future[Any]:
    match verb:
        case Verb.PREPARE:
            return site.prepare(request)
        case Verb.COMMIT:
            return site.commit()
        case Verb.RELEASE:
            return site.release()
