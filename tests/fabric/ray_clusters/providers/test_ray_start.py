"""How `ray start` is asked for a declared machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import (
    HEAD,
    MachineGroup,
    MachineName,
    MachineTemplate,
)
from fedpilot.fabric.core.ray_clusters.machines import MachineRecord
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.ray_clusters.providers.protocol import MachineOrder
from fedpilot.fabric.ray_clusters.providers.ray_start import MARK, MachineStart, environment, flags
from machine_world import FAULT_TOLERANT, declared, group

FOLDER = Path("/sessions")
ADDRESS = "10.0.0.1:6400"


def of_group(of: MachineGroup) -> MachineStart:
    name = MachineName(f"c-{of.name}-0")
    record = MachineRecord(
        name=name, number=0, group=of.name, host="", template="", head=name, since_s=0, reason=""
    )
    return MachineStart.of(MachineOrder(machine=record, group=of, cluster=declared()))


def asked(of: MachineGroup) -> dict[str, str]:
    found = flags(of_group(of), address=ADDRESS, free_ports=(10002, 8266), folder=FOLDER)
    return dict(each.removeprefix("--").partition("=")[::2] for each in found)


def test_a_head_gets_its_ports_and_the_folder_of_sessions() -> None:
    found = asked(MachineGroup(name=HEAD))
    assert "head" in found
    assert "address" not in found
    assert (found["port"], found["ray-client-server-port"]) == ("6400", "10002")
    assert found["dashboard-port"] == "8266"
    assert found["temp-dir"] == "/sessions"
    assert found["node-name"] == "c-headgroup-0"


@pytest.mark.parametrize(
    ("least", "replicas", "most", "come"),
    [
        pytest.param(0, 2, 4, True, id="it may grow"),
        pytest.param(0, 4, 4, True, id="it may shrink, and grow again"),
        pytest.param(4, 4, 4, False, id="it stays as it is"),
    ],
)
def test_a_head_knows_whether_machines_may_come(
    least: int, replicas: int, most: int, come: bool
) -> None:
    workers = group("small", replicas, least=least, most=most)
    record = MachineRecord(
        name=MachineName("c-h-0"),
        number=0,
        group=HEAD,
        host="",
        template="",
        head=MachineName("c-h-0"),
        since_s=0,
        reason="",
    )
    order = MachineOrder(machine=record, group=MachineGroup(name=HEAD), cluster=declared(workers))
    assert MachineStart.of(order).may_grow is come


def test_a_worker_gets_the_address_of_its_head_and_nothing_of_a_heads() -> None:
    found = asked(group("small"))
    assert found["address"] == "10.0.0.1:6400"
    assert (
        not {"head", "port", "temp-dir", "ray-client-server-port", "dashboard-port"} & found.keys()
    )
    assert found["labels"] == "ray.io/node-group=small"


def test_a_worker_on_another_host_has_a_folder_of_its_own_and_an_address() -> None:
    start = of_group(group("small"))
    found = flags(start, address=ADDRESS, free_ports=(1, 2), folder=FOLDER, own_address="10.0.0.2")
    assert {"--temp-dir=/sessions", "--node-ip-address=10.0.0.2"} < {*found}


def test_what_a_computer_has_to_know_of_a_machine_travels_as_json() -> None:
    template = MachineTemplate(resources=Resources.of({"CPU": 1.5}), environment={"A": "b"})
    start = of_group(group("small", template=template))
    assert MachineStart(**json.loads(json.dumps(asdict(start)))) == start


def test_amounts_and_labels_are_those_of_the_template() -> None:
    template = MachineTemplate(
        parameters={"object-store-memory": "80000000", "num-gpus": "0"},
        resources=Resources.of({"CPU": 1.5, "memory": 2**30, "disk": 3}),
        labels={"zone": "a"},
    )
    found = asked(group("small", template=template))
    assert found["num-cpus"] == "1.5"
    assert found["num-gpus"] == "0"
    assert found["memory"] == str(2**30)
    assert found["resources"] == '{"disk": 3.0}'
    assert found["labels"] == "ray.io/node-group=small,zone=a"
    assert found["object-store-memory"] == "80000000"


def test_a_flag_is_there_without_a_value_or_not_at_all() -> None:
    given = {"enable-object-reconstruction": "true", "no-redirect-output": "false"}
    template = MachineTemplate(parameters={**given, "disable-usage-stats": "true"})
    head = flags(
        of_group(MachineGroup(name=HEAD, template=template)),
        address=ADDRESS,
        free_ports=(1, 2),
        folder=FOLDER,
    )
    assert "--enable-object-reconstruction" in head
    assert head.count("--disable-usage-stats") == 1
    assert not any("no-redirect-output" in each for each in head)


def test_machines_wait_for_the_next_head_only_if_it_knows_them() -> None:
    record = MachineRecord(
        name=MachineName("c-small-0"),
        number=0,
        group=group("small").name,
        host="",
        template="",
        head=MachineName("c-headgroup-0"),
        since_s=0,
        reason="",
    )
    waits = []
    for options in (None, FAULT_TOLERANT):
        cluster = declared(fault_tolerance=options)
        order = MachineOrder(machine=record, group=group("small"), cluster=cluster)
        found = environment(MachineStart.of(order), "u", Path("/f"), {})
        waits.append(found.get("RAY_gcs_rpc_server_reconnect_timeout_s"))
    assert waits == [None, "600"]


def test_a_machine_has_the_clusters_token_and_no_variable_of_ray_that_its_manager_has() -> None:
    template = MachineTemplate(environment={"OMP_NUM_THREADS": "1", "RAY_x": "2"})
    inherited = {"RAY_ADDRESS": "elsewhere", "RAY_AUTH_MODE": "disabled", "HOME": "/h"}
    found = environment(of_group(group("small", template=template)), "u", Path("/f"), inherited)
    assert found == {
        "HOME": "/h",
        "OMP_NUM_THREADS": "1",
        "RAY_x": "2",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "SPT_NOENV": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "/f/token",
        "FEDPILOT_LEDGER": "/f/virtual-clusters",
        MARK: "u/c-small-0",
    }
