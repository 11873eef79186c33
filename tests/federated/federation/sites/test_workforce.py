"""Workers that come up while others are looked at."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from fedpilot.federated.federation.sites.event_relay import Workforce

MANY = 2_000


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_workers_may_join_while_they_are_listed() -> None:
    workforce = Workforce()

    def join() -> None:
        for number in range(MANY):
            workforce.joined({"site": "paris", "worker": number})

    joining = threading.Thread(target=join)
    joining.start()
    while joining.is_alive():
        workforce.all()
    joining.join()
    assert [told["worker"] for told in workforce.all()] == list(range(MANY))


def test_those_that_have_ended_are_not_listed_and_still_compared_with() -> None:
    workforce = Workforce()
    assert workforce.joined({"site": "paris", "worker": 0, "torch": "2.5"}) == ()
    workforce.forget()
    assert workforce.all() == []
    (new,) = workforce.joined({"site": "paris", "worker": 0, "torch": "2.6"})
    assert (new.what, new.found, new.others) == ("torch", "2.6", ("2.5",))
