"""Short tasks wait where they are about to run; nobody waits behind what lasts."""

from __future__ import annotations

from collections import Counter

from fedpilot.fabric.core.records import WorkId
from router_bench import HELD, PLACED, QUEUED, Bench


class TestShortTasks:
    """In the flexible resources of a virtual cluster, where Ray takes long to make a group."""

    def test_they_wait_for_a_piece_that_is_about_to_be_free(self, bench: Bench) -> None:
        bench.begin("job", least=2, most=2)
        bench.has_seen("job", 0.01)
        pieces = {group.id for group in bench.state.groups}
        works = [bench.runs("job") for _ in range(20)]
        assert [work.state for work in works] == [PLACED] * 2 + [QUEUED] * 18
        while len(bench.state.works):
            bench.clock.advance(0.01)
            bench.router.done([w.id for w in bench.state.works if w.state is PLACED])
        assert {group.id for group in bench.state.groups} == pieces

    def test_they_spread_over_the_pieces(self, bench: Bench) -> None:
        bench.begin("job", least=0, most=3)
        first = [bench.runs("job") for _ in range(3)]
        bench.clock.advance(0.01)
        bench.router.done([work.id for work in first])
        works = [bench.runs("job") for _ in range(12)]
        pieces = Counter(work.group for work in works)
        assert sorted(pieces.values()) == [4, 4, 4]

    def test_who_has_not_been_seen_to_end_may_be_long_and_is_held(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.01, function="short")
        assert bench.runs("job", function="long").state is PLACED
        assert bench.runs("job", function="long").state is HELD

    def test_a_queue_lasts_a_second_at_most(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.25)
        works = [bench.runs("job") for _ in range(6)]
        assert [work.state for work in works] == [PLACED] + [QUEUED] * 4 + [HELD]

    def test_nobody_waits_behind_what_runs_for_long(self, bench: Bench) -> None:
        bench.begin("job", least=0, most=2)
        bench.has_seen("job", 0.01)
        bench.runs("job", function="long")
        bench.clock.advance(60.0)
        short = bench.runs("job")
        works = [bench.runs("job") for _ in range(8)]
        assert {work.state for work in works} == {QUEUED}
        assert {work.group for work in works} == {short.group}

    def test_who_is_held_is_not_kept_waiting_by_those_who_come_later(self, bench: Bench) -> None:
        bench.begin("job", least=0, most=2)
        bench.has_seen("job", 0.01)
        small = [bench.runs("job") for _ in range(3)]
        assert [work.state for work in small] == [PLACED, PLACED, QUEUED]
        large = bench.runs("job", 2)
        assert (large.state, bench.runs("job").state) == (HELD, HELD)
        bench.router.done([work.id for work in small])
        assert bench.now(large).state is PLACED

    def test_who_is_held_for_a_larger_piece_than_there_is_keeps_nobody_waiting(self) -> None:
        bench = Bench(a=1)
        bench.is_set(machines_come=True)
        bench.begin("job", least=1)
        bench.has_seen("job", 0.01)
        bench.runs("job")
        assert bench.runs("job", 4).state is HELD
        assert bench.runs("job").state is QUEUED

    def test_an_actor_waits_for_a_piece_of_its_own(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.01)
        bench.runs("job")
        assert bench.runs("job", actor=True).state is HELD

    def test_beside_an_actor_that_shares_a_piece_there_is_room_for_those_who_wait(
        self, bench: Bench
    ) -> None:
        bench.begin("job", least=2, most=2)
        first, actor = bench.runs("job"), bench.runs("job", actor=True)
        assert first.group == actor.group
        waits = [bench.runs("job") for _ in range(2)]
        for done, then in zip([first, *waits], waits, strict=False):
            bench.router.done([done.id])
            assert bench.now(then).state is PLACED

    def test_an_actor_does_not_take_the_piece_that_others_are_held_for(self, bench: Bench) -> None:
        bench.begin("job", least=2, most=2)
        small = [bench.runs("job", 0.5) for _ in range(4)]
        held = bench.runs("job", 2)
        bench.router.done([work.id for work in small[1:]])
        actor = bench.runs("job", actor=True)
        assert (bench.now(held).state, actor.state) == (HELD, HELD)
        bench.router.done([small[0].id])
        assert bench.now(held).state is PLACED

    def test_nobody_waits_behind_an_actor(self, bench: Bench) -> None:
        bench.begin("job", least=2, most=2)
        bench.has_seen("job", 0.01)
        actor, task = bench.runs("job", actor=True), bench.runs("job")
        waits = [bench.runs("job") for _ in range(4)]
        assert {work.group for work in waits} == {task.group}
        assert task.group != actor.group

    def test_places_are_promised_where_tasks_wait_and_nowhere_else(self, bench: Bench) -> None:
        bench.begin("job", least=2, most=2)
        bench.has_seen("job", 0.01)
        ids = [WorkId(f"p{n}") for n in range(4)]
        first = bench.ask("job")
        bench.router.place(first)
        assert bench.router.place_also(first, ids) == []  # there is room, which others may want
        bench.runs("job")
        waits = bench.ask("job")
        bench.router.place(waits)
        promised = bench.router.place_also(waits, ids)
        assert [work.id for work in promised] == ids
        assert {work.state for work in promised} == {QUEUED}
        assert bench.router.place_also(waits, ids) == promised  # asked twice
        bench.router.done(ids, ran=False)
        assert not {work.id for work in bench.state.works} & {*ids}

    def test_no_more_is_promised_than_ends_soon(self, bench: Bench) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.25)
        bench.runs("job")
        waits = bench.ask("job")
        bench.router.place(waits)
        assert len(bench.router.place_also(waits, [WorkId(f"p{n}") for n in range(64)])) == 3

    def test_what_was_promised_and_never_came_says_nothing_of_how_long_tasks_last(
        self, bench: Bench
    ) -> None:
        bench.begin("job", least=1, most=1)
        bench.has_seen("job", 0.25)
        bench.runs("job")
        waits = bench.runs("job")
        bench.router.done([waits.id], ran=False)
        works = [bench.runs("job") for _ in range(5)]
        assert [work.state for work in works] == [QUEUED] * 4 + [HELD]
