"""Which parameters of `ray start` a document may have, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from fedpilot.fabric.spec.ray_cluster.start_parameters import (
    OF_EARLIER_RAYS,
    PARAMETERS,
    ParameterKind,
    start_arguments,
)
from ray_cluster_documents import HEAD_AT, WORKERS_AT, problems_of, warned, with_head, with_workers


def head(provider: str = "local", **parameters: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in parameters.items()}
    return with_head(provider, rayStartParams=named)


def test_the_table_has_the_parameters_of_ray_start() -> None:
    from ray.scripts.scripts import start

    options = {each.opts[-1].removeprefix("--"): each for each in start.params}
    assert set(PARAMETERS) == set(options)
    flags = {name for name, each in options.items() if getattr(each, "is_flag", False)}
    assert {name for name, each in PARAMETERS.items() if each.flag} == flags
    assert not OF_EARLIER_RAYS.keys() & options.keys()


def test_parameters_are_kept_as_text() -> None:
    document = head(port=6379, object_store_memory=1e8, include_dashboard=False, verbose="1")
    assert ray_cluster_of(document).declared.head.template.parameters == {
        "port": "6379",
        "object-store-memory": "100000000",
        "include-dashboard": "false",
        "verbose": "1",
    }


def test_arguments_give_flags_without_a_value_and_leave_false_ones_out() -> None:
    given = {
        "port": "0",
        "include-dashboard": "false",
        "no-redirect-output": "True",
        "disable-usage-stats": "false",
    }
    found = start_arguments(given)
    assert found == ["--include-dashboard=false", "--no-redirect-output", "--port=0"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("object-store-memory", "78643199", id="a store below what Ray starts with"),
        pytest.param("object-store-memory", "100Mi", id="a store with a unit, which Ray refuses"),
        pytest.param("port", "65536", id="a port that does not exist"),
        pytest.param("port", "-1", id="a port below zero"),
        pytest.param("ray-client-server-port", "0", id="a client port that Ray refuses"),
        pytest.param("include-dashboard", "yes", id="no truth value"),
        pytest.param("disable-usage-stats", "1", id="a flag that is no truth value"),
        pytest.param("log-style", "colorful", id="a style that does not exist"),
        pytest.param("log-color", "never", id="a color that does not exist"),
        pytest.param("system-reserved-cpu", "-0.5", id="less than no CPU"),
        pytest.param("verbose", "٣", id="digits of other scripts"),
        pytest.param("tracing-startup-hook", "a\0b", id="a zero byte"),
        pytest.param("worker-port-list", "", id="an empty text"),
        pytest.param("dashboard-host", "0.0.0.0", id="a dashboard for all computers"),
        pytest.param("dashboard-host", "::", id="a dashboard for all computers, in IPv6"),
        pytest.param("dashboard-host", "10.0.0.5", id="a dashboard for a network"),
        pytest.param("dashboard-host", "head.example", id="a dashboard at a name"),
        pytest.param("ray-debugger-external", "true", id="a debugger for all computers"),
        pytest.param("temp-dir", "/tmp/ray", id="a folder that may be another's"),
        pytest.param("plasma-directory", "/dev/shm", id="the folder of the store"),
        pytest.param("object-spilling-directory", "/data", id="a folder to spill to"),
        pytest.param("labels-file", "/etc/labels", id="a file of labels"),
        pytest.param("system-config", "{}", id="Ray's own settings"),
        pytest.param("address", "10.0.0.1:6379", id="another cluster"),
        pytest.param("head", "true", id="a second head"),
        pytest.param("node-name", "a", id="a machine's name"),
        pytest.param("node-manager-port", "7000", id="a port that fedpilot chooses"),
        pytest.param("redis-username", "ray", id="the user of Redis"),
        pytest.param("storage", "/data", id="a parameter of earlier versions"),
        pytest.param("num_cpus", "1", id="an underscore for a dash"),
        pytest.param("nope", "1", id="no parameter at all"),
    ],
)
def test_a_parameter_is_refused_at_its_key(name: str, value: str) -> None:
    key = f"{HEAD_AT}.rayStartParams.{name}"
    assert list(problems_of(with_head(rayStartParams={name: value}))) == [key]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        pytest.param("num_cpus", "num-cpus", id="an underscore for a dash"),
        pytest.param("object-store-mem", "object-store-memory", id="a shortened name"),
        pytest.param("gcs-server-port", "port", id="the name of an earlier version"),
    ],
)
def test_the_nearest_parameter_is_named(name: str, nearest: str) -> None:
    problem = problems_of(with_head(rayStartParams={name: "1"}))[f"{HEAD_AT}.rayStartParams.{name}"]
    assert problem.nearest == nearest


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "::1", "[::1]"])
def test_a_dashboard_may_be_reached_from_its_own_computer(host: str) -> None:
    template = ray_cluster_of(head(dashboard_host=host)).declared.head.template
    assert template.parameters["dashboard-host"] == host


def test_what_fedpilot_computes_has_no_effect_and_a_warning() -> None:
    document = head(node_ip_address="$MY_POD_IP", redis_password="secret", block="true")
    assert set(warned(document)) == {
        f"{HEAD_AT}.rayStartParams.{name}"
        for name in ("node-ip-address", "redis-password", "block")
    }
    read = ray_cluster_of(document)
    assert read.declared.head.template.parameters == {}
    assert "secret" not in repr(read), "no store keeps a password"


def test_a_password_is_refused_where_there_is_a_redis_to_use_it_for() -> None:
    document = head(redis_password="secret")
    document["spec"]["gcsFaultToleranceOptions"] = {}
    problem = problems_of(document)[f"{HEAD_AT}.rayStartParams.redis-password"]
    assert "redisPasswordFile" in problem.allowed
    assert "secret" not in str(problem)


@pytest.mark.parametrize("name", [name for name, each in PARAMETERS.items() if each.of_heads])
def test_a_worker_has_no_parameters_of_a_head(name: str) -> None:
    problems = problems_of(with_workers(rayStartParams={name: "1024"}))
    assert "headGroupSpec" in problems[f"{WORKERS_AT}.rayStartParams.{name}"].allowed


@pytest.mark.parametrize(
    ("provider", "port", "refused"),
    [
        pytest.param("local", "8080", True, id="workers of one host cannot share a port"),
        pytest.param("local", "0", False, id="any free port is fine"),
        pytest.param("ssh", "8080", False, id="workers of several hosts have one each"),
        pytest.param("kuberay", "8080", False, id="each pod has its own ports"),
    ],
)
def test_a_fixed_port_of_workers(provider: str, port: str, refused: bool) -> None:
    document = with_workers(provider, rayStartParams={"metrics-export-port": port})
    assert bool(problems_of(document)) is refused


def test_in_kubernetes_folders_and_hosts_are_those_of_a_pod() -> None:
    given = {"dashboard-host": "0.0.0.0", "temp-dir": "/tmp/ray", "block": "true"}
    document = with_head("kuberay", rayStartParams=given)
    assert ray_cluster_of(document).declared.head.template.parameters == given
    assert not warned(document)


def test_a_parameter_that_no_one_may_set_says_what_to_write_instead() -> None:
    refused = [each for each in PARAMETERS.values() if each.treatment.value.startswith("refused")]
    assert refused
    assert all(each.instead for each in refused)
    assert {each.kind for each in PARAMETERS.values()} == set(ParameterKind)
