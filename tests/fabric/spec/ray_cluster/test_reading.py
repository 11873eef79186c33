"""A RayCluster is read strictly from YAML, JSON or Python, and written so that it reads back."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.common.strict_yaml.errors import BadFile
from fedpilot.common.strict_yaml.writing import written
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.spec.ray_cluster.reading import LARGEST, ray_cluster_of, read_ray_cluster
from fedpilot.fabric.spec.ray_cluster.scaling import scaled
from ray_cluster_documents import (
    HEAD_AT,
    WORKERS_AT,
    Document,
    container,
    problems_of,
    ray_cluster,
    with_head,
    with_workers,
)

HERE = Path(__file__).parent
SOURCE = HERE.parents[3] / "src"
GIB = 2**30


def write(tmp_path: Path, text: str, name: str = "team-a.yaml") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


class TestFigure7:
    """The snippet of the paper, exactly as printed."""

    def test_it_is_a_head_and_a_group_of_three(self) -> None:
        declared = read_ray_cluster(HERE.parent / "figure-7.yaml").declared
        assert (declared.name, declared.provider) == ("figure-7", "local")
        head, workers = declared.groups
        assert head.template.parameters == {"port": "6379", "object-store-memory": "100000000"}
        assert head.wanted == 1
        assert workers.name == "small-group"
        assert (workers.replicas, workers.least, workers.most) == (3, 1, 10)

    def test_warnings_name_the_lines_without_effect(self) -> None:
        file = HERE.parent / "figure-7.yaml"
        found = [(each.key, each.where) for each in read_ray_cluster(file).warnings]
        assert found == [
            ("spec.rayVersion", f"{file}:2"),
            (f"{HEAD_AT}.serviceType", f"{file}:7"),
            (f"{HEAD_AT}.replicas", f"{file}:8"),
            (f"{HEAD_AT}.rayStartParams.redis-password", f"{file}:12"),
            (f"{HEAD_AT}.rayStartParams.node-ip-address", f"{file}:13"),
        ]


class TestKubeRay:
    """Resources as KubeRay's users write them."""

    def test_a_small_one(self) -> None:
        read = read_ray_cluster(HERE / "kuberay-small.yaml")
        assert not read.warnings
        head, workers = read.declared.groups
        assert head.template.amounts == {"CPU": 1, "memory": 5 * GIB}
        assert workers.template.amounts == {"CPU": 1, "memory": GIB}
        assert workers.template.pod["spec"]["containers"][0]["name"] == "ray-worker"  # type: ignore[index]

    def test_a_complete_one(self) -> None:
        read = read_ray_cluster(HERE / "kuberay-complete.yaml")
        assert not read.warnings
        head, workers = read.declared.groups
        assert head.template.amounts == {"CPU": 0, "memory": 5 * GIB}
        assert head.template.labels == {"ray.io/region": "us-central2"}
        assert head.template.environment == {"GREETING": "hello"}
        assert head.template.parameters == {"dashboard-host": "0.0.0.0", "block": "true"}
        offered = {"CPU": 2.0, "GPU": 1.0, "memory": GIB, "Custom": 2.0, "TPU": 4.0}
        assert workers.template.resources == Resources.of(offered)
        assert workers.leaving == ("raycluster-complete-small-group-bdtwh",)
        assert workers.hosts_per_replica == 2
        assert [each.idle_s for each in read.declared.groups] == [120, 30]

    def test_kubernetes_gets_all_but_the_sections_of_fedpilot(self) -> None:
        read = read_ray_cluster(HERE / "kuberay-complete.yaml")
        manifest = read.manifest
        assert "fedpilot" not in json.dumps(manifest)
        declared = {**manifest, "spec": {**manifest["spec"], "fedpilot": {"provider": "kuberay"}}}
        assert ray_cluster_of(declared).declared == read.declared

    def test_a_manifest_has_text_in_all_parameters_and_no_empty_keys(self) -> None:
        document = with_workers("kuberay", rayStartParams={"num-cpus": 2}, resources=None)
        document["spec"]["headGroupSpec"] |= {"replicas": 1, "fedpilot": {"cost": 2}}
        document["spec"]["workerGroupSpecs"][0]["fedpilot"] = {"cost": 2}
        manifest = ray_cluster_of(document).manifest
        assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
        assert "replicas" not in manifest["spec"]["headGroupSpec"]
        assert "fedpilot" not in json.dumps(manifest)
        (group,) = manifest["spec"]["workerGroupSpecs"]
        assert group["rayStartParams"] == {"num-cpus": "2"}
        assert "resources" not in group


class TestName:
    def test_a_name_of_the_caller_replaces_the_documents(self, tmp_path: Path) -> None:
        file = write(tmp_path, written(ray_cluster()), "other.yaml")
        assert read_ray_cluster(file).declared.name == "team-a"
        read = read_ray_cluster(file, "team-b")
        assert read.declared.name == "team-b"
        assert read.document["metadata"] == {"name": "team-b"}

    def test_a_file_without_a_name_has_its_own(self, tmp_path: Path) -> None:
        document = ray_cluster()
        del document["metadata"]
        assert read_ray_cluster(write(tmp_path, written(document))).declared.name == "team-a"
        with pytest.raises(BadFile, match="a DNS label"):
            read_ray_cluster(write(tmp_path, written(document), "My File.yaml"))

    def test_a_mapping_without_a_name_needs_one(self) -> None:
        document = ray_cluster()
        del document["metadata"]
        assert list(problems_of(document)) == ["metadata.name"]
        assert ray_cluster_of(document, "team-b").declared.name == "team-b"


class TestStrictness:
    def test_a_problem_names_file_line_key_and_the_nearest(self, tmp_path: Path) -> None:
        text = "spec:\n  headGroupSpec: {}\n  workerGroupSpecs:\n  - groupName: a\n    replica: 1\n"
        with pytest.raises(BadFile) as found:
            read_ray_cluster(write(tmp_path, text))
        (problem,) = found.value.problems
        assert problem.where == f"{tmp_path / 'team-a.yaml'}:5"
        assert problem.key == f"{WORKERS_AT}.replica"
        assert problem.found == "an unknown key"
        assert "maxReplicas" in problem.allowed
        assert problem.nearest == f"{WORKERS_AT}.replicas"

    def test_all_problems_are_found_at_once(self) -> None:
        document = with_workers(replicas=9, rayStartParams={"temp-dir": "/tmp"})
        document["spec"]["headGroupSpec"]["template"] = {"spec": {"volumes": []}}
        assert set(problems_of(document, "A")) == {
            "metadata.name",
            f"{HEAD_AT}.template.spec.volumes",
            f"{WORKERS_AT}.rayStartParams.temp-dir",
            f"{WORKERS_AT}.replicas",
        }

    @pytest.mark.parametrize(
        ("document", "key", "nearest"),
        [
            pytest.param(
                ray_cluster() | {"apiVersion": "ray.io/v1alpha1"},
                "apiVersion",
                "ray.io/v1",
                id="an earlier version of the resource",
            ),
            pytest.param(
                ray_cluster() | {"kind": "RayJob"}, "kind", "", id="another kind of resource"
            ),
            pytest.param(ray_cluster() | {"status": {}}, "status", "", id="what a server answers"),
            pytest.param(
                ray_cluster(headGroupSpecs={}),
                "spec.headGroupSpecs",
                "spec.headGroupSpec",
                id="a misspelt section",
            ),
            pytest.param(
                with_workers(min_replicas=1),
                f"{WORKERS_AT}.min_replicas",
                f"{WORKERS_AT}.minReplicas",
                id="a key in Python's spelling",
            ),
            pytest.param(
                ray_cluster(fedpilot={"idle": 3}),
                "spec.fedpilot.idle",
                "spec.fedpilot.idleSeconds",
                id="a shortened key",
            ),
            pytest.param(
                with_head(fedpilot={"provider": "ssh"}),
                f"{HEAD_AT}.fedpilot.provider",
                "spec.fedpilot.provider",
                id="a key of the cluster in a group",
            ),
            pytest.param(
                with_head(suspend=True),
                f"{HEAD_AT}.suspend",
                "spec.suspend",
                id="a key that a head does not have",
            ),
            pytest.param({"metadata": {"name": "a"}}, "spec", "", id="no spec"),
            pytest.param({"metadata": {"name": "a"}, "spec": {}}, HEAD_AT, "", id="no head"),
            pytest.param(
                ray_cluster(workerGroupSpecs=[{"replicas": 1}]),
                f"{WORKERS_AT}.groupName",
                "",
                id="a group without a name",
            ),
            pytest.param(
                ray_cluster(workerGroupSpecs={}), "spec.workerGroupSpecs", "", id="groups by name"
            ),
            pytest.param(ray_cluster(suspend="yes"), "spec.suspend", "true", id="text for a truth"),
            pytest.param(
                with_head(rayStartParams={"port": [1]}),
                f"{HEAD_AT}.rayStartParams.port",
                "",
                id="a list as a parameter",
            ),
            pytest.param(
                with_head(fedpilot={"cost": -1}),
                f"{HEAD_AT}.fedpilot.cost",
                "",
                id="a negative price",
            ),
        ],
    )
    def test_a_key_is_refused(self, document: Document, key: str, nearest: str) -> None:
        problems = problems_of(document)
        assert list(problems) == [key]
        assert problems[key].nearest == nearest

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            pytest.param("a: &a [1]\nb: [*a, *a]\n", "the anchor `&a`", id="a bomb of aliases"),
            pytest.param("spec: !!python/object:os.system {}\n", "the tag", id="a tag"),
            pytest.param("spec: {}\nspec: {}\n", "a second `spec`", id="a key twice"),
            pytest.param("spec: {}\n---\nspec: {}\n", "a second document", id="two documents"),
            pytest.param("[" * 60 + "]" * 60, "more than 50 levels", id="endless nesting"),
            pytest.param("- a\n", "the list", id="a list"),
            pytest.param("spec:\n  \x1b[2J: 1\n", "the control character", id="control codes"),
            pytest.param("#" * (LARGEST + 1), "more than 1 MiB", id="a file that is too large"),
            pytest.param("", "it is missing", id="an empty file"),
        ],
    )
    def test_a_file_is_refused(self, tmp_path: Path, text: str, found: str) -> None:
        with pytest.raises(BadFile) as error:
            read_ray_cluster(write(tmp_path, text))
        assert found in str(error.value)
        assert str(error.value).replace("\n", "").isprintable()

    def test_names_with_control_codes_are_printed_safely(self) -> None:
        document = ray_cluster()
        document["spec"]["\x1b[2J"] = 1
        document["spec"]["workerGroupSpecs"][0]["groupName"] = "\x1b[2J"
        for found in ({"spec": document["spec"]}, with_workers(groupName="\x1b]0;x\x07")):
            text = "".join(map(str, problems_of(found, "a").values()))
            assert text
            assert text.replace("\n", "").isprintable()

    @pytest.mark.parametrize(
        "value",
        [
            pytest.param({1: 2}, id="a key that is no text"),
            pytest.param(math.nan, id="no number"),
            pytest.param(2**63, id="a number beyond JSON's readers"),
            pytest.param({"a"}, id="a set"),
            pytest.param(b"a", id="bytes"),
        ],
    )
    def test_a_mapping_holds_what_json_can(self, value: Any) -> None:
        document = with_head("kuberay")
        document["spec"]["headGroupSpec"]["template"]["spec"]["volumes"] = value
        assert list(problems_of(document)) == [f"{HEAD_AT}.template.spec.volumes"]

    def test_a_mapping_without_end_is_refused(self) -> None:
        document = with_head("kuberay")
        template = document["spec"]["headGroupSpec"]["template"]
        template["spec"]["template"] = template
        assert "50 levels" in str(problems_of(document))

    def test_a_few_values_that_repeat_each_other_are_refused(self) -> None:
        document = with_head("kuberay")
        bomb: list[Any] = []
        for _ in range(40):
            bomb = [bomb, bomb]
        document["spec"]["headGroupSpec"]["template"]["spec"]["volumes"] = bomb
        assert "too many values" in str(problems_of(document))

    def test_what_was_read_does_not_change_with_the_mapping(self) -> None:
        document = with_head("kuberay")
        read = ray_cluster_of(document)
        before = repr(read)
        document["spec"]["headGroupSpec"]["template"]["spec"]["containers"].clear()
        assert repr(read) == before


counts = st.integers(0, 6)
words = st.text("abc-_.", min_size=1, max_size=5).filter(str.isalnum)
amounts = st.dictionaries(
    st.sampled_from(["CPU", "GPU", "memory", "disk"]),
    st.sampled_from(["0", "1", "500m", "4Gi", "12"]),
)


@st.composite
def groups(draw: st.DrawFn, name: str, provider: str) -> Document:
    least, more, most = draw(counts), draw(counts), draw(counts)
    group: Document = {"groupName": name}
    group |= draw(st.sampled_from([{}, {"minReplicas": least}]))
    group |= draw(st.sampled_from([{}, {"replicas": least + more}]))
    group |= draw(st.sampled_from([{}, {"maxReplicas": least + more + most}]))
    group |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "resources": amounts,
                "labels": st.dictionaries(words, words, max_size=2),
                "suspend": st.booleans(),
                "scaleStrategy": st.just({"workersToDelete": ["a-1", "a-2"]}),
                "idleTimeoutSeconds": counts,
                "fedpilot": st.fixed_dictionaries(
                    {}, optional={"drainSeconds": counts, "cost": st.floats(0, 9)}
                ),
            },
        )
    )
    if provider == "kuberay" or draw(st.booleans()):
        group["template"] = container(image="ray", env=[{"name": "A", "value": draw(words)}])
    return group


@st.composite
def documents(draw: st.DrawFn) -> Document:
    provider = draw(st.sampled_from(["local", "ssh", "kuberay", "fake"]))
    document = ray_cluster(provider)
    names = draw(st.lists(words, max_size=3, unique=True))
    document["spec"]["workerGroupSpecs"] = [draw(groups(name, provider)) for name in names]
    document["spec"] |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "suspend": st.booleans(),
                "gcsFaultToleranceOptions": st.just({"redisAddress": "redis:6379"}),
                "upgradeStrategy": st.just({"type": "Recreate"}),
                "rayVersion": st.sampled_from(["1.0.1", "2.60.0"]),
            },
        )
    )
    return document


@given(document=documents())
def test_what_was_written_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, document: Document
) -> None:
    read = ray_cluster_of(document)
    again = ray_cluster_of(json.loads(json.dumps(read.document)))
    assert again == read
    file = tmp_path_factory.mktemp("written") / "a.yaml"
    file.write_text(written(read.document))
    assert read_ray_cluster(file).declared == read.declared
    file.write_text(json.dumps(read.document))
    assert read_ray_cluster(file).document == read.document


@given(document=documents())
def test_all_numbers_within_the_limits_can_be_asked_for(document: Document) -> None:
    read = ray_cluster_of(document)
    for group in read.declared.workers:
        for replicas in (group.least, min(group.most, group.least + 3)):
            edited = scaled(read, group.name, replicas=replicas).declared
            found = {each.name: each for each in edited.workers}
            assert found[group.name].replicas == replicas
            assert found[group.name].most == group.most


def test_reading_imports_no_ray() -> None:
    ask = (
        "import sys, fedpilot.fabric.spec.ray_cluster.scaling;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'ray', 'torch', 'grpc'}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
