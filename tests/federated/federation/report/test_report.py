"""What people see of a run: lines, a live picture, JSON, curves."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from fedpilot.common.text.amounts import counted, number
from fedpilot.federated.federation.events import Event, event
from fedpilot.federated.federation.report.progress import (
    PLAIN_LINES,
    Display,
    JsonLines,
    LiveDisplay,
    PlainLines,
    display_for,
)
from fedpilot.federated.federation.report.wording import BARS, rate, remark, sparkline
from run_events import UNUSUAL, a_run, row


def shown(events: list[Event], make: Any = PlainLines) -> str:
    stream = StringIO()
    with make(stream) as display:
        for each in events:
            display(each)
    return stream.getvalue()


# -- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "line"),
    [
        pytest.param([], "", id="nothing yet"),
        pytest.param([0.5], "▁", id="one value"),
        pytest.param([0.5, 0.5], "▁▁", id="standing still"),
        pytest.param([0.0, 1.0], "▁█", id="from the lowest to the highest"),
        pytest.param([1.0, 0.0], "█▁", id="downwards"),
        pytest.param([float(i) for i in range(8)], BARS, id="every bar"),
        pytest.param([-1e-300, 1e-300], "▁█", id="a tiny span"),
    ],
)
def test_a_sparkline_shows_the_course(values: list[float], line: str) -> None:
    assert sparkline(values) == line


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(1, 40))
def test_a_sparkline_is_never_too_wide_and_ends_with_the_latest(
    values: list[float], width: int
) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert set(line) <= set(BARS)
    worse = sparkline([*values[:-1], max(values) + 1e7], width)
    assert worse[-1] == BARS[-1] or width == 1 or len(values) == 1


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 client"), (0, "0 clients"), (1000000, "1,000,000 clients")]
)
def test_things_are_counted(count: int, words: str) -> None:
    assert counted(count, "client") == words


def test_a_missing_number_is_a_dash() -> None:
    assert number(None) == "–"
    assert number(0.12345) == "0.1235"


@pytest.mark.parametrize("unusual", UNUSUAL, ids=lambda e: e.name)
def test_everything_unusual_has_a_line(unusual: Event) -> None:
    line = remark(unusual.name, unusual.fields)
    assert line is not None
    assert "\n" not in line


def test_one_site_is_not_spoken_of() -> None:
    assert remark("gang_reserved", {"vnodes": {"local": 2}, "seconds": 1.0}) is None
    lost = {"worker": 1, "reason": "it died", "held": [], "site": "local"}
    assert remark("worker_lost", lost) == "worker 1 was lost (it died)"


def test_several_sites_are_named() -> None:
    line = remark("gang_reserved", {"vnodes": {"site_1": 2, "site_2": 1}, "seconds": 1.0})
    assert line == "  sites    2: site_1 2 vnodes, site_2 1 vnode"
    lost = {"worker": 1, "reason": "it died", "held": [], "site": "site_2"}
    assert remark("worker_lost", lost) == "worker 1 of site_2 was lost (it died)"


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("worker_joined", {}, "worker 3 of rome joins"),
        (
            "worker_notice",
            {"seconds": 9.6, "reason": "for asr"},
            "worker 3 of rome leaves within 9.6 s (for asr)",
        ),
        (
            "worker_notice",
            {"reason": "for asr"},
            "worker 3 of rome leaves once it is idle (for asr)",
        ),
        (
            "worker_left",
            {"reason": "for asr", "held": ["training 2 clients of round 4"]},
            "worker 3 of rome has left (for asr); trains again: training 2 clients of round 4",
        ),
    ],
)
def test_workers_that_come_and_leave_are_told(name: str, more: dict[str, Any], said: str) -> None:
    assert remark(name, {"site": "rome", "worker": 3, **more}) == said


def test_a_machine_that_compiles_is_told_with_its_site() -> None:
    """Three sites of one machine, or of one host name, are three lines that differ."""
    about = {"host": "vm", "what": "the training"}
    for site in ("oslo", "paris"):
        line = remark("kernels_compiled", {"site": site, **about}) or ""
        assert f" on vm of {site}: " in line


def test_clients_that_no_site_has_to_take_over_are_not_spoken_of() -> None:
    lost = {"site": "paris", "reason": "it is silent", "clients": 0}
    assert remark("site_lost", lost) == "site paris takes no part any more (it is silent)"


def test_a_drain_does_not_read_like_a_loss() -> None:
    drained = {"site": "paris", "reason": "drain by alice", "clients": 16}
    assert remark("site_drained", drained) == (
        "site paris is drained (drain by alice); 16 clients moved to other sites"
    )


def test_a_round_that_over_sampling_has_filled_is_nothing_unusual() -> None:
    full = {"round": 2, "clients": 25, "of": 25, "reason": "enough are done"}
    assert remark("round_quorum", full) is None


# -- plain lines ------------------------------------------------------------------------------


def test_plain_lines_tell_the_whole_run() -> None:
    text = shown(a_run(3))
    for words in (
        "try-1", "digits", "dirichlet", "50 clients", "3 to 90 (median 25.5)", "9,610 parameters",
        "2 warm workers", "round 1/3", "round 3/3", "accuracy 0.5030", "best     0.5030 in round 3",
        "0123456789abcdef", "runs/try-1", "1 min 5 s",
    ):  # fmt: skip
        assert words in text, words
    assert "resume" not in text
    assert "\x1b" not in text, "no colours where there is no terminal"


def test_plain_lines_are_few_however_many_rounds() -> None:
    lines = shown(a_run(5000)).splitlines()
    assert len(lines) < 3 * PLAIN_LINES
    assert any("round    1/5000" in line for line in lines)
    assert any("round 5000/5000" in line for line in lines)


def later(events: list[Event], *seconds: float) -> list[Event]:
    """The same events, so long after one another."""
    start = datetime(2026, 1, 2, tzinfo=UTC)
    times = itertools.accumulate(seconds)
    return [
        replace(each, time=start + timedelta(seconds=at))
        for each, at in zip(events, times, strict=True)
    ]


def test_plain_lines_are_never_silent_for_long_while_clients_are_trained() -> None:
    started, *_ = a_run(100)
    done = [event("clients_done", site="local", round=1, done=n, of=1000) for n in range(1, 7)]
    lines = shown(later([started, *done], 0, 1, 3, 3, 1, 6, 3)).splitlines()
    assert [line for line in lines if "trained" in line] == [
        "round   1/100  3 of 1,000 clients trained",
        "round   1/100  5 of 1,000 clients trained",
    ]


def test_rounds_that_take_long_are_all_printed_however_many_there_are() -> None:
    started, *_ = a_run(400)
    rounds = [event("round_finished", of=400, **row(n)) for n in range(1, 6)]
    lines = shown(later([started, *rounds], 0, 1, 6, 6, 1, 7)).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("round")] == [
        "1/400",
        "3/400",
        "5/400",
    ]


@pytest.mark.parametrize(
    ("per_second", "words"),
    [
        pytest.param(3457.2, "3,457 clients/s", id="fast"),
        pytest.param(9.97, "10 clients/s", id="ten"),
        pytest.param(3.14159, "3.1 clients/s", id="some"),
        pytest.param(0.42, "0.42 clients/s", id="slower than one a second"),
        pytest.param(0.0123, "0.012 clients/s", id="slower than one a minute"),
        pytest.param(0.0, "0 clients/s", id="nobody"),
    ],
)
def test_slow_rounds_are_not_called_nothing(per_second: float, words: str) -> None:
    assert rate(per_second) == words
    assert shown([event("round_finished", of=1, **row(1, clients_per_second=per_second))]).endswith(
        f"{words}\n"
    )


def test_plain_lines_do_without_an_evaluation() -> None:
    events = a_run(2)
    for each in events:
        if each.name in ("round_finished", "run_finished"):
            for key in ("accuracy", "loss"):
                del each.fields[key]  # type: ignore[attr-defined]
    text = shown(events)
    assert "accuracy" not in text
    assert "train loss" in text


def test_plain_lines_do_without_numbers() -> None:
    text = shown(a_run(2, train_loss=None, loss=None))
    assert "train loss –" in text


def test_a_run_that_failed_says_how_to_go_on() -> None:
    text = shown(a_run(1, status="failed"))
    assert "try-1 failed after" in text
    assert "fedpilot run --resume try-1" in text


def test_an_interrupted_run_says_how_to_go_on() -> None:
    text = shown(a_run(1, status="interrupted"))
    assert "because" not in text
    assert "fedpilot run --resume try-1" in text


def test_a_run_that_failed_before_its_first_round_is_told_too() -> None:
    assert "failed" in shown(a_run(0, status="failed"))


def test_everything_unusual_is_printed() -> None:
    text = shown([*a_run(1), *UNUSUAL])
    assert "worker 1 was lost (its process died); trains again: training 5 clients" in text
    assert "client_3 refused" in text
    assert "1.weight" in text


def test_a_terminal_obeys_nothing_of_what_clients_and_sites_say() -> None:
    said = "gone\x1b]52;c;aGk=\x07"
    told = [
        *a_run(1),
        event("site_lost", site="rome", reason=said, clients=3),
        event("clients_printed", site="rome", round=1, clients=["c1"], texts=[f"{said}\nhere"]),
        event("run_finished", **{**a_run(1)[-1].fields, "reason": said}),
    ]
    screen = StringIO()
    with LiveDisplay(Console(file=screen, force_terminal=True, width=100)) as live:
        for each in told:
            live(each)
    for text in (shown(told), screen.getvalue()):
        assert "gone?]52;c;aGk=?" in text
        assert "\x1b]" not in text
        assert "\x07" not in text
    assert "\n  c1: here\n" in shown(told)


# -- JSON -------------------------------------------------------------------------------------


def test_json_lines_are_one_object_each_with_event_and_time() -> None:
    lines = shown([*UNUSUAL, *a_run(2, train_loss=None)], JsonLines).splitlines()
    objects = [json.loads(line) for line in lines]
    assert len(objects) == len(UNUSUAL) + len(a_run(2))
    for each in objects:
        assert list(each)[:2] == ["event", "time"]
        datetime.fromisoformat(each["time"])
    last = objects[-1]
    assert last["event"] == "run_finished"
    assert {"status", "digest", "folder"} <= set(last)


def test_what_is_shown_fits_where_it_goes() -> None:
    assert isinstance(display_for(StringIO(), as_json=True), JsonLines)
    assert isinstance(display_for(StringIO(), as_json=False), PlainLines)


# -- the live picture -------------------------------------------------------------------------


def live(width: int = 120) -> tuple[LiveDisplay, StringIO]:
    stream = StringIO()
    return LiveDisplay(Console(file=stream, force_terminal=True, width=width)), stream


def picture(display: LiveDisplay, width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    with console.capture() as capture:
        console.print(display._render())
    return capture.get()


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_the_live_picture_follows_a_run_at_any_width(width: int, status: str) -> None:
    display, stream = live(width)
    with display:
        for each in [*a_run(3, status=status), *UNUSUAL]:
            display(each)
    assert "try-1" in stream.getvalue()


def test_the_live_picture_says_what_is_going_on_before_the_first_round() -> None:
    display, _ = live()
    pictures = [picture(display)]
    with display:
        for each in a_run(1)[:3]:
            display(each)
            pictures.append(picture(display))
    assert [text.strip() for text in pictures] == [
        "… loading data and model",
        "… starting Ray",
        "… reserving the gang",
        "… starting workers",
    ]


def test_the_live_picture_shows_progress_speed_and_time_left() -> None:
    display, _ = live()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with display:
        display(a_run(1)[0])
        for n in range(1, 6):
            fields = {"of": 10, **row(n)}
            display(Event("round_finished", fields, start + timedelta(seconds=30 * n)))
        display(event("clients_done", round=6, done=10, of=20))
        text = picture(display)
    for words in (
        "round 5/10", "10/20 clients", "40 clients/s", "2 min 30 s left", "accuracy 0.5050",
        "best 0.5050 in round 5",
    ):  # fmt: skip
        assert words in text, words


def test_the_live_picture_does_without_accuracy_and_losses() -> None:
    display, _ = live()
    fields = {"of": 2, **row(1, train_loss=None)}
    del fields["accuracy"], fields["loss"]
    with display:
        display(event("round_finished", **fields))
        text = picture(display)
    assert "train loss –" in text
    assert "accuracy" not in text


def test_an_exception_inside_leaves_the_terminal_as_it_was() -> None:
    display, stream = live()
    with pytest.raises(KeyboardInterrupt), display:
        raise KeyboardInterrupt
    assert stream.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in stream.getvalue()


def test_displays_meet_the_protocol() -> None:
    displays: list[Display] = [JsonLines(StringIO()), PlainLines(StringIO()), live()[0]]
    for display in displays:
        with display as same:
            assert same is display
