"""`list` and `show`: a line for each, and all that is known of one."""

from __future__ import annotations

from cluster_documents import NOW, A, printed, shared
from fedpilot.fabric.cli.terminal.tables import cluster_details, cluster_table


def test_the_table_has_a_line_for_each() -> None:
    lines = printed(cluster_table(shared(), NOW)).splitlines()[2:]
    names = ["vision", "speech", "eval", "default", "tabular", "genomics"]
    assert [line.split()[0] for line in lines] == names
    assert "with job 01000000" in lines[2]
    assert "wants 5 CPU" in lines[4]


def test_details_say_in_which_project_it_is_and_for_whom_it_leaves() -> None:
    notice = {"at": NOW + 8, "claimant": "vision", "rule": "reclaim-quota", "reason": "it has less"}
    queue = {"project": "lab", "priority_class": "train", "preemptible": True, "leaves": notice}
    document = shared()
    document["clusters"] = [{**each, **queue} for each in document["clusters"]]
    shown = printed(cluster_details(document, "speech", NOW))
    assert "its places to vision within 8 s: it has less" in shown
    assert "lab, class train, preemptible" in shown


def test_details_have_labels_loans_and_what_is_inside() -> None:
    shown = printed(cluster_details(shared(), "speech", NOW))
    assert "2 CPU from the Ray cluster, for another 42 s" in shown
    assert "eval; together 2 CPU" in shown
    assert f"speech@{A[:8]} " in shown, "long names of vnodes are cut"
    assert "rank=7" in shown
    assert "ray.io" not in shown
