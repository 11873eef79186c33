"""Each check of the doctor, from facts that are given; and that the whole is quick and harmless."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from fedpilot.common.host.machine import Load
from fedpilot.fabric.ray.machine_check import ClusterReport, MachineReport
from fedpilot.federated.cli import doctor
from fedpilot.federated.cli.doctor import GIB, CheckResult, examine

ROOT = Path(__file__).parents[3]


RAY = Requirement("ray>=2.50,<3")
SHORT = "/tmp"
LONG = "/scratch/users/someone/with/a/rather/long/path"


def machine(**facts: Any) -> MachineReport:
    told = {"python": "3.11.7", "fedpilot": "1.0", "niceness": 0, "load": 0.5}
    return MachineReport(hostname="node-1", cpus=4.0, **{**told, **facts})


def report(cpus: float, free: float, *machines: MachineReport) -> ClusterReport:
    return ClusterReport(ray="2.60.0", cpus=cpus, free_cpus=free, machines=machines)


CHECKS = [
    pytest.param(doctor.python((3, 11, 4), ">=3.11"), "ok", "3.11.4", id="a Python that will do"),
    pytest.param(doctor.python((3, 9, 1), ">=3.11"), "fail", "3.9.1", id="a Python too old"),
    pytest.param(doctor.package(RAY, "2.60.0"), "ok", "2.60.0", id="a package that will do"),
    pytest.param(doctor.package(RAY, "2.9.0"), "fail", "needs <3,>=2.50", id="a package too old"),
    pytest.param(doctor.package(RAY, None), "fail", "not installed", id="a package that lacks"),
    pytest.param(
        doctor.package(RAY, "2.60.0rc1"), "ok", "2.60.0rc1", id="a release candidate counts"
    ),
    pytest.param(doctor.cpus(8, None), "ok", "8", id="CPUs without a quota"),
    pytest.param(doctor.cpus(8, 16.0), "ok", "8", id="a quota above what is visible"),
    pytest.param(doctor.cpus(8, 1.5), "warn", "1.5 of 8", id="a quota below what is visible"),
    pytest.param(doctor.memory(8 * GIB), "ok", "8.59 GB", id="memory enough"),
    pytest.param(doctor.memory(GIB), "warn", "1.07 GB", id="little memory"),
    pytest.param(doctor.memory(None), "ok", "unknown", id="memory that cannot be told"),
    pytest.param(doctor.shared_memory(4 * GIB), "ok", "4.29 GB", id="shared memory enough"),
    pytest.param(doctor.shared_memory(64 * 2**20), "warn", "67.1 MB", id="Docker's 64 MiB"),
    pytest.param(doctor.shared_memory(None), "warn", "no /dev/shm", id="no shared memory"),
    pytest.param(
        doctor.disk(Path("/d"), (100 * GIB, 50 * GIB, 50 * GIB)), "ok", "53.7 GB", id="disk enough"
    ),
    pytest.param(
        doctor.disk(Path("/d"), (1000 * GIB, 980 * GIB, 20 * GIB)), "warn", "95%", id="a full disk"
    ),
    pytest.param(
        doctor.disk(Path("/d"), (10 * GIB, 10 * GIB, GIB // 2)), "warn", "537 MB", id="little disk"
    ),
    pytest.param(doctor.gpus([], False), "ok", "none", id="no GPU"),
    pytest.param(doctor.gpus([Path("/dev/nvidia0")], True), "ok", "nvidia0", id="a GPU"),
    pytest.param(doctor.gpus([Path("/dev/nvidia0")], False), "warn", "nvidia0", id="no driver"),
    pytest.param(doctor.authentication({}, False), "ok", "unset", id="no token and no mode"),
    pytest.param(doctor.authentication({}, True), "warn", "auth_token exists", id="a stray token"),
    pytest.param(
        doctor.authentication({"RAY_AUTH_MODE": "disabled"}, True), "ok", "disabled", id="disabled"
    ),
    pytest.param(
        doctor.authentication({"RAY_AUTH_MODE": "token"}, False), "warn", "no token", id="no token"
    ),
    pytest.param(
        doctor.authentication({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/t"}, False),
        "ok",
        "RAY_AUTH_MODE=token",
        id="a token elsewhere",
    ),
    pytest.param(doctor.other_ray(["bash"]), "ok", "none", id="no other Ray"),
    pytest.param(
        doctor.other_ray(["raylet", "bash", "gcs_server", "raylet"]),
        "ok",
        "1 gcs_server, 2 raylet",
        id="another Ray is worth knowing",
    ),
    pytest.param(doctor.agent_port(False), "ok", "is free", id="the agent's port is free"),
    pytest.param(doctor.agent_port(True), "warn", "in use", id="the agent's port is taken"),
    pytest.param(doctor.ray_address_variable(None, None), "ok", "unset", id="no RAY_ADDRESS"),
    pytest.param(doctor.ray_address_variable("h:1", None), "warn", "RAY_ADDRESS=h:1", id="ignored"),
    pytest.param(
        doctor.ray_address_variable("h:1", "auto"), "ok", "used by", id="RAY_ADDRESS with auto"
    ),
    pytest.param(doctor.temporary_folder(SHORT), "ok", "/tmp", id="a short temporary folder"),
    pytest.param(doctor.temporary_folder(LONG), "fail", "too long", id="a long temporary folder"),
    pytest.param(doctor.unreachable("h:1", "silence"), "fail", "h:1: silence", id="nobody there"),
    pytest.param(
        doctor.reached("h:1", "token", report(8, 5, machine(), machine())),
        "ok",
        "h:1: 2 machines with 8 CPU, 5 of them free; Ray 2.60.0, Python 3.11.7, authentication to",
        id="a cluster with room",
    ),
    pytest.param(
        doctor.reached("h:1", "disabled", report(8, 0, machine())),
        "warn",
        "1 machine with 8 CPU, 0 of them free",
        id="a full cluster",
    ),
    pytest.param(doctor.machine(machine(), "1.0"), "ok", "4 CPU, fedpilot 1.0", id="a machine"),
    pytest.param(
        doctor.machine(machine(niceness=15), "1.0"), "warn", "at niceness 15", id="nice workers"
    ),
    pytest.param(
        doctor.machine(machine(fedpilot="0.9"), "1.0"), "warn", "fedpilot 0.9", id="another version"
    ),
    pytest.param(
        doctor.machine(machine(problem="ModuleNotFoundError: No module named 'fedpilot'"), "1.0"),
        "fail",
        "No module named 'fedpilot'",
        id="a machine without fedpilot",
    ),
    pytest.param(
        doctor.machine(machine(problem="it has not run a task of 0 CPU", python=""), "1.0"),
        "fail",
        "it has not run a task",
        id="a machine that does not answer",
    ),
    pytest.param(doctor.busyness(Load(4.0, 2, 0)), "ok", "load 4.0 on 2 CPUs", id="some load"),
    pytest.param(
        doctor.busyness(Load(16.2, 2, 0)),
        "warn",
        "load 16.2 on 2 CPUs, workers at niceness 0",
        id="a busy machine",
    ),
]


@pytest.mark.parametrize(("finding", "status", "found"), CHECKS)
def test_a_check_judges_the_facts(finding: CheckResult, status: str, found: str) -> None:
    assert finding.status == status
    assert found in finding.found
    assert finding.advice or status == "ok", "what is not well comes with advice"


def test_the_limit_of_the_temporary_folder_is_exact() -> None:
    longest = doctor.LONGEST_SOCKET - len(doctor.SOCKET_BELOW_TMP)
    assert doctor.temporary_folder("/" + "x" * (longest - 1)).status == "ok"
    assert doctor.temporary_folder("/" + "x" * longest).status == "fail"


def test_the_whole_host_is_examined_each_thing_once() -> None:
    names = [finding.name for finding in examine()]
    assert len(names) == len(set(names))
    assert {"fedpilot", "cpus", "memory", "disk", "gpus", "ray authentication"} <= set(names)


def test_a_taken_port_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as server:
        monkeypatch.setattr(doctor, "AGENT_PORT", server.getsockname()[1])
        findings = {finding.name: finding for finding in examine()}
    assert findings["ray agent port"].status == "warn"


def test_an_open_port_is_no_ray_cluster() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        findings = {finding.name: finding for finding in examine(address, timeout_s=0.2)}
    assert findings["ray cluster"].status == "fail"
    assert "has said nothing for 0.2 s" in findings["ray cluster"].found


def test_it_is_quick_and_imports_neither_ray_nor_torch() -> None:
    code = (
        "import sys, time, fedpilot.federated.cli.doctor as doctor\n"
        "start = time.process_time()\n"
        "doctor.examine('127.0.0.1:1')\n"
        "assert time.process_time() - start < 1.0\n"
        "assert not {'ray', 'torch'} & set(sys.modules)"
    )
    env = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
