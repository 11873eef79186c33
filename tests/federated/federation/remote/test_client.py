"""`fedpilot.connect` and `fedpilot node`: clients of a run at a mediator, as local ones are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load, save

import fedpilot
import fedpilot.federated.models.registry as model_registry
from fedpilot.cli import main
from fedpilot.federated import ConfigError, NodeState, UnknownClient
from fedpilot.federated.core.sums.partial import Tally
from fedpilot.federated.core.user_code.code_archive import unpacked
from fedpilot.mediator.errors import ProfileError, QuestionFailed, RequestRefused
from fedpilot.mediator.proto import federation_pb2 as pb
from user_service import Served, a_run

CONFIG = {
    "federation": {"number_of_clients": 3, "rounds": 1},
    "model": {"model_type": "mlp"},
    "data": {"dataset_type": "digits"},
}
WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
IDS = ("client_0", "client_1", "client_2")


class Nodes:
    """What a run's coordinator knows of its clients; trains by adding one."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.states = dict.fromkeys(IDS, "virtual")
        self.explained: dict[str, Any] = {}
        """Of the clients, where a coordinator explains them."""

    def answer(self, kind: str, header: dict[str, Any], tensors: bytes) -> pb.AskRunReply:
        self.asked.append((kind, header))
        if kind == "node.list":
            return self.listed(header)
        client_id = header["client"]
        if client_id not in IDS:
            kind = "fedpilot.federated.core.partition:UnknownClient"
            return pb.AskRunReply(failure=pb.Failure(kind=kind, message=client_id))
        tally = Tally().add(4, 3, 2.0).to_json()
        match kind:
            case "node.show":
                return done(self.shown(client_id))
            case "node.materialize":
                self.states[client_id] = "materialized"
                return done({})
            case "node.release":
                self.states[client_id] = "released"
                return done({})
            case "node.train":
                model = load(tensors) if tensors else {"w": WEIGHTS}
                return done({"tally": tally}, save({n: a + 1 for n, a in model.items()}))
            case "node.evaluate":
                return done({"tally": tally})
        failure = pb.Failure(kind="fedpilot.federated.errors:ClientFailed", message="it raised")
        return pb.AskRunReply(failure=failure)

    def shown(self, client_id: str) -> dict[str, Any]:
        return {
            "id": client_id,
            "index": IDS.index(client_id),
            "site": "paris",
            "assignment": "paris, since its data is pinned there",
            "state": self.states[client_id],
            "worker": "",
            "reason": "nobody needs it",
            "samples": 12,
            "trail": [[3.0, "released", "it was idle"]],
            **({"explained": self.explained} if self.explained else {}),
        }

    def listed(self, header: dict[str, Any]) -> pb.AskRunReply:
        nodes = [self.shown(each) for each in IDS if header["site"] in ("", "paris")]
        first, count = header["first"], header["count"]
        return done({"total": len(nodes), "nodes": nodes[first : first + count]})


def done(header: dict[str, Any], tensors: bytes = b"") -> pb.AskRunReply:
    return pb.AskRunReply(
        done=pb.Done(kind="node", header_json=json.dumps(header)), tensors=tensors
    )


@pytest.fixture
def nodes(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    server.service.__init__()  # type: ignore[misc]
    made = Nodes()
    for kind in ("list", "show", "materialize", "train", "evaluate", "release", "aggregate"):
        name = f"node.{kind}"
        server.service.answers[name] = lambda header, tensors, name=name: made.answer(  # type: ignore[misc]
            name, header, tensors
        )
    monkeypatch.setenv("FEDPILOT_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("FEDPILOT_PROFILE", raising=False)
    monkeypatch.setattr("fedpilot.federated.federation.remote.client.LOOK_S", 0.01)
    added = CliRunner().invoke(main, ["profile", "add", "hospitals", *server.options])
    assert added.exit_code == 0, added.stderr
    return made


# -- Python ---------------------------------------------------------------------------------------


def test_own_code_goes_along_and_what_only_a_notebook_knows_does_not(
    server: Served, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_loaders_to_send.py").write_text("raise SystemExit\n")
    own = {**CONFIG, "data": {"dataset_type": "my_loaders_to_send:load"}}
    with fedpilot.connect("hospitals") as connection:
        connection.federation(own, run_id="own").close()
        (submission,) = server.service.submissions
        assert sorted(unpacked(submission.code)) == ["my_loaders_to_send.py"]

        monkeypatch.setattr(model_registry._models, "_functions", {"a-cells-model": object})
        with pytest.raises(ConfigError, match="`a-cells-model`, which is registered in this") as no:
            connection.federation({**CONFIG, "model": {"model_type": "a-cells-model"}})
        assert "a file beside the config or in the working folder" in str(no.value)
        with pytest.raises(ConfigError, match=r"model\.model_type"):
            connection.federation({**CONFIG, "model": {"model_type": lambda: None}})
        assert len(server.service.submissions) == 1


def test_a_client_trains_at_its_site(server: Served, nodes: Nodes) -> None:
    with (
        fedpilot.connect("hospitals") as connection,
        connection.federation(CONFIG) as federation,
    ):
        node = federation["client_1"]
        assert node.state is NodeState.VIRTUAL
        result = node.train()
        assert (result.client_id, result.samples, result.loss) == ("client_1", 4, 0.5)
        np.testing.assert_array_equal(result.state["w"], WEIGHTS + 1)
        assert node.state is NodeState.MATERIALIZED
        node.release()
        assert node.state is NodeState.RELEASED
    (submission,) = server.service.submissions
    assert submission.interactive
    assert server.service.runs[submission.run]["status"] == "stopped"
    kinds = [kind for kind, header in nodes.asked if header["client"] == "client_1"]
    assert kinds.index("node.materialize") < kinds.index("node.train")


def test_a_model_of_the_callers_goes_along(nodes: Nodes) -> None:
    with fedpilot.connect() as connection, connection.federation(CONFIG) as federation:
        result = federation["client_0"].train({"w": WEIGHTS * 10})
    np.testing.assert_array_equal(result.state["w"], WEIGHTS * 10 + 1)


def test_several_clients_train_at_a_time(nodes: Nodes) -> None:
    async def train() -> list[str]:
        found = [federation[each].train_async() for each in IDS]
        return [result.client_id for result in await asyncio.gather(*found)]

    with fedpilot.connect() as connection, connection.federation(CONFIG) as federation:
        assert asyncio.run(train()) == list(IDS)
        assert federation["client_2"].evaluate().accuracy == 0.75


def test_the_clients_are_counted_and_listed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpilot.federated.federation.remote.client.PAGE", 2)
    with fedpilot.connect() as connection, connection.federation(CONFIG) as federation:
        assert len(federation) == 3
        assert list(federation) == list(IDS)


def test_an_unknown_client_is_a_key_error(nodes: Nodes) -> None:
    with fedpilot.connect() as connection, connection.federation(CONFIG) as federation:
        with pytest.raises(UnknownClient, match="nobody"):
            federation["nobody"]
        with pytest.raises(KeyError):
            federation["nobody"]


def test_what_a_client_raised_is_raised_here(nodes: Nodes) -> None:
    with fedpilot.connect() as connection, connection.federation(CONFIG) as federation:
        node = federation["client_0"]
        with pytest.raises(QuestionFailed, match="ClientFailed: it raised"):
            node.aggregate([node.train()])


def test_a_wrong_config_is_refused_before_anything_is_sent(server: Served, nodes: Nodes) -> None:
    with fedpilot.connect() as connection, pytest.raises(ConfigError):
        connection.federation({**CONFIG, "modell": {}})
    assert server.service.submissions == []


def test_a_run_that_comes_up_is_waited_for(server: Served, nodes: Nodes) -> None:
    refused = ("ask_run", grpc.StatusCode.FAILED_PRECONDITION, "its coordinator is not there yet")
    server.service.fails = [refused] * 3
    with fedpilot.connect() as connection, connection.federation(CONFIG) as federation:
        assert federation["client_0"].id == "client_0"


def test_a_run_that_has_ended_is_not_waited_for(server: Served, nodes: Nodes) -> None:
    server.service.runs["base"] = a_run("base", status="failed")
    refused = ("ask_run", grpc.StatusCode.FAILED_PRECONDITION, "it has ended")
    server.service.fails = [refused]
    with (
        fedpilot.connect() as connection,
        connection.run("base") as federation,
        pytest.raises(RequestRefused, match="it has ended"),
    ):
        federation["client_0"]


def test_a_run_of_somebody_else_is_left_alone(server: Served, nodes: Nodes) -> None:
    server.service.runs["base"] = a_run("base")
    with fedpilot.connect() as connection, connection.run("base") as federation:
        assert "pinned" in federation["client_0"].explain()
    assert server.service.runs["base"]["status"] == "running"


def test_connecting_without_a_profile_says_what_to_do(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPILOT_CONFIG_DIR", str(tmp_path / "empty"))
    with pytest.raises(ProfileError, match="fedpilot profile add"):
        fedpilot.connect()


# -- the commands ---------------------------------------------------------------------------------


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["node", *arguments], prog_name="fedpilot")


def test_nodes_are_listed_shown_and_explained(server: Served, nodes: Nodes) -> None:
    server.service.runs["base"] = a_run("base")
    listed = invoke("list", "--count", "2")
    assert "client_1" in listed.stdout
    assert "2 of 3 nodes" in listed.stdout
    assert json.loads(invoke("list", "--site", "rome", "--json").stdout) == {
        "total": 0,
        "nodes": [],
    }
    shown = json.loads(invoke("show", "client_1", "--run", "base", "--json").stdout)
    assert shown == nodes.shown("client_1")
    assert "paris" in invoke("show", "client_1").stdout
    explained = json.loads(invoke("explain", "client_1", "--json").stdout)["sentences"]
    assert "pinned there" in " ".join(explained)
    assert "it was idle" in invoke("explain", "client_1").stdout
    nodes.explained = {"sentences": ["next best site: rome"], "next_best": {"site": "rome"}}
    document = json.loads(invoke("explain", "client_1", "--json").stdout)
    assert document["next_best"] == {"site": "rome"}
    assert document["id"] == "client_1"
    assert document["sentences"][1] == "next best site: rome"
    assert "\n  next best site: rome\n" in invoke("explain", "client_1").stdout
    assert server.service.runs["base"]["status"] == "running"


def test_an_unknown_node_ends_with_2(server: Served, nodes: Nodes) -> None:
    server.service.runs["base"] = a_run("base")
    result = invoke("show", "nobody")
    assert result.exit_code == 2
    assert "'nobody'" in result.stderr


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        pytest.param([], ": none", id="none goes on"),
        pytest.param(["a", "b"], ": a, b", id="several go on"),
    ],
)
def test_which_run_is_meant_has_to_be_said(
    server: Served, nodes: Nodes, runs: list[str], said: str
) -> None:
    server.service.runs = {run: a_run(run) for run in runs}
    server.service.runs["old"] = a_run("old", status="finished")
    result = invoke("list")
    assert result.exit_code == 2
    assert said in result.stderr
