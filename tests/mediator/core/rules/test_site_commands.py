"""What a command at a site may say is decided by its words alone, wherever an option may hide."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from fedpilot.cli import ABLE_AT_SITES, COMMANDS, loaded
from fedpilot.mediator.core.rules.site_commands import (
    FLAGS,
    OWN_MEDIATOR,
    exit_code_here,
    longest_wait,
    objection,
    too_long,
)

SUBMIT = ("job", "submit", "--no-wait")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("cluster", "list", "--address", "x:1"), "leave out --address", id="Ray"),
        pytest.param(("job", "list", "--auth-mode=token"), "leave out --auth-mode", id="with ="),
        *(
            pytest.param(("cluster", "list", name, "x"), f"leave out {name}", id=name)
            for name in sorted(OWN_MEDIATOR)
        ),
        pytest.param(
            ("queue", "apply", "--revision", "3", "queues.yaml"),
            "say --declaration with the queues, not 'queues.yaml'",
            id="a file of queues",
        ),
        pytest.param(
            ("queue", "history", "--picture", "x.png"), "leave out --picture", id="a picture"
        ),
        pytest.param(("queue", "snapshot", "-o", "x"), "leave out -o", id="a file to write"),
        pytest.param(
            (*SUBMIT, "--id", "--", "--address", "x:1", "--", "python"),
            "--id needs a value, and -- is none",
            id="dashes that are an option's value end nothing",
        ),
        pytest.param(
            ("cluster", "create", "a", "--spec", "b.yaml"), "not --spec", id="a file of the site"
        ),
        pytest.param(
            (*SUBMIT, "--working-dir", ".", "--", "x"), "found '.'", id="a folder of the site"
        ),
        pytest.param((*SUBMIT, "--working-dir=/srv", "--", "x"), "found '/srv'", id="one with ="),
        pytest.param(
            (*SUBMIT, "--runtime-env", '{"working_dir": "code"}', "--", "x"),
            "--runtime-env: working_dir: a site has none of your folders",
            id="a folder in the environment",
        ),
        pytest.param(
            (*SUBMIT, "--runtime-env", '{"py_modules": ["s3://b/a.zip", "net"]}', "--", "x"),
            "found 'net'",
            id="a module in the environment",
        ),
    ],
)
def test_what_a_site_does_not_take(arguments: tuple[str, ...], said: str) -> None:
    assert said in objection(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("cluster", "list", "--json"), id="a plain one"),
        pytest.param((*SUBMIT, "--", "python", "a.py", "--site", "x"), id="what is not ours"),
        pytest.param((*SUBMIT, "--id=x", "--", "a", "--profile"), id="after an option with ="),
        pytest.param((*SUBMIT, "--id", "x", "--", "a", "--spec"), id="after an option's value"),
        pytest.param((*SUBMIT, "--no-preemptible", "--", "a"), id="after an option without one"),
        pytest.param((*SUBMIT, "--working-dir", "s3://b/a.zip", "--", "x"), id="an archive"),
        pytest.param(
            (*SUBMIT, "--runtime-env", json.dumps({"pip": ["einops"]}), "--", "x"), id="packages"
        ),
        pytest.param((*SUBMIT, "--runtime-env", "{", "--", "x"), id="what the command refuses"),
        pytest.param(
            ("queue", "apply", "--dry-run", "--declaration", "{}", "--revision=3"), id="queues"
        ),
        pytest.param((), id="nothing"),
    ],
)
def test_what_a_site_takes(arguments: tuple[str, ...]) -> None:
    assert objection(arguments) == ""


def options() -> Iterator[click.Option]:
    for group in ABLE_AT_SITES:
        found = loaded(COMMANDS[group].target)
        assert isinstance(found, click.Group)
        for command in found.commands.values():
            yield from (each for each in command.params if isinstance(each, click.Option))


def test_the_options_without_a_value_are_known() -> None:
    flags = {
        name for each in options() if each.is_flag for name in (*each.opts, *each.secondary_opts)
    }
    valued = {name for each in options() if not each.is_flag for name in each.opts}
    assert flags == FLAGS - {"--help"}
    assert not valued & FLAGS


@pytest.mark.parametrize(
    ("arguments", "wait_s"),
    [
        (("cluster", "create", "a"), 0.0),
        (("cluster", "create", "a", "--wait", "50"), 50.0),
        (("cluster", "create", "a", "--wait=50", "--wait=2"), 50.0),
        (("cluster", "create", "a", "--wait", "long"), 0.0),
        ((*SUBMIT, "--", "x", "--wait", "50"), 0.0),
    ],
)
def test_how_long_a_command_would_wait(arguments: tuple[str, ...], wait_s: float) -> None:
    assert longest_wait(arguments) == wait_s


@pytest.mark.parametrize(("wait", "refused"), [("45", False), ("46", True), ("inf", True)])
def test_a_wait_that_does_not_fit_is_refused(wait: str, refused: bool) -> None:
    assert bool(too_long(("cluster", "create", "a", "--wait", wait), 60.0)) is refused


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (75, 75),
        (130, 130),
        (124, 4),
        (137, 1),
        (143, 1),
        (5, 1),
    ],
)
def test_exit_codes_are_those_that_commands_have(there: int, here: int) -> None:
    assert exit_code_here(there) == here
