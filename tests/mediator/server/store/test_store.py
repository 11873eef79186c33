"""The store keeps one contract, in SQLite and in a real PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from fedpilot.mediator.core.health import SiteState, Wish
from fedpilot.mediator.core.rules.roles import Role
from fedpilot.mediator.core.traffic import Direction, Flow
from fedpilot.mediator.errors import RunExists
from fedpilot.mediator.identity import TokenRefused, digest_of
from fedpilot.mediator.server.store import AuditEntry, EventRecord, RunState, Store
from fedpilot.mediator.server.store.tables import TRAFFIC
from stores import AT_ONCE, PARIS, RUN, at_once

S = RunState
SECRET = digest_of("of a token")


def bytes_of(store: Store, run: str) -> list[tuple[Flow, int]]:
    """All flows of a run with their bytes, sorted."""
    rows = store._rows(select(TRAFFIC).where(TRAFFIC.c.run == run))
    return sorted(
        (Flow(row["round"], row["site"], Direction(row["direction"]), row["purpose"]), row["bytes"])
        for row in rows
    )


# -- sites ----------------------------------------------------------------------------------------


def test_a_site_is_remembered_as_it_was_last_put(store: Store) -> None:
    assert store.sites() == ()
    store.put_site(PARIS)
    later = replace(
        PARIS, wish=Wish.DRAINING, state=SiteState.LOST, reason="silent", since=99.5, removed=True
    )
    store.put_site(later)
    assert store.sites() == (later,)


def test_what_a_site_tells_of_its_data_stays_unless_it_is_put_too(store: Store) -> None:
    silent = replace(PARIS, state=SiteState.LOST, data_json="{}")
    store.put_site(PARIS, with_data=False)  # it is new
    store.put_site(silent, with_data=False)
    assert store.sites() == (replace(silent, data_json=PARIS.data_json),)
    store.put_site(silent)
    assert store.sites() == (silent,)


def test_sites_are_listed_by_name_the_same_in_every_database(store: Store) -> None:
    names = ["b", "B", "a-1", "a_1", "a"]
    for name in names:
        store.put_site(replace(PARIS, name=name))
    assert [site.name for site in store.sites()] == sorted(names)


# -- tokens ---------------------------------------------------------------------------------------


def test_a_token_lets_its_site_join_once(store: Store) -> None:
    store.add_token(SECRET, "paris", made_by="alice", now=0.0, expires_at=100.0)
    store.use_token(SECRET, "paris", now=99.0)
    with pytest.raises(TokenRefused, match="was used already"):
        store.use_token(SECRET, "paris", now=99.0)


def test_a_token_is_refused_and_stays_unused(store: Store) -> None:
    store.add_token(SECRET, "paris", made_by="alice", now=0.0, expires_at=100.0)
    for digest, site, now, reason in (
        (SECRET, "rome", 1.0, "none that was made for site rome"),
        (digest_of("x"), "paris", 1.0, "none that was made"),
        ("", "paris", 1.0, "none that was made"),
        ("é", "paris", 1.0, "none that was made"),
        (SECRET, "paris", 100.0, "ended 0 s ago"),
        (SECRET, "paris", 160.0, "ended 60 s ago"),
    ):
        with pytest.raises(TokenRefused, match=reason):
            store.use_token(digest, site, now=now)
    store.use_token(SECRET, "paris", now=50.0)


def test_tokens_that_nobody_has_used_are_made_void(store: Store) -> None:
    used, late, other = digest_of("used"), digest_of("late"), digest_of("other")
    for secret, site, expires_at in (
        (used, "paris", 100.0),
        (SECRET, "paris", 100.0),
        (late, "paris", 5.0),
        (other, "rome", 100.0),
    ):
        store.add_token(secret, site, made_by="ada", now=0.0, expires_at=expires_at)
    store.use_token(used, "paris", now=1.0)
    assert store.void_tokens("paris", now=10.0) == 1
    with pytest.raises(TokenRefused, match="ended 1 s ago"):
        store.use_token(SECRET, "paris", now=11.0)
    store.use_token(other, "rome", now=11.0)
    store.add_token(digest_of("next"), "paris", made_by="ada", now=12.0, expires_at=100.0)
    store.use_token(digest_of("next"), "paris", now=13.0)


def test_a_token_of_before_a_revocation_is_refused(store: Store) -> None:
    store.add_token(SECRET, "paris", made_by="ada", now=1.0, expires_at=100.0)
    with pytest.raises(TokenRefused, match="before a certificate of that site was revoked"):
        store.use_token(SECRET, "paris", now=2.0, made_after=1.0)
    store.use_token(SECRET, "paris", now=2.0, made_after=0.5)


def test_a_site_may_have_several_tokens(store: Store) -> None:
    secrets = [digest_of(str(number)) for number in range(3)]
    for secret in secrets:
        store.add_token(secret, "paris", made_by="alice", now=0.0, expires_at=100.0)
    for secret in secrets:
        store.use_token(secret, "paris", now=1.0)


def test_of_all_that_join_at_once_with_one_token_exactly_one_wins(url: str, store: Store) -> None:
    store.add_token(SECRET, "paris", made_by="alice", now=0.0, expires_at=100.0)

    def join(mine: Store, _: int) -> bool:
        try:
            mine.use_token(SECRET, "paris", now=1.0)
        except TokenRefused:
            return False
        return True

    assert at_once(url, join) == 1


# -- runs -----------------------------------------------------------------------------------------


def test_a_run_that_is_added_again_is_what_it_has_become(store: Store) -> None:
    assert store.add_run(RUN) == RUN
    store.set_run_state("r1", S.RUNNING, among=[S.SUBMITTED], started_at=5.0)
    again = store.add_run(replace(RUN, submitted_at=9.0, folder="/elsewhere"))
    assert again == replace(RUN, state=S.RUNNING, started_at=5.0) == store.run("r1")


def test_another_run_of_the_same_id_is_refused(store: Store) -> None:
    store.add_run(RUN)
    for change in ({"config_yaml": "rounds: 4\n"}, {"owner": "bob"}, {"interactive": True}):
        with pytest.raises(RunExists, match="another run called r1"):
            store.add_run(replace(RUN, **change))
        assert store.run("r1") == RUN


def test_of_different_runs_that_are_added_at_once_with_one_id_exactly_one_is(
    url: str, store: Store
) -> None:
    def add(mine: Store, number: int) -> bool:
        try:
            mine.add_run(replace(RUN, owner=f"user-{number}"))
        except RunExists:
            return False
        return True

    assert at_once(url, add) == 1
    assert len(store.runs_in(RunState)) == 1


def test_runs_are_found_by_state_the_first_submitted_first(store: Store) -> None:
    for id, at, state in [("c", 1.0, S.RUNNING), ("b", 2.0, S.FAILED), ("a", 3.0, S.STOPPING)]:
        store.add_run(replace(RUN, id=id, submitted_at=at, state=state))
    assert [run.id for run in store.runs_in([S.STOPPING, S.RUNNING])] == ["c", "a"]
    assert store.runs_in([]) == ()
    assert [run.id for run in store.runs_in(RunState)] == ["c", "b", "a"]
    assert store.run("d") is None


def test_the_newest_runs_come_in_pages_without_their_configs(store: Store) -> None:
    for name, at in (("b", 2.0), ("a", 1.0), ("d", 3.0), ("c", 3.0)):
        store.add_run(replace(RUN, id=name, submitted_at=at))
    page, more = store.newest_runs(3)
    assert ([run.id for run in page], more) == (["d", "c", "b"], 1)
    assert {run.config_yaml for run in page} == {""}
    assert replace(page[2], config_yaml=RUN.config_yaml) == store.run("b")
    page, more = store.newest_runs(1, after="d")
    assert ([run.id for run in page], more) == (["c"], 2)
    page, more = store.newest_runs(9, after="c")
    assert ([run.id for run in page], more) == (["b", "a"], 0)
    assert store.newest_runs(9, after="a") == ((), 0) == store.newest_runs(9, after="nobody")


def test_when_the_last_run_of_each_owner_began(store: Store) -> None:
    for name, owner, at in (("a", "ann", 5.0), ("b", "ann", 9.0), ("c", "bob", None)):
        store.add_run(replace(RUN, id=name, owner=owner, started_at=at))
    assert store.last_starts() == {"ann": 9.0}


def test_a_state_changes_only_from_one_that_was_expected(store: Store) -> None:
    store.add_run(RUN)
    assert not store.set_run_state("r1", S.STOPPED, among=[S.RUNNING, S.STOPPING], ended_at=9.0)
    assert not store.set_run_state("none", S.RUNNING, among=list(S))
    assert store.run("r1") == RUN


def test_what_belongs_to_a_state_goes_with_it(store: Store) -> None:
    store.add_run(RUN)
    store.set_run_state("r1", S.RUNNING, among=[S.SUBMITTED], started_at=5.0)
    assert store.set_run_state(
        "r1", S.FAILED, among=[S.RUNNING], reason="no site", ended_at=7.0, digest="d" * 64
    )
    failed = replace(
        RUN, state=S.FAILED, started_at=5.0, ended_at=7.0, reason="no site", digest="d" * 64
    )
    assert store.run("r1") == failed
    assert store.set_run_state("r1", S.SUBMITTED, among=[S.FAILED], restarted=True)
    assert store.run("r1") == replace(RUN, started_at=5.0, restarts=1)


def test_of_all_that_change_a_state_at_once_exactly_one_does(url: str, store: Store) -> None:
    store.add_run(RUN)
    changed = at_once(url, lambda mine, _: mine.set_run_state("r1", S.RUNNING, among=[S.SUBMITTED]))
    assert changed == 1


# -- events and the audit log ---------------------------------------------------------------------


def test_events_are_numbered_upwards_and_read_on_from_a_number(url: str, store: Store) -> None:
    numbers = [store.append_event(run, f'"{run}"', now=1.5) for run in ("r1", "", "r1", "r2")]
    assert numbers == sorted(set(numbers))
    first, federation, second, other = numbers
    assert store.events_after("r1") == (
        EventRecord(number=first, at=1.5, run="r1", event_json='"r1"'),
        EventRecord(number=second, at=1.5, run="r1", event_json='"r1"'),
    )
    assert [each.number for each in store.events_after("r1", first)] == [second]
    assert [each.number for each in store.events_after("r1", limit=1)] == [first]
    assert [each.number for each in store.events_after("")] == [federation]
    with Store(url) as successor:
        assert successor.append_event("r1", "{}", now=2.0) > other


def test_the_audit_log_gives_its_last_entries_in_order(store: Store) -> None:
    entries = [
        AuditEntry(
            at=float(number), who="alice", role=Role.ADMIN, act="change_site",
            what=f"drain site-{number}", outcome="done",
        )
        for number in range(5)
    ]  # fmt: skip
    for entry in entries:
        store.record_audit(entry)
    assert store.audit(2) == tuple(entries[-2:])
    assert store.audit(100) == tuple(entries)


def test_an_act_that_names_anything_at_all_is_audited(store: Store) -> None:
    entry = AuditEntry(
        at=1.0, who="alice", role=Role.VIEWER, act="submit", what="a\0b\n\U0001f41f", outcome="no"
    )
    store.record_audit(entry)
    assert store.audit(1) == (replace(entry, what="a\ufffdb\n\U0001f41f"),)


# -- traffic --------------------------------------------------------------------------------------


def test_bytes_are_added_to_what_was_booked_before(store: Store) -> None:
    down = Flow(1, "paris", Direction.TO_SITE, "model")
    up = Flow(1, "paris", Direction.FROM_SITE, "partial")
    store.add_traffic("r1", [(down, 1 << 40), (up, 7), (down, 1)])
    store.add_traffic("r1", [(down, 1 << 41)])
    store.add_traffic("r1", [])
    store.add_traffic("r2", [(up, 1)])
    assert bytes_of(store, "r1") == sorted([(up, 7), (down, (1 << 40) + (1 << 41) + 1)])
    assert bytes_of(store, "none") == []


def test_bytes_that_are_added_at_once_are_all_counted(url: str, store: Store) -> None:
    flow = Flow(0, "paris", Direction.TO_SITE, "model")

    def book(mine: Store, number: int) -> bool:
        for _ in range(10):
            mine.add_traffic("r1", [(flow, 10**number)])
        return True

    assert at_once(url, book) == AT_ONCE
    assert bytes_of(store, "r1") == [(flow, int("1" * AT_ONCE) * 10)]


# -- what is forgotten ----------------------------------------------------------------------------


def test_a_run_is_forgotten_with_its_events_and_its_bytes_once_it_has_ended(store: Store) -> None:
    ended, other = (S.FINISHED, S.FAILED), replace(RUN, id="r2")
    for run in (RUN, other):
        store.add_run(run)
        store.append_event(run.id, "{}", now=1.0)
        store.add_traffic(run.id, [(Flow(1, "paris", Direction.TO_SITE, "train"), 5)])
    assert not store.remove_run(RUN.id, ended)
    assert not store.remove_run("no such run", ended)
    store.set_run_state(RUN.id, S.FINISHED, among=(S.SUBMITTED,))
    assert store.remove_run(RUN.id, ended)
    assert store.run(RUN.id) is None
    assert store.events_after(RUN.id) == ()
    assert bytes_of(store, RUN.id) == []
    assert store.run("r2") is not None
    assert len(store.events_after("r2")) == len(bytes_of(store, "r2")) == 1


def test_what_is_older_than_a_time_is_forgotten_but_for_what_is_a_runs(store: Store) -> None:
    for at in (1.0, 2.0, 3.0):
        store.append_event("", "{}", now=at)
        store.append_event("r1", "{}", now=at)
        store.record_audit(
            AuditEntry(at=at, who="a", role=Role.ADMIN, act="x", what="", outcome="done")
        )
    assert store.forget_before(2.0) == 2
    assert [each.at for each in store.events_after("")] == [2.0, 3.0]
    assert [each.at for each in store.events_after("r1")] == [1.0, 2.0, 3.0]
    assert [each.at for each in store.audit(10)] == [2.0, 3.0]
