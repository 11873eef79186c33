"""`fedpilot site`, `events`, and commands at sites: what is asked and printed, and the codes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import grpc
import pytest
from click.testing import CliRunner, Result

from fedpilot.cli import main
from fedpilot.mediator.proto import federation_pb2 as pb
from user_service import NOW, Served, a_site, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mediator")) as served:
        yield served


@pytest.fixture
def served(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    server.service.__init__()  # type: ignore[misc]
    server.service.sites = {
        "oslo": a_site("oslo", state="lost", reason="nothing was heard of it for 21 s"),
        "paris": a_site("paris", runs=["base"]),
        "rome": a_site("rome"),
    }
    monkeypatch.setenv("FEDPILOT_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("FEDPILOT_PROFILE", raising=False)
    monkeypatch.setattr("fedpilot.mediator.cli.site.FIRST_POLL_S", 0.01)
    monkeypatch.setattr("fedpilot.mediator.cli.site.LAST_POLL_S", 0.01)
    return server


def invoke(served: Served, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(
        main, [*arguments, *served.options], input=stdin, prog_name="fedpilot"
    )


def document(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


# -- sites ----------------------------------------------------------------------------------------


def test_the_sites_are_a_table_or_a_document(served: Served) -> None:
    text = invoke(served, "site", "list")
    assert text.exit_code == 0, text.stderr
    for part in ("● ready", "× lost", "nothing was heard of it", "6/8 CPU"):
        assert part in text.stdout
    names = [site["name"] for site in document(invoke(served, "site", "list", "--json"))["sites"]]  # type: ignore[attr-defined]
    assert names == ["oslo", "paris", "rome"]


def test_no_sites_is_no_error(served: Served) -> None:
    served.service.sites = {}
    assert "fedpilot site token" in invoke(served, "site", "list").stdout


def test_one_site_is_shown_with_all_that_is_known(served: Served) -> None:
    served.service.sites["paris"] |= {"data": {"scans": {"clients": 3}}, "link": {"up": 1e6}}
    text = invoke(served, "site", "show", "paris").stdout
    for part in ("paris", "base", "scans", "1 KB to the site", "500 B from it", "up 1 MB/s"):
        assert part in text
    assert (
        document(invoke(served, "site", "show", "paris", "--json")) == served.service.sites["paris"]
    )


def test_what_a_stranger_wrote_does_not_steer_the_terminal(served: Served) -> None:
    served.service.sites["rome"]["reason"] = "\x1b]0;owned\x07"
    for command in (("site", "list"), ("site", "show", "rome"), ("site", "cordon", "rome")):
        assert "\x1b" not in invoke(served, *command).stdout


@pytest.mark.parametrize("command", ["show", "cordon", "uncordon", "drain"])
def test_an_unknown_site_ends_with_2(served: Served, command: str) -> None:
    result = invoke(served, "site", command, "berlin")
    assert result.exit_code == 2
    assert "berlin" in result.stderr


@pytest.mark.parametrize(("change", "state"), [("cordon", "cordoned"), ("uncordon", "ready")])
def test_a_site_is_held_back_and_let_go(served: Served, change: str, state: str) -> None:
    assert f"paris is {state}" in invoke(served, "site", change, "paris").stdout
    assert document(invoke(served, "site", change, "paris", "--json"))["state"] == state


def test_a_drain_waits_and_says_what_leaves(served: Served) -> None:
    served.service.polls_until_drained = 3
    result = invoke(served, "site", "drain", "paris")
    assert result.exit_code == 0
    assert "paris hands over its part of base" in result.stderr
    assert "base has left paris; 0 still there" in result.stderr
    assert "paris is cordoned" in result.stdout


def test_a_drain_that_is_not_done_in_time_ends_with_3_and_goes_on(served: Served) -> None:
    served.service.polls_until_drained = 10**9
    result = invoke(served, "site", "drain", "paris", "--timeout", "0.05", "--json")
    assert result.exit_code == 3
    assert "base" in result.stderr
    assert json.loads(result.stdout)["state"] == "draining"


def test_a_drain_may_only_be_begun(served: Served) -> None:
    served.service.polls_until_drained = 10**9
    assert invoke(served, "site", "drain", "paris", "--timeout", "0").exit_code == 0


def test_an_interrupted_drain_says_how_to_go_on(served: Served) -> None:
    class Poll(int):
        def __isub__(self, other: int) -> Poll:
            os.kill(os.getpid(), signal.SIGINT)
            return Poll(10**9)

        def __le__(self, other: int) -> bool:
            return False

    served.service.polls_until_drained = Poll(10**9)
    result = invoke(served, "site", "drain", "paris")
    assert result.exit_code == 130
    assert "fedpilot site uncordon paris --mediator" in result.stderr


def test_a_site_is_not_removed_unasked(served: Served) -> None:
    result = invoke(served, "site", "remove", "paris")
    assert result.exit_code == 2
    assert "its part of base is lost" in result.stderr
    assert "--yes" in result.stderr
    assert served.service.sites["paris"]["state"] == "ready"
    assert "paris is left" in invoke(served, "site", "remove", "paris", "--yes").stdout


def test_a_token_is_all_that_goes_to_stdout(served: Served) -> None:
    result = invoke(served, "site", "token", "berlin", "--hours", "2")
    assert result.stdout == "fp1.secret\n"
    assert "fedpilot site join" in result.stderr
    _, request = served.service.asked[-1]
    assert (request.site, request.valid_s) == ("berlin", 7200)
    assert document(invoke(served, "site", "token", "berlin", "--json"))["token"] == "fp1.secret"


def test_top_tells_what_crosses_the_boundaries(served: Served) -> None:
    printed = invoke(served, "site", "top", "--interval", "0.2").stdout
    assert "25 % CPU" in printed
    assert "0 B/s" in printed
    (speed, *_) = document(invoke(served, "site", "top", "--interval", "0.2", "--json"))["sites"]  # type: ignore[misc]
    assert speed["bytes_per_second"] == {"to_site": 0.0, "from_site": 0.0}  # type: ignore[index]


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        pytest.param(grpc.StatusCode.PERMISSION_DENIED, 3, id="a role that may not"),
        pytest.param(grpc.StatusCode.INTERNAL, 1, id="a bug in the mediator"),
        pytest.param(grpc.StatusCode.FAILED_PRECONDITION, 3, id="a refusal"),
    ],
)
def test_what_the_mediator_refuses_has_its_exit_code(
    served: Served, code: grpc.StatusCode, exit_code: int
) -> None:
    served.service.fails = [("change_site", code, "change_site needs the role admin")]
    result = invoke(served, "site", "cordon", "paris")
    assert result.exit_code == exit_code
    assert "needs the role admin" in result.stderr


def test_a_mediator_that_is_not_there_ends_with_4(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--mediator", "127.0.0.1:1", "--credentials", str(served.credentials)]
    result = CliRunner().invoke(main, ["events", "--last", "1", *options])
    assert result.exit_code == 4
    assert "127.0.0.1:1 cannot be reached" in result.stderr


def test_without_a_mediator_it_says_how_to_name_one(served: Served) -> None:
    result = CliRunner().invoke(main, ["site", "list"])
    assert result.exit_code == 2
    assert "fedpilot profile add" in result.stderr


def test_a_profile_leads_there(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    added = CliRunner().invoke(main, ["profile", "add", "here", *served.options])
    assert added.exit_code == 0, added.stderr
    for arguments in (["site", "list"], ["site", "list", "--profile", "here"]):
        assert "paris" in CliRunner().invoke(main, arguments).stdout
    monkeypatch.setenv("FEDPILOT_PROFILE", "there")
    result = CliRunner().invoke(main, ["site", "list"])
    assert result.exit_code == 2
    assert "no profile 'there'" in result.stderr


# -- events ---------------------------------------------------------------------------------------


def test_events_of_the_past_are_printed_and_counted(served: Served) -> None:
    served.service.say(
        "", *({"event": "site_lost", "time": "t", "site": f"s{n}"} for n in range(9))
    )
    told = document(invoke(served, "events", "--last", "2", "--json"))["events"]
    assert [(each["number"], each["site"]) for each in told] == [(8, "s7"), (9, "s8")]  # type: ignore[attr-defined]
    assert "site_lost" in invoke(served, "events", "--after", "8").stdout
    assert invoke(served, "events", "--last", "0").stdout == ""


def test_events_are_followed_over_a_cut_link_until_interrupted(served: Served) -> None:
    service = served.service
    service.say("", {"event": "site_joined", "site": "paris"})

    def cut() -> None:
        if len(service.cuts) == 2:
            service.say("", {"event": "site_ready", "site": "paris"})
        if not service.cuts:  # it has come for what is after the second event
            os.kill(os.getpid(), signal.SIGINT)

    service.cuts, service.on_cut = [9, 0, 1, 0], cut
    result = invoke(served, "events", "--follow", "--json")
    assert result.exit_code == 130
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["number"], each["event"]) for each in lines] == [
        (1, "site_joined"),
        (2, "site_ready"),
    ]
    assert "--after 2" in result.stderr


def test_the_audit_log_tells_who_did_what(served: Served) -> None:
    act = {"at": NOW, "role": "viewer", "act": "change_site", "what": "site=paris", "outcome": "no"}
    served.service.acts = [{**act, "who": "alice"}, {**act, "who": "bob"}]
    text = invoke(served, "events", "--audit").stdout
    assert "alice" in text
    assert "change_site" in text
    (last,) = document(invoke(served, "events", "--audit", "--last", "1", "--json"))["acts"]  # type: ignore[misc]
    assert last == {**act, "who": "bob"}  # type: ignore[has-type]
    assert invoke(served, "events", "--audit", "--follow").exit_code == 2


# -- commands at sites ----------------------------------------------------------------------------


def answer(site: str, arguments: list[str]) -> pb.RunAtSiteReply:
    """Says what was asked, and fails in rome."""
    out = json.dumps({"at": site, "arguments": arguments}) + "\n"
    return pb.RunAtSiteReply(exit_code=3 if site == "rome" else 0, out=out, err=f"from {site}\n")


def test_one_sites_answer_is_passed_on_as_it_is(served: Served) -> None:
    served.service.at_site = answer
    result = invoke(served, "cluster", "list", "--site", "paris", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "at": "paris",
        "arguments": ["cluster", "list", "--json"],
    }
    assert result.stderr == "from paris\n"
    assert invoke(served, "cluster", "list", "--site=rome").exit_code == 3


def test_the_answers_of_all_sites_are_one_document(served: Served) -> None:
    served.service.at_site = answer
    result = invoke(served, "job", "list", "--all-sites", "--json")
    assert result.exit_code == 3
    sites = json.loads(result.stdout)["sites"]
    assert {name: each["exit_code"] for name, each in sites.items()} == {"paris": 0, "rome": 3}
    assert sites["paris"]["answer"]["arguments"] == ["job", "list", "--json"]
    assert sites["rome"]["error"] == "from rome"
    assert "skipping oslo: it is lost" in result.stderr


def test_a_lost_site_does_not_hide_what_the_others_say(served: Served) -> None:
    served.service.at_site = answer
    result = invoke(served, "cluster", "tree", "--site", "oslo", "--site", "paris")
    assert result.exit_code == 4
    assert '"at": "paris"' in result.stdout
    assert "site oslo cannot be reached" in result.stderr


def test_the_spec_of_a_file_goes_with_the_command(served: Served, tmp_path: Path) -> None:
    served.service.at_site = answer
    spec = tmp_path / "spec.yaml"
    spec.write_text("flex_resource_min: {CPU: 2}\n")
    result = invoke(served, "cluster", "create", "a", "--spec", str(spec), "--site", "paris")
    sent = json.loads(result.stdout)["arguments"]
    assert sent[:4] == ["cluster", "create", "a", "--json-spec"]
    assert json.loads(sent[4])["flex_resource_min"] == {"CPU": 2}


def test_what_follows_the_dashes_is_not_ours(served: Served) -> None:
    served.service.at_site = answer
    script = ["--", "python", "fit.py", "--site", "x", "--profile", "y"]
    options = ["--site", "paris", *served.options]
    result = CliRunner().invoke(main, ["job", "submit", "--no-wait", *options, *script])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["arguments"] == ["job", "submit", "--no-wait", *script]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("cluster", "list", "--site", "a", "--all-sites"), "either", id="both"),
        pytest.param(("cluster", "list", "--site"), "needs a value", id="no name"),
        pytest.param(
            ("cluster", "list", "--site", "a", "--address", "x:1"), "--address", id="an address"
        ),
        pytest.param(("job", "logs", "a", "--follow", "--site", "a"), "--follow", id="following"),
        pytest.param(("job", "submit", "--site", "a", "--", "x"), "--no-wait", id="waiting"),
        pytest.param(
            ("job", "submit", "--no-wait", "--working-dir", ".", "--site", "a", "--", "x"),
            "a site has none of your folders",
            id="a folder of this machine",
        ),
        pytest.param(("cluster", "list", "--profile", "a"), "needs --site NAME", id="no site"),
    ],
)
def test_what_does_not_reach_a_site_is_refused_before_it_is_asked(
    served: Served, arguments: tuple[str, ...], said: str
) -> None:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 2
    assert said in result.stderr
    assert served.service.asked == []


@pytest.mark.parametrize("group", ["cluster", "job"])
def test_every_command_that_sites_take_tells_how_it_gets_there(group: str) -> None:
    found = main.get_command(click.Context(main), group)
    assert isinstance(found, click.Group)
    for name in found.commands:
        told = CliRunner().invoke(main, [group, name, "--help"]).stdout
        for option in ("--site", "--all-sites", "--mediator", "--credentials", "--profile"):
            assert f"  {option} " in told


@pytest.mark.parametrize(("there", "here"), [(124, 4), (137, 1)])
def test_a_command_that_a_site_has_ended_ends_here_by_a_code_that_commands_have(
    served: Served, there: int, here: int
) -> None:
    served.service.at_site = lambda site, arguments: pb.RunAtSiteReply(exit_code=there)
    assert invoke(served, "cluster", "list", "--site", "paris").exit_code == here
    result = invoke(served, "cluster", "list", "--site", "paris", "--site", "rome", "--json")
    assert result.exit_code == here


def test_escapes_in_a_sites_answer_do_not_reach_the_terminal(served: Served) -> None:
    served.service.at_site = lambda site, arguments: pb.RunAtSiteReply(out="a\tb\x1b[2J\n")
    assert invoke(served, "cluster", "list", "--site", "paris").stdout == "a\tb?[2J\n"


def test_a_file_of_queues_goes_to_a_site_as_its_content(served: Served, tmp_path: Path) -> None:
    served.service.at_site = answer
    file = tmp_path / "queues.yaml"
    file.write_text("projects:\n  - {name: vision, quota: {default: {CPU: 4}}}\n")
    done = invoke(served, "queue", "apply", str(file), "--revision", "2", "--site", "paris")
    *words, document = json.loads(done.stdout)["arguments"]
    assert words == ["queue", "apply", "--revision", "2", "--declaration"]
    assert json.loads(document)["projects"] == [
        {"name": "vision", "quota": {"default": {"CPU": 4.0}}}
    ]
