"""What a runner decides without a socket: messages, orders, leases, errors on the wire."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.fabric import GangTimeout, WorkerLost
from fedpilot.federated.errors import (
    ClientFailed,
    ConfigError,
    DataUnusable,
    FederatedError,
    NoUsableUpdate,
    Problem,
)
from fedpilot.mediator import MediatorError, ReservationRefused, SiteLost, WorkFailed
from fedpilot.mediator.agent.runner.errors import ReservationLapsed
from fedpilot.mediator.agent.runner.main_loop import Runner
from fedpilot.mediator.agent.runner.process import RunnerSettings
from fedpilot.mediator.core.leases import LeaseAct, Leases
from fedpilot.mediator.errors import AnswerUnreadable, PolicyRefused, RaysUnusable
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.errors import NoRoom, NoRoomOnDisk
from fedpilot.mediator.wire.failures import (
    LARGEST_ARGS,
    LONGEST_TEXT,
    error_of,
    machine_trouble,
    told,
)
from fedpilot.mediator.wire.messages import MissingBlob


def order(key: str) -> pb.Order:
    return pb.Order(id=pb.OrderId(run="r", key=key), verb="work")


def answer(key: str, kind: str = "done") -> pb.Answer:
    return pb.Answer(id=pb.OrderId(run="r", key=key), done=pb.Done(kind=kind))


# -- leases ---------------------------------------------------------------------------------------

HELD = Leases(lease_s=30, orphan_s=10, renewed_at=100, alone_since=None)


@pytest.mark.parametrize(
    ("leases", "now", "due"),
    [
        pytest.param(HELD, 129.9, None, id="a lease that goes on"),
        pytest.param(HELD, 130, LeaseAct.END, id="a lease that lapses"),
        pytest.param(HELD.renewed(129, 30), 158.9, None, id="a renewed one"),
        pytest.param(HELD.renewed(129, 5), 134, LeaseAct.END, id="one that was renewed for less"),
        pytest.param(HELD.renewed(100, 0), 1e9, None, id="no lease but the connection"),
        pytest.param(HELD.left(105), 114.9, None, id="a driver that is away"),
        pytest.param(HELD.left(105), 115, LeaseAct.END, id="a driver that does not come back"),
        pytest.param(HELD.left(105).joined(), 129.9, None, id="one that comes back"),
        pytest.param(HELD.promised(105, 10), 114.9, None, id="a promise that goes on"),
        pytest.param(HELD.promised(105, 10), 115, LeaseAct.RELEASE, id="a promise that lapses"),
        pytest.param(
            HELD.promised(105, 10).promised(110, None), 115, None, id="a promise that is committed"
        ),
        pytest.param(
            HELD.promised(105, 10).left(105),
            115,
            LeaseAct.END,
            id="the end gives back promises too",
        ),
    ],
)
def test_what_is_due(leases: Leases, now: float, due: LeaseAct | None) -> None:
    found = leases.due(now)
    assert (found and found[0]) == due
    if found is not None:
        assert found[1], "it says why"


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        GangTimeout("g", 2.5, "others hold it"),
        WorkerLost("w", "it died"),
        ReservationRefused({"a": "no", "b": "never"}),
        RaysUnusable({"a": "nobody there"}),
        ReservationLapsed("s", 60.0),
        SiteLost("s", "gone"),
        ClientFailed("client_3", "training", "ValueError: ä\n\tat line 3"),
        NoUsableUpdate(3, ["client_1"]),
        ConfigError([Problem(key="data.options", found="nothing", allowed="a path")]),
        MediatorError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_our_errors_arrive_as_themselves(error: Exception) -> None:
    failure = pb.Failure.FromString(told(error).SerializeToString())
    found = error_of("s", failure)
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_peers_of_earlier_versions_know_our_records_by_name() -> None:
    error = ConfigError([Problem(key="data.options", found="nothing", allowed="a path")])
    ((record,),) = json.loads(told(error).args_json)
    assert record["record"] == "fedpilot.federated.errors:Problem"


class Strange(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), Strange("x"), KeyboardInterrupt("x"), MediatorError(object())],
    ids=["Python's", "a stranger's", "no Exception", "ours, with what is no JSON"],
)
def test_all_others_are_told_in_words(error: BaseException) -> None:
    found = error_of("s", told(error))
    assert isinstance(found, WorkFailed)
    assert (found.site, found.kind) == ("s", type(error).__name__)
    assert found.message == str(error)


ERRORS = "fedpilot.mediator.errors"
SITE = "fedpilot.mediator.federation.site"


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        pytest.param("os:system", ["true"], id="a function"),
        pytest.param("subprocess:CalledProcessError", [1, "x"], id="an error of Python's"),
        pytest.param(
            "fedpilot.mediator.wire.blobs.store:BlobStore", ["/tmp/x", 1], id="ours, but no error"
        ),
        pytest.param(f"{ERRORS}:Mapping", [], id="what an error module has imported"),
        pytest.param(f"{ERRORS}:SiteLost", ["a"], id="arguments are missing"),
        pytest.param(f"{ERRORS}:ReservationRefused", [3], id="arguments that make no words"),
        pytest.param(f"{ERRORS}:SiteLost.x", ["a", "b"], id="a name within a class"),
        pytest.param("fedpilot.no_such:Error", ["x"], id="a module that is not loaded"),
        pytest.param(f"{ERRORS}:SiteLost", [{"record": "os:system"}, "x"], id="a record of others"),
        pytest.param(
            f"{ERRORS}:SiteLost",
            [
                {
                    "record": "fedpilot.mediator.federation.site:GangRequest",
                    "name": "x",
                    "resources": {},
                },
                "x",
            ],
            id="a record that is none of errors",
        ),
        pytest.param("", [], id="nothing"),
    ],
)
def test_nothing_else_is_made_of_what_a_site_sends(kind: str, args: Sequence[object]) -> None:
    failure = pb.Failure(kind=kind, message="said", args_json=json.dumps(args))
    found = error_of("s", failure)
    assert isinstance(found, WorkFailed)
    assert found.message == "said"


def test_long_errors_are_cut() -> None:
    failure = told(SiteLost("s", "x" * LARGEST_ARGS))
    assert failure.args_json == ""
    found = error_of("s", failure)
    assert isinstance(found, WorkFailed)
    assert len(found.message) == LONGEST_TEXT


@pytest.mark.parametrize(
    "error",
    [
        PolicyRefused("oslo", "users", "bob", "alice"),
        DataUnusable("oslo", "xrays", "it is not as declared"),
        SiteLost("oslo", "gone"),
        WorkFailed("oslo", "ValueError", "x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_site_that_speaks_in_the_name_of_another_is_not_believed(error: Exception) -> None:
    found = error_of("rome", told(error))
    assert isinstance(found, AnswerUnreadable)
    assert found.site == "rome"
    assert "oslo" in found.message


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(SiteLost("s", "gone\x1b]0;mine\x07"), id="an error of ours"),
        pytest.param(ReservationRefused({"s\x1b[2J": "no\x9b2J"}), id="the names in one"),
        pytest.param(
            ConfigError([Problem(key="a\x1b[2J", found="b", allowed="c")]), id="a record in one"
        ),
        pytest.param(ValueError("\x1b[31mx\r"), id="an error in words"),
        pytest.param(type("Odd\x1b[2J", (Exception,), {})("x"), id="the name of an error"),
    ],
)
def test_a_terminal_obeys_nothing_of_an_error_that_a_site_sends(error: Exception) -> None:
    shown = str(error_of("s", told(error)))
    assert all(each.isprintable() or each in "\n\t" for each in shown), repr(shown)


@settings(max_examples=settings().max_examples // 3)
@given(st.text(), st.text(), st.text())
def test_whatever_a_site_sends_is_an_error(kind: str, message: str, args: str) -> None:
    assert isinstance(
        error_of("s", pb.Failure(kind=kind, message=message, args_json=args)), Exception
    )


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        pytest.param(OSError(errno.ENOSPC, "No space left", "/data/x"), True, id="a full disk"),
        pytest.param(NoRoomOnDisk("the disk of /data has 0 MB"), True, id="no room for a model"),
        pytest.param(MissingBlob("blob /data/1 is not there"), True, id="a model that is gone"),
        pytest.param(NoRoom("/data may hold 5: raise its limit"), True, id="a full store"),
        pytest.param(
            FederatedError("model 1 must go to disk"), True, id="a model that cannot be spilled"
        ),
        pytest.param(OSError(errno.EIO, "Input/output error", "/data/x"), True, id="a broken one"),
        pytest.param(FileNotFoundError(2, "No such file", "/data/x"), False, id="a missing file"),
        pytest.param(ValueError("x"), False, id="anything else"),
    ],
)
def test_a_disk_in_trouble_is_the_sites_and_not_the_works(error: Exception, lost: bool) -> None:
    if isinstance(error, FederatedError):
        error.__cause__ = OSError(errno.ENOSPC, "No space left", "/data/x")
    found = machine_trouble("paris", error)
    assert isinstance(found, SiteLost) is lost
    assert ("/data" in str(found)) is (not lost and "/data" in str(error))


def test_a_runner_tells_of_a_full_disk_as_a_lost_site(tmp_path: Path) -> None:
    runner = Runner(tmp_path, RunnerSettings(run="r", site="paris", blobs=tmp_path / "blobs"))
    told_: list[pb.Answer] = []
    runner._server.answer = told_.append  # type: ignore[method-assign]
    runner._failed(pb.OrderId(run="r", key="k"), OSError(errno.ENOSPC, "No space left"))
    runner._server._loop.close()
    assert isinstance(error_of("paris", told_[0].failure), SiteLost)
