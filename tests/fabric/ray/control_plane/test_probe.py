"""A Ray that is slow is told from what is no Ray: by servers that greet, answer, or do neither."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from control_plane import ControlPlane, serving
from fedpilot.fabric import ClusterUnreachable
from fedpilot.fabric.ray.control_plane.probe import answers, probe

PATIENCE_S = 60.0


class Quiet(BaseHTTPRequestHandler):
    """Answers what it takes for HTTP, and does not log it."""

    def log_message(self, *_: Any) -> None:
        pass


Serve = Callable[[ControlPlane], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as undo:
        yield lambda plane: undo.enter_context(serving(plane))


@pytest.fixture
def silent() -> Iterator[str]:
    """A port where somebody listens and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def refused(address: str, timeout_s: float = PATIENCE_S, **how: Any) -> str:
    with pytest.raises(ClusterUnreachable) as caught:
        probe(address, how.pop("auth_mode", "disabled"), timeout_s, **how)
    return caught.value.reason


def test_a_ray_that_answers_is_there(serve: Serve) -> None:
    plane = ControlPlane()
    plane.may.set()
    probe(serve(plane), "disabled", PATIENCE_S)


def test_a_ray_that_has_greeted_is_waited_for_longer_than_a_silent_one(serve: Serve) -> None:
    plane = ControlPlane()
    address = serve(plane)
    threading.Timer(1.0, plane.may.set).start()
    probe(address, "disabled", PATIENCE_S, silent_s=0.3)
    assert plane.may.is_set()


def test_a_ray_that_is_too_slow_is_called_slow_with_the_load(serve: Serve) -> None:
    reason = refused(serve(ControlPlane()), 1.0, silent_s=0.3)
    assert "it is there, but has not answered within 1 s (load " in reason


def test_who_says_nothing_is_no_ray_however_long_one_would_wait(silent: str) -> None:
    assert "has said nothing for 0.3 s" in refused(silent, silent_s=0.3)


def test_a_deadline_is_kept_with_who_says_nothing(silent: str) -> None:
    assert "has said nothing for 0.2 s" in refused(silent, 0.2)


def test_another_server_is_refused_at_once() -> None:
    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        began = time.monotonic()
        reason = refused(f"127.0.0.1:{server.server_port}", 600.0)
        server.shutdown()
    assert "does not answer as Ray does" in reason
    assert time.monotonic() - began < PATIENCE_S


def test_another_grpc_server_is_refused(serve: Serve) -> None:
    assert "not the control plane of a Ray" in refused(serve(ControlPlane(method="/other.Service")))


@pytest.mark.parametrize("address", ["nonsense", "ray://10.0.0.1:1", ":6379", "10.0.0.1:six"])
def test_what_is_no_address_is_said_so(address: str) -> None:
    assert "expected host:port" in refused(address)


def test_a_port_that_cannot_be_is_said_so() -> None:
    assert "nothing listens there" in refused("127.0.0.1:99999")


@pytest.mark.parametrize(
    ("mode", "variable", "file", "accepted"),
    [
        pytest.param("token", "right", "", True, id="by a variable"),
        pytest.param("token", "", " right\n", True, id="from a file"),
        pytest.param("token", "wrong", "right", False, id="the variable goes first"),
        pytest.param("token", "", "", False, id="no file"),
        pytest.param("disabled", "right", "right", False, id="none is sent unless it is wanted"),
    ],
)
def test_the_token_is_sent_as_ray_would(
    mode: str,
    variable: str,
    file: str,
    accepted: bool,
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane = ControlPlane(token="right")
    plane.may.set()
    address = serve(plane)
    monkeypatch.setenv("RAY_AUTH_TOKEN", variable)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    if file:
        (tmp_path / "token").write_text(file)
    if accepted:
        probe(address, mode, PATIENCE_S)
    else:
        assert "it refuses our token" in refused(address, auth_mode=mode)


def test_a_ray_that_encrypts_needs_its_files(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    plane = ControlPlane()
    address = serve(plane)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.delenv("RAY_TLS_CA_CERT", raising=False)
    assert "RAY_TLS_CA_CERT" in refused(address)


def test_whether_it_answers_now_is_a_question_of_a_moment(serve: Serve, silent: str) -> None:
    plane = ControlPlane()
    address = serve(plane)
    assert not answers(address, "disabled", 0.2)
    plane.may.set()
    assert answers(address, "disabled", PATIENCE_S)
    assert not answers(silent, "disabled", 0.2)
    assert not answers("nowhere", "disabled", 0.2)
