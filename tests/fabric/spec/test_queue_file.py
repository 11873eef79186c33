"""A file of queues is read strictly, and says who may ask for what."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.common.strict_yaml.errors import BadFile, Problem
from fedpilot.common.strict_yaml.writing import written
from fedpilot.fabric.spec.queue_file import QueueFile, queue_file_of, read_queue_file
from queue_documents import with_value


def good() -> dict[str, Any]:
    return {
        "pools": [
            {"name": "gpus", "selector": {"gpu-type": "in(a100,h100)"}},
            {"name": "fast", "selector": {"disk": "ssd", "zone": "!b"}},
        ],
        "departments": [{"name": "research", "quota": {"gpus": {"GPU": 8, "CPU": None}}}],
        "projects": [
            {
                "name": "vision",
                "department": "research",
                "quota": {"gpus": {"GPU": 4, "CPU": None}},
                "users": ["alice", "role:researcher"],
                "classes": ["train", "nightly"],
            },
            {"name": "speech", "quota": {"gpus": {"GPU": 2, "CPU": 16}}},
        ],
        "classes": [{"name": "nightly", "priority": 10}],
        "settings": {"grace_s": 5},
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good document with another value at a path."""
    return with_value(good(), path, value)


def write(tmp_path: Path, document: Any) -> Path:
    file = tmp_path / "queues.yaml"
    file.write_text(written(document) if isinstance(document, dict) else json.dumps(document))
    return file


def test_a_file_reads_as_its_document_does(tmp_path: Path) -> None:
    file = read_queue_file(write(tmp_path, good()))
    assert file == queue_file_of(good()) == queue_file_of(file.document)
    assert file.settings.grace_s == 5
    assert json.loads(json.dumps(file.document)) == file.document


def test_an_empty_file_has_the_project_default(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("")
    assert [each.name for each in read_queue_file(file).projects] == ["default"]


def test_the_project_default_has_no_quota_and_weight_1_where_resources_are_rationed() -> None:
    default = queue_file_of(good()).projects[-1]
    assert default.name == "default"
    assert default.quota == {"gpus": {"GPU": 0, "CPU": 0}}
    assert default.over_quota_weight == {"gpus": {"GPU": 1, "CPU": 1}}


def test_a_declared_project_default_keeps_what_it_says() -> None:
    declared = {"name": "default", "quota": {"gpus": {"GPU": 1}}, "users": ["bob"]}
    file = queue_file_of({**good(), "projects": [declared, *good()["projects"]]})
    default = file.projects[0]
    assert default.name == "default"
    assert default.users == ["bob"]
    assert default.quota == {"gpus": {"GPU": 1, "CPU": 0}}
    assert default.over_quota_weight == {"gpus": {"CPU": 1}}
    assert len(file.projects) == 3


@pytest.mark.parametrize(
    ("document", "key", "told"),
    [
        pytest.param(
            changed("projects.0.quotas", {}), "projects[0].quotas", "an unknown key", id="a key"
        ),
        pytest.param(
            changed("settings.grace", 3),
            "settings.grace",
            "nearest: settings.grace_s",
            id="a key of the settings",
        ),
        pytest.param(
            changed("projects.1.name", "vision"),
            "projects[1].name",
            '"vision" a second time',
            id="two projects of one name",
        ),
        pytest.param(
            changed("projects.1.name", "research"),
            "projects[1].name",
            '"research" a second time',
            id="a project with the name of a department",
        ),
        pytest.param(
            changed("departments.0.name", "default"),
            "departments[0].name",
            "`default` is a project",
            id="a department default",
        ),
        pytest.param(
            changed("pools.1.name", "gpus"),
            "pools[1].name",
            "`pools[0].name`",
            id="two pools of one name",
        ),
        pytest.param(
            changed("pools.1.name", "default"),
            "pools[1].name",
            "machines that match no pool",
            id="a pool default",
        ),
        pytest.param(
            changed("classes.0.name", "build"), "classes[0].name", "a preset", id="a preset again"
        ),
        pytest.param(
            changed("projects.1.name", "a/b"), "projects[1].name", "without `/`", id="a slash"
        ),
        pytest.param(
            changed("projects.1.name", "a\nb"), "projects[1].name", "without `/`", id="a line end"
        ),
        pytest.param(
            changed("projects.1.name", "a" * 64), "projects[1].name", "at most 63", id="long"
        ),
        pytest.param(
            changed("projects.0.department", "reserch"),
            "projects[0].department",
            "nearest: research",
            id="a department that does not exist",
        ),
        pytest.param(
            changed("projects.1.limit", {"gpu": {"GPU": 1}}),
            "projects[1].limit.gpu",
            "nearest: gpus",
            id="a pool that does not exist",
        ),
        pytest.param(
            changed("settings.pool_placement", {"gpu": {}}),
            "settings.pool_placement.gpu",
            "nearest: gpus",
            id="placement in a pool that does not exist",
        ),
        pytest.param(
            changed("projects.0.classes", ["trian"]),
            "projects[0].classes[0]",
            "nearest: train",
            id="a class that does not exist",
        ),
        pytest.param(
            changed("projects.0.quota.gpus.GPU", -1),
            "projects[0].quota.gpus.GPU",
            "at least 0",
            id="a negative amount",
        ),
        pytest.param(
            changed("projects.0.quota", {"GPU": 4}),
            "projects[0].quota.GPU",
            "the amounts of a pool, such as `default: {CPU: 8}`",
            id="amounts without a pool",
        ),
        pytest.param(
            changed("projects.0.quota.gpus.GPU", math.nan),
            "projects[0].quota.gpus.GPU",
            "a finite number",
            id="not a number",
        ),
        pytest.param(
            changed("projects.0.quota.gpus.GPU", math.inf),
            "projects[0].quota.gpus.GPU",
            "a finite number",
            id="an infinite amount",
        ),
        pytest.param(
            changed("projects.1.quota.gpus", {"GPU": 2}),
            "projects[1].quota.gpus.CPU",
            "`departments[0].quota.gpus.CPU` is given",
            id="a resource that other queues of the pool name",
        ),
        pytest.param(
            changed("projects.1.over_quota_weight", {"default": {"CPU": 1}}),
            "projects[0].quota.default.CPU",
            "`projects[1].over_quota_weight.default.CPU` is given",
            id="a resource that only a weight names",
        ),
        pytest.param(
            changed("projects.1.limit", {"gpus": {"gpu": 2}}),
            "projects[1].limit.gpus.gpu",
            "nearest: GPU",
            id="a resource that Ray spells otherwise",
        ),
        pytest.param(
            changed("projects.1.limit", {"gpus": {" ": 2}}),
            "projects[1].limit.gpus. ",
            "the name of a resource",
            id="a resource without a name",
        ),
        pytest.param(
            changed("projects.0.users", []), "projects[0].users", "at least 1", id="no user"
        ),
        pytest.param(
            changed("projects.0.users", [""]),
            "projects[0].users[0]",
            "not empty",
            id="an empty user",
        ),
        pytest.param(
            changed("projects.0.users", ["role:"]),
            "projects[0].users[0]",
            "`role:` with a role",
            id="an empty role",
        ),
        pytest.param(
            changed("projects.0.users", "alice"), "projects[0].users", "a list", id="users as text"
        ),
        pytest.param(
            changed("pools.0.selector", {}),
            "pools[0].selector",
            "at least one label",
            id="a pool without a condition",
        ),
        pytest.param(
            changed("pools.0.selector", {"zone": "in(a"}),
            "pools[0].selector.zone",
            "exists()",
            id="a condition that does not parse",
        ),
        pytest.param(
            changed("pools.0.selector", {"a b": "c"}),
            "pools[0].selector.a b",
            "a label of",
            id="a label that Ray refuses",
        ),
        pytest.param(["projects"], "the file", "a section", id="a list"),
    ],
)
def test_it_is_refused(tmp_path: Path, document: Any, key: str, told: str) -> None:
    file = write(tmp_path, document)
    with pytest.raises(BadFile) as refused:
        read_queue_file(file)
    assert f"{key}\n" in str(refused.value)
    assert told in str(refused.value)
    assert str(refused.value).startswith(f"{file}:")
    with pytest.raises(BadFile) as refused:
        queue_file_of(document)
    assert key in [each.key for each in refused.value.problems]


def test_each_problem_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(
        "projects:\n"
        "  - name: vision\n"
        "    quota: {default: {CPU: 2}}\n"
        "  - name: speech\n"
        "    department: none\n"
        "    quota:\n"
        "      defualt: {CPU: 2}\n"
    )
    with pytest.raises(BadFile) as refused:
        read_queue_file(file)
    told = [(each.where, each.key) for each in refused.value.problems]
    assert told == [
        (f"{file}:5", "projects[1].department"),
        (f"{file}:7", "projects[1].quota.defualt"),
    ]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param(("speech", "bob"), None, id="everybody may use a project without users"),
        pytest.param(("", "bob"), None, id="an empty project is default"),
        pytest.param(("vision", "alice"), None, id="a listed user"),
        pytest.param(("vision", "bob", ["researcher"]), None, id="a listed role"),
        pytest.param(("vision", None), None, id="a user who is not known yet"),
        pytest.param(
            ("vision", "bob", ["admin"]),
            "project vision takes requests of alice and role:researcher, not of bob",
            id="another user",
        ),
        pytest.param(
            ("vision", "role:researcher"),
            None,
            id="a user whose name is an entry",
        ),
        pytest.param(
            ("vison", "alice"),
            "there is no project vison (did you mean vision?); "
            "there are: vision, speech and default",
            id="a project that does not exist",
        ),
        pytest.param(
            ("vision", "alice", (), "build"),
            "project vision allows the priority classes train and nightly, not build",
            id="a class that the project does not allow",
        ),
        pytest.param(("vision", "alice", (), "nightly"), None, id="a class that it allows"),
        pytest.param(
            ("speech", "bob", (), "nigthly"),
            "there is no priority class nigthly (did you mean nightly?); there are: inference, "
            "build, interactive-preemptible, train and nightly",
            id="a class that does not exist",
        ),
        pytest.param(
            ("speech", "bob", (), "", "gpu"),
            "there is no pool gpu (did you mean gpus?); there are: gpus, fast and default",
            id="a pool that does not exist",
        ),
        pytest.param(("speech", "bob", (), "", "default"), None, id="the pool default"),
    ],
)
def test_a_request_is_refused_with_what_would_be_right(asked: Any, told: str | None) -> None:
    assert queue_file_of(good()).refusal(*asked) == told


@pytest.mark.parametrize(
    ("labels", "pools"),
    [
        pytest.param({"gpu-type": "a100"}, ("gpus",), id="one pool"),
        pytest.param({"gpu-type": "h100", "disk": "ssd"}, ("gpus", "fast"), id="two, in order"),
        pytest.param({"disk": "ssd", "zone": "b"}, ("default",), id="one condition of two"),
        pytest.param({}, ("default",), id="none"),
    ],
)
def test_a_machine_belongs_to_the_pools_whose_conditions_it_meets(
    labels: dict[str, str], pools: tuple[str, ...]
) -> None:
    assert queue_file_of(good()).pools_of(labels) == pools


def test_a_request_without_a_pool_goes_where_its_project_has_quota() -> None:
    file = queue_file_of(good())
    assert file.pool_names == ("gpus", "fast", "default")
    assert file.first_pool("vision") == "gpus"
    assert file.first_pool("") == "default"


def test_without_a_file_everybody_may_ask_for_everything() -> None:
    file = QueueFile.unlimited()
    assert file.refusal("", "bob") is None
    assert file.refusal("", "bob", (), "inference") is None
    assert file.refusal("vision", "bob") == "there is no project vision; there are: default"
    assert file.pools_of({"gpu-type": "a100"}) == ("default",)


_names = st.sampled_from(["default", "gpus", "a", "b", "", "a/b", "train", "build", "role:", "é"])
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _names,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_names | st.text(max_size=3), inner)
    ),
    max_leaves=8,
)
_amounts = st.dictionaries(
    _names, st.dictionaries(st.sampled_from(["CPU", "GPU", "gpu", ""]), _values, max_size=2)
)
_queue = st.fixed_dictionaries(
    {"name": _names},
    optional={
        "quota": _amounts | _values,
        "over_quota_weight": _amounts,
        "limit": _amounts,
        "priority": _values,
    },
)
_project = st.fixed_dictionaries(
    {"name": _names},
    optional={
        "department": _names | _values,
        "quota": _amounts,
        "users": _values,
        "classes": st.lists(_names, max_size=2),
    },
)
_pool = st.fixed_dictionaries(
    {"name": _names, "selector": st.dictionaries(_names, st.text(max_size=6) | _values)}
)
_documents = st.fixed_dictionaries(
    {},
    optional={
        "pools": st.lists(_pool, max_size=3) | _values,
        "departments": st.lists(_queue, max_size=3) | _values,
        "projects": st.lists(_project, max_size=3) | _values,
        "classes": _values,
        "settings": _values,
        "quota": _values,
    },
)


@given(_documents | _values)
def test_any_document_is_read_or_refused_with_its_keys(document: Any) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        file = queue_file_of(document)
    except BadFile as refused:
        problems = refused.problems
    if problems:
        assert all(each.key and each.found and each.allowed for each in problems)
    else:
        assert queue_file_of(file.document) == file
        assert "default" in [each.name for each in file.projects]
