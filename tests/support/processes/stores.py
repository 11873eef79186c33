"""Records for a mediator's store, several stores of one database, and that database itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy

from fedpilot.mediator.core.health import SiteState, Wish
from fedpilot.mediator.server.store import RunRecord, SiteRecord, Store

PARIS = SiteRecord(
    name="paris",
    wish=Wish.OPEN,
    state=SiteState.READY,
    since=12.25,
    reason="it has joined",
    first_joined=10.125,
    agent="a1",
    version="0.1.0",
    data_json='{"name": "été"}',
)
RUN = RunRecord(
    id="r1",
    name="digits",
    owner="alice",
    config_yaml="rounds: 3\n",
    submitted_at=1_700_000_000.123456,
    folder="/runs/r1",
)
AT_ONCE = 8


def at_once(url: str, act: Callable[[Store, int], bool]) -> int:
    """Do it in several stores of one database at the same moment; how many succeeded."""
    begin = threading.Barrier(AT_ONCE)

    def one(number: int) -> bool:
        with Store(url) as mine:
            begin.wait(60)
            return act(mine, number)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(one, range(AT_ONCE), timeout=60))


def engine_of(url: str) -> sqlalchemy.Engine:
    """As another program would reach the database."""
    return sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


def execute(url: str, *statements: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sqlalchemy.text(statement))
    engine.dispose()
