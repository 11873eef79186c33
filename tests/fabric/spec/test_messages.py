"""A spec survives the wire; a message that says what we do not understand is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from fabric_specs import specs
from fedpilot.fabric import SpecError, VirtualCluster
from fedpilot.fabric.spec.proto import virtual_cluster_pb2 as pb
from fedpilot.fabric.spec.proto.messages import from_bytes, from_message, to_bytes, to_message

ROOT = Path(__file__).parents[3]


@given(spec=specs())
def test_messages_say_all_of_a_spec(spec: VirtualCluster) -> None:
    assert from_message(to_message(spec)) == spec
    assert from_bytes(to_bytes(spec)) == spec
    assert to_bytes(from_bytes(to_bytes(spec))) == to_bytes(spec)


def asked(**node: object) -> pb.VirtualCluster:
    whole = pb.FixedSizeNode(**{"resources": {"CPU": 1.0}, **node})
    return pb.VirtualCluster(fixed_size_nodes=[pb.FixedSizeNodes(nodes=[whole])])


def where(*expressions: pb.LabelMatchExpression) -> pb.VirtualCluster:
    return asked(parent_node_selector=pb.LabelMatchExpressions(expressions=expressions))


NOT_THERE = pb.LabelOperator(label_does_not_exist=pb.LabelDoesNotExist())


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(
            lambda: asked(resources={"CPU": -1.0}),
            r"fixed_size_nodes\[0\].nodes\[0\].resources: CPU must be zero or more",
            id="amounts are checked",
        ),
        pytest.param(
            lambda: where(pb.LabelMatchExpression(key="zone", operator=pb.LabelOperator())),
            "parent_node_selector.zone: wanted an operator that this version knows",
            id="an operator that we do not know",
        ),
        pytest.param(
            lambda: where(
                pb.LabelMatchExpression(
                    key="zone", operator=pb.LabelOperator(label_in=pb.LabelIn(values=["a,b"]))
                )
            ),
            "parent_node_selector.zone: expected a value",
            id="values are checked",
        ),
        pytest.param(
            lambda: where(*(pb.LabelMatchExpression(key="zone", operator=NOT_THERE),) * 2),
            "parent_node_selector.zone: wanted one condition, found two",
            id="two conditions for one label",
        ),
        pytest.param(
            lambda: pb.VirtualCluster(fixed_size_nodes=[pb.FixedSizeNodes()]),
            r"fixed_size_nodes\[0\].nodes: wanted at least one",
            id="a group without nodes",
        ),
        pytest.param(
            lambda: pb.VirtualCluster.FromString(b"\x1a\x02\x10\x63"),
            r"fixed_size_nodes\[0\].scheduling_policy: wanted one of .*found number 99",
            id="a policy that we do not know",
        ),
        pytest.param(
            lambda: pb.VirtualCluster(
                fixed_size_nodes=[
                    pb.FixedSizeNodes(nodes=[pb.FixedSizeNode(resources={"CPU": 1.0})], max_nodes=0)
                ]
            ),
            r"fixed_size_nodes\[0\].max_nodes: wanted a whole number from 1, .*found 0",
            id="fewer nodes than its minimum",
        ),
        pytest.param(
            lambda: pb.VirtualCluster.FromString(b"\x1a\x02\x20\x01"),
            r"fixed_size_nodes\[0\]: field 4 is unknown to this version",
            id="a field of a group that we do not know",
        ),
        pytest.param(
            lambda: pb.VirtualCluster.FromString(b"\x78\x01"),
            "a virtual cluster: field 15 is unknown to this version",
            id="a field that we do not know",
        ),
    ],
)
def test_a_message_that_we_do_not_understand_is_refused(
    message: Callable[[], pb.VirtualCluster], reason: str
) -> None:
    with pytest.raises(SpecError, match=reason):
        from_message(message())


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(SpecError, match=r"not a fedpilot\.v1\.VirtualCluster"):
        from_bytes(b"\xff\xff")


def test_the_generated_code_is_that_of_the_proto_files(tmp_path: Path) -> None:
    folders = ("fabric", "mediator", "federated")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.proto")]
    protos = sorted(f"fedpilot/{path.relative_to(ROOT)}" for path in found)
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-Isrc"),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos),
        ],
        cwd=ROOT,
        check=True,
    )
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 2 * len(protos)
    for path in made:
        assert path.read_text() == (ROOT / "src" / path.relative_to(tmp_path)).read_text()
