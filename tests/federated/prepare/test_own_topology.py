"""A graph of the user's own: found as other code is, called once, checked before any start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from federations import CLIENTS, Lab, in_time, on_a_graph, raising
from fedpilot.cli import main
from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.config.telling import told, understood
from fedpilot.federated.errors import ConfigError, RunRefused
from fedpilot.federated.prepare.user_code.user_sources import own_code
from graph_runs import NAMES, digests_over, run_over

CODE = """
import networkx as nx

CALLS = []

def ring(ids, seed):
    CALLS.append((tuple(ids), seed))
    return nx.cycle_graph(ids)

def quarters(ids, seed):
    graph = nx.cycle_graph(ids)
    nx.set_edge_attributes(graph, 0.25, "weight")
    return graph

def one_way(ids, seed):
    return nx.cycle_graph(ids, create_using=nx.DiGraph)

def much(ids, seed):
    graph = nx.cycle_graph(ids)
    nx.set_edge_attributes(graph, 0.75, "weight")
    return graph

def other_each_time(ids, seed):
    CALLS.append(seed)
    return nx.circulant_graph(len(ids), [1, 1 + len(CALLS) % 3])

def pairs(ids, seed):
    graph = nx.Graph()
    graph.add_nodes_from(ids)
    graph.add_edges_from(zip(ids[::2], ids[1::2]))
    return graph

def short(ids, seed):
    return nx.cycle_graph(ids[1:])

def looped(ids, seed):
    graph = nx.cycle_graph(ids)
    graph.add_edge(ids[0], ids[0])
    return graph

def raises(ids, seed):
    raise ValueError("no idea")

def takes_one(ids):
    return nx.cycle_graph(ids)

def nothing(ids, seed):
    pass

class Odd(nx.Graph):
    @property
    def edges(self):
        raise RuntimeError("odd")

def odd(ids, seed):
    graph = Odd()
    graph.add_nodes_from(ids)
    return graph

number = 5
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"graphs_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def on(code: str, function: str, **keys: Any) -> dict[str, Any]:
    return on_a_graph(f"{code}:{function}", **keys)


def test_a_graph_of_ones_own_is_that_graph(lab: Lab, code: str) -> None:
    assert lab.run(**on(code, "ring")).digest == lab.run(**on_a_graph()).digest


def test_its_own_weights_decide_if_they_shall(lab: Lab, code: str) -> None:
    plain, weighted = (lab.run(**on(code, "quarters", graph__weights=how)) for how in (None, "own"))
    assert plain.digest == lab.run(**on_a_graph()).digest != weighted.digest


def test_it_may_be_directed_with_push_sum(lab: Lab, code: str) -> None:
    with lab.federation(**on(code, "one_way", strategy="push_sum")) as federation:
        assert federation.topology is not None
        assert federation.topology.neighbors("client_1") == ("client_0",)


def test_the_function_is_called_once_with_all_ids_and_the_seed(lab: Lab, code: str) -> None:
    with lab.federation(**on(code, "ring")) as federation:
        in_time(federation.run)
    calls = __import__(code).CALLS
    assert calls == [(tuple(f"client_{n}" for n in range(CLIENTS)), 3)]


def test_every_number_of_sites_gets_the_same_graph(lab: Lab, code: str) -> None:
    keys = {"name": f"{code}:quarters", "graph__weights": "own"}
    alone, apart = (run_over(lab, NAMES[:sites], **keys) for sites in (1, 3))
    assert apart.digest == alone.digest
    assert digests_over(apart.folder) == digests_over(alone.folder)


def test_sites_are_not_told_of_the_code(lab: Lab, code: str) -> None:
    config = RunConfig.model_validate(lab.config(**on(code, "ring")))
    there = understood(told(config))
    assert own_code(config) == (code,)
    assert own_code(there) == ()
    assert there.federation.topology == "custom"


def test_another_graph_is_not_resumed(lab: Lab, code: str) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    with pytest.raises(KeyboardInterrupt):
        lab.federation(stop, **on(code, "other_each_time")).run(run_id="r")
    with pytest.raises(RunRefused, match="its code or its data"):
        lab.federation(**on(code, "other_each_time")).resume("r")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("missing", "missing"),
        ("number", "callable"),
        ("raises", r"ValueError: no idea .*\.py, line \d+"),
        ("takes_one", "takes 1 positional argument"),
        ("nothing", "nothing"),
        ("short", "lacks client client_0"),
        ("odd", "RuntimeError: odd"),
        ("pairs", "6 parts that never meet: client_0, client_1"),
        ("one_way", "directed"),
    ],
)
def test_a_function_that_gives_no_usable_graph_is_refused_before_anything_starts(
    function: str, said: str, lab: Lab, code: str
) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)federation\.topology.*({said})"):
        lab.federation(**on(code, function))


def test_weights_that_sum_to_more_than_all_are_refused(lab: Lab, code: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)graph\.weights.*sum to 1\.5"):
        lab.federation(**on(code, "much", graph__weights="own"))


def test_a_module_that_is_not_there_is_refused(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"(?s)federation\.topology.*no_such_module"):
        lab.federation(**on("no_such_module", "ring"))


def test_what_is_no_name_is_refused(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"(?s)federation\.topology.*`module:function`"):
        lab.federation(**on_a_graph("rings"))


CONFIG = """\
federation:
  number_of_clients: 4
  rounds: 1
  topology: {code}:{function}
  aggregation_strategy: dpsgd
model: {{model_type: logistic_regression}}
data:
  dataset_type: synthetic
  options: {{samples: 80, features: 4, classes: 2}}
  data_distribution_kind: iid
"""


def checked(tmp_path: Path, code: str, function: str) -> tuple[int, str]:
    (tmp_path / "run.yaml").write_text(CONFIG.format(code=code, function=function))
    found = CliRunner().invoke(main, ["check", str(tmp_path / "run.yaml")])
    return found.exit_code, found.output


def test_check_names_file_line_and_key(tmp_path: Path, code: str) -> None:
    status, said = checked(tmp_path, code, "nothing")
    assert status == 2
    assert "run.yaml:4" in said
    assert "federation.topology" in said
    assert "Traceback" not in said


def test_check_says_where_the_code_runs_and_what_counts_for_nothing(
    tmp_path: Path, code: str
) -> None:
    status, said = checked(tmp_path, code, "looped")
    assert status == 0, said
    assert f"code that only the coordinator runs: {code}.py" in said
    assert "1 edge of a client to itself counts for nothing" in said
    assert "4 edges, 2 for each client" in said
