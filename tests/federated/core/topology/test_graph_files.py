"""A graph comes from a file as it stands there; what is no graph of the clients is told by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.strategies import DrawFn

from fedpilot.federated.core.topology.graph_files import NotAGraph, WeightedEdges, read_graph

CLIENTS = ("ann", "bob", "cid", "dan")

GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="w" for="edge" attr.name="weight" attr.type="double"/>
  <graph edgedefault="{kind}">
    <node id="ann"/><node id="bob"/>
    <edge source="ann" target="bob"><data key="w">0.25</data></edge>
    <edge source="bob" target="cid"/>
  </graph>
</graphml>
"""


def read(text: str, name: str = "graph.edges", *, folder: Path) -> WeightedEdges:
    file = folder / name
    file.write_text(text)
    return read_graph(file, CLIENTS)


def edges_of(found: WeightedEdges) -> dict[tuple[str, str], float]:
    """By source and receiver: the weight."""
    ends = zip(found.edges.sources.tolist(), found.edges.receivers.tolist(), strict=True)
    names = [(CLIENTS[source], CLIENTS[receiver]) for source, receiver in ends]
    return dict(zip(names, found.weights.tolist(), strict=True))


def both(*edges: tuple[str, str, float]) -> dict[tuple[str, str], float]:
    one = {(a, b): weight for a, b, weight in edges}
    return {**one, **{(b, a): weight for (a, b), weight in one.items()}}


def test_a_line_is_an_edge_in_both_directions(tmp_path: Path) -> None:
    found = read("# friends\nann,bob\n\nbob, cid, 0.5  # close\ndan dan\n", folder=tmp_path)
    assert edges_of(found) == both(("ann", "bob", 1.0), ("bob", "cid", 0.5))
    assert found.edges.is_symmetric


def test_clients_may_be_called_by_their_numbers(tmp_path: Path) -> None:
    assert edges_of(read("0 1\n3 2\n", folder=tmp_path)) == both(
        ("ann", "bob", 1.0), ("dan", "cid", 1.0)
    )


def test_a_matrix_says_what_each_row_sends(tmp_path: Path) -> None:
    text = "9,0.5,0,0\n0,0,1,0\n0,0,0,0\n0.25,0,0,0\n"
    assert edges_of(read(text, "graph.csv", folder=tmp_path)) == {
        ("ann", "bob"): 0.5,
        ("bob", "cid"): 1.0,
        ("dan", "ann"): 0.25,
    }


@pytest.mark.parametrize("kind", ["directed", "undirected"])
def test_graphml_says_itself_whether_it_is_directed(kind: str, tmp_path: Path) -> None:
    one = {("ann", "bob"): 0.25, ("bob", "cid"): 1.0}
    found = edges_of(read(GRAPHML.format(kind=kind), "graph.graphml", folder=tmp_path))
    assert found == (one if kind == "directed" else both(("ann", "bob", 0.25), ("bob", "cid", 1.0)))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("g.edges", "ann bob\nann eve\n", "line 2: no client is called 'eve'"),
        ("g.edges", "0 1\n1 4\n", "line 2: no client is called '4'; clients are ann to dan, or 0"),
        ("g.edges", "ann bob\n0 1\n", "line 2: no client is called '0'"),
        ("g.edges", "ann\n", "line 1: 'ann' is not two nodes"),
        ("g.edges", "ann bob much\n", "line 1: 'much' is not a number"),
        ("g.edges", "ann bob -1\n", "line 1: the weight -1 is negative"),
        ("g.edges", "ann bob nan\n", "line 1: the weight nan is negative or not finite"),
        (
            "g.edges",
            "ann bob 1\nbob ann 2\n",
            "line 2: .* has two weights, 1 and 2",
        ),
        ("g.csv", "0,1\n1,0\n", "2 rows for 4 clients .a matrix has no line of names"),
        ("g.csv", "0,1,0,0\n" * 3 + "0,1\n", "row 4: 2 entries for 4 clients"),
        ("g.csv", "0,x,0,0\n" * 4, "row 1: 'x' is not a number"),
        ("g.graphml", "<graph", "it is no GraphML"),
        ("g.graphml", GRAPHML.format(kind="undirected").replace("cid", "eve"), "called 'eve'"),
    ],
)
def test_what_is_no_graph_of_the_clients_is_told(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(NotAGraph, match=said):
        read(text, name, folder=tmp_path)


@pytest.mark.parametrize("name", ["missing.edges", "."])
def test_a_file_that_cannot_be_read_is_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotAGraph, match="cannot be read"):
        read_graph(tmp_path / name, CLIENTS)


words = st.sampled_from([*CLIENTS, "0", "3", "4", "eve", "-1", "1e999", "nan", "0.5", "", "é"])


@st.composite
def files(draw: DrawFn) -> str:
    rows = draw(st.lists(st.lists(words, max_size=5), max_size=6))
    glue = draw(st.sampled_from([",", " ", ";"]))
    return "\n".join(map(glue.join, rows)) + draw(st.text(max_size=5))


@given(text=files(), name=st.sampled_from(["g.csv", "g.edges", "g.graphml"]))
def test_no_file_gives_anything_but_a_graph_or_a_reason(
    text: str, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / name
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = read_graph(file, CLIENTS)
    except NotAGraph:
        return
    assert len(found.weights) == len(found.edges)
    assert np.isfinite(found.weights).all()
