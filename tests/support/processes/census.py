"""What a Ray cluster's control plane says is there now: `python census.py ADDRESS`.

A line for each actor that has not ended and each placement group that was not removed, those that
wait for their places among them. It asks as the control plane's own clients do, and is no driver.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

ANSWER_S = 60.0


def census(address: str) -> list[str]:
    """The lines; what the asking raises if nobody answers in time."""
    tables: Any = importlib.import_module("ray.core.generated.gcs_pb2")
    messages: Any = importlib.import_module("ray.core.generated.gcs_service_pb2")
    services: Any = importlib.import_module("ray.core.generated.gcs_service_pb2_grpc")
    utils: Any = importlib.import_module("ray._private.grpc_utils")
    with utils.init_grpc_channel(address) as channel:
        actors = services.ActorInfoGcsServiceStub(channel).GetAllActorInfo(
            messages.GetAllActorInfoRequest(), timeout=ANSWER_S
        )
        groups = services.PlacementGroupInfoGcsServiceStub(channel).GetAllPlacementGroup(
            messages.GetAllPlacementGroupRequest(), timeout=ANSWER_S
        )
    return [
        f"actor {each.class_name}"
        for each in actors.actor_table_data
        if each.state != tables.ActorTableData.DEAD
    ] + [
        f"placement group {each.name or each.placement_group_id.hex()}"
        for each in groups.placement_group_table_data
        if each.state != tables.PlacementGroupTableData.REMOVED
    ]


if __name__ == "__main__":
    print("\n".join(census(sys.argv[1])))
