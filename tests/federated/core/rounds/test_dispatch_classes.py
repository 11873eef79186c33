"""Work for one vnode class goes to its workers only, and holds up no other work."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.rounds.dispatch import AbandonWork, Action, Dispatcher, Send

CLASSES = {0: "small", 1: "small", 2: "large"}


def up(limit: int = 3) -> Dispatcher:
    dispatcher = Dispatcher(3, limit, CLASSES)
    dispatcher.start()
    for number in CLASSES:
        dispatcher.ready(number)
    return dispatcher


def sent(actions: Iterable[Action]) -> list[tuple[int, int]]:
    return [(a.worker, a.work) for a in actions if isinstance(a, Send)]


def given_up(actions: Iterable[Action]) -> list[int]:
    return [a.work for a in actions if isinstance(a, AbandonWork)]


def of(name: str, *works: int) -> dict[int, str]:
    return dict.fromkeys(works, name)


def test_work_goes_to_workers_of_its_class() -> None:
    found = up().submit(range(4), only_of=of("large", 0, 1) | of("small", 2, 3))
    assert sent(found) == [(2, 0), (2, 1), (0, 2), (1, 3)]


def test_a_class_that_is_busy_holds_up_no_other_one() -> None:
    dispatcher = up()
    assert sent(dispatcher.submit(range(4), only_of=of("large", *range(4)))) == [(2, 0), (2, 1)]
    assert sent(dispatcher.submit([4], only_of=of("small", 4))) == [(0, 4)]
    assert sent(dispatcher.submit([5])) == [(1, 5)], "work that any worker may do"
    assert sent(dispatcher.done(2, 0)) == [(2, 2)]


def test_a_second_piece_is_for_classes_with_plenty_of_work() -> None:
    dispatcher = up()
    found = sent(dispatcher.submit(range(4), only_of=of("small", 0, 1, 2) | of("large", 3)))
    assert found == [(0, 0), (1, 1), (2, 3)], "one is left for two small workers"
    found = sent(dispatcher.submit([4], only_of=of("small", 4)))
    assert found == [(0, 2)]


def test_the_work_of_a_class_is_given_up_with_its_last_worker() -> None:
    dispatcher = up(limit=0)
    dispatcher.submit(range(4), only_of=of("large", 0, 1) | of("small", 2, 3))
    assert given_up(dispatcher.lost(2, "gone")) == [0, 1]
    assert dispatcher.doing(0) == (2,)
    assert given_up(dispatcher.submit([4, 5], only_of=of("large", 4) | of("small", 5))) == [4]
    assert given_up(dispatcher.lost(0, "gone too")) == [2]
    assert not given_up(dispatcher.submit([6], only_of=of("small", 6))), "one of them is left"
    assert dispatcher.usable("large") == ()
    assert dispatcher.usable("small") == dispatcher.usable() == (1,)


def test_bound_work_that_moves_stays_in_its_class() -> None:
    dispatcher = up()
    dispatcher.submit([0, 1], worker=0)
    dispatcher.submit([2], worker=0, only_of=of("small", 2), moves=True)
    found = dispatcher.follow([0, 1, 2], leaving=[0], classes=CLASSES)
    assert sent(found) == [(1, 2)]


def test_a_number_that_another_class_takes_over_keeps_no_work_of_the_old_one() -> None:
    """After a preemption, the gang's surplus may be of other classes."""
    dispatcher = up()
    dispatcher.taken_away()
    dispatcher.submit([7], worker=1, only_of=of("small", 7), moves=True)
    dispatcher.follow([0, 1, 2], classes={0: "small", 1: "large", 2: "large"})
    dispatcher.start_again()
    assert not sent(dispatcher.ready(1))
    assert sent(dispatcher.ready(0)) == [(0, 7)]


def test_a_worker_that_comes_belongs_to_its_class() -> None:
    dispatcher = up()
    dispatcher.submit(range(4), only_of=of("large", *range(4)))
    dispatcher.follow([0, 1, 2, 3], classes={**CLASSES, 3: "large"})
    assert sent(dispatcher.ready(3)) == [(3, 2)]
    dispatcher.done(2, 0)
    assert sent(dispatcher.done(2, 1)) == [(2, 3)]


@given(
    classes=st.lists(st.sampled_from("abc"), min_size=1, max_size=5),
    works=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30),
    data=st.data(),
)
@settings(deadline=None)
def test_everything_is_done_once_by_workers_that_may(
    classes: list[str], works: list[str | None], data: st.DataObject
) -> None:
    dispatcher = Dispatcher(len(classes), 1000, dict(enumerate(classes)))
    starting = set(range(len(classes)))
    dispatcher.start()
    mine = {n: each for n, each in enumerate(works) if each is None or each in classes}
    dispatcher.submit(mine, only_of={n: each for n, each in mine.items() if each is not None})
    done: list[int] = []
    deaths = 0
    while not dispatcher.idle:
        busy = [n for n in range(len(classes)) if dispatcher.doing(n)]
        if starting and (not busy or data.draw(st.booleans())):
            worker = data.draw(st.sampled_from(sorted(starting)))
            starting.remove(worker)
            dispatcher.ready(worker)
        elif deaths < 20 and data.draw(st.booleans()):
            worker = data.draw(st.sampled_from(busy))
            deaths += 1
            starting.add(worker)
            dispatcher.lost(worker, "died")
        else:
            worker = data.draw(st.sampled_from(busy))
            work = dispatcher.doing(worker)[0]
            assert mine[work] in (None, classes[worker])
            dispatcher.done(worker, work)
            done.append(work)
        if not starting:
            waits = {mine[work] for work in mine if work not in done} - {None}
            held = {mine[work] for n in range(len(classes)) for work in dispatcher.doing(n)}
            idle = {classes[n] for n in range(len(classes)) if not dispatcher.doing(n)}
            assert not (waits - held) & idle, "no worker is idle while its class has work"
    assert sorted(done) == sorted(mine)
