"""The files of a site's admin are taken as they are meant, or refused with what is wrong."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fedpilot.common.strict_yaml.errors import BadFile
from fedpilot.mediator.agent.site_config.site_files import (
    policy_of,
    read_link,
    read_policy,
    read_site_file,
)
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.core.rules.disclosure import Disclosure, Residency
from fedpilot.mediator.core.rules.policy import (
    ByteCaps,
    CommandPolicy,
    DatasetRule,
    Policy,
    ResourceCaps,
    Simulations,
)
from fedpilot.mediator.errors import PolicyRefused
from fedpilot.mediator.wire.failures import told

SITE = """\
datasets:
  scans:
    dataset_type: npz
    options: {mmap: true}
    path: data/scans
    schema: {input_shape: [1, 28, 28], dtype: float32, num_classes: 10}
    clients: {arise: id_list, file: ids.txt}
    residency: movable
    disclose: {ids: exact, counts: rounded, label_histogram: noised, client_labels: exact}
"""
POLICY = """\
users: [alice, "role:admin"]
models: [mlp, "hospital.models:*"]
code_digests: ["DIGEST"]
datasets:
  scans: {users: [alice], models: [mlp]}
resources: {vnodes: 4, cpus: 8, gpus: 1, memory: 16GiB}
minimum_cohort: 5
bytes_per_round: {to_site: 1GB}
bytes_per_day: {from_site: 1024}
simulations: [open, /srv/more]
commands: read
""".replace("DIGEST", "a" * 64)


def write(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text)
    return path


def test_a_site_file_declares_data(tmp_path: Path) -> None:
    (scans,) = read_site_file(write(tmp_path, SITE)).values()
    assert (scans.name, scans.dataset_type, scans.options) == ("scans", "npz", {"mmap": True})
    assert scans.path == str(tmp_path / "data/scans")
    assert scans.clients == {"arise": "id_list", "file": str(tmp_path / "ids.txt")}
    assert scans.input_shape == (1, 28, 28)
    assert scans.residency is Residency.MOVABLE
    assert scans.disclose.ids
    assert scans.disclose.counts is Disclosure.ROUNDED
    assert scans.disclose.label_histogram is Disclosure.NOISED
    assert scans.disclose.client_labels is Disclosure.EXACT


def test_a_policy_is_what_its_file_says(tmp_path: Path) -> None:
    assert read_policy(write(tmp_path, POLICY)) == Policy(
        users=("alice", "role:admin"),
        models=("mlp", "hospital.models:*"),
        code_digests=("a" * 64,),
        datasets={"scans": DatasetRule(users=("alice",), models=("mlp",))},
        resources=ResourceCaps(vnodes=4, cpus=8.0, gpus=1.0, memory=16 << 30),
        minimum_cohort=5,
        bytes_per_round=ByteCaps(to_site=10**9),
        bytes_per_day=ByteCaps(from_site=1024),
        simulations=(str(tmp_path / "open"), "/srv/more"),
        commands=CommandPolicy.READ,
    )


def test_a_policy_may_allow_any_code(tmp_path: Path) -> None:
    assert read_policy(write(tmp_path, "code_digests: [any]")).code_digests == ("any",)


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n"], ids=["empty", "a section", "a comment"])
def test_without_rules_and_without_a_file_the_defaults_hold(tmp_path: Path, text: str) -> None:
    assert read_policy(None) == Policy(simulations=Simulations.ALL)
    assert read_policy(write(tmp_path, text)) == Policy(simulations=Simulations.BUILTIN)
    assert read_site_file(write(tmp_path, text)) == {} == read_site_file(None)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        pytest.param("comands: read", 1, ["an unknown key", "nearest: commands"], id="misspelt"),
        pytest.param(
            "commands: rad", 1, ['the text "rad"', "none, read, all", "nearest: read"], id="a word"
        ),
        pytest.param("a: &x 1\nb: *x", 1, ["the anchor `&x`"], id="an anchor"),
        pytest.param("users: alice", 1, ['the text "alice"', "a list"], id="text for a list"),
        pytest.param(
            "users: [3]", 1, ["users[0]", "the number 3", "text"], id="a number as a name"
        ),
        pytest.param("users: ['role:boss']", 1, ["role:boss", "role:operator"], id="no such role"),
        pytest.param("code_digests: [abc]", 1, ["abc", "64 digits", "`any`"], id="no digest"),
        pytest.param("resources:\n  memory: 16GiX", 2, ["16GiX", "16GiB"], id="no such unit"),
        pytest.param("resources:\n  cpus: -1", 2, ["resources.cpus", "at least 0"], id="negative"),
        pytest.param("resources:\n  cpus: .nan", 2, ["resources.cpus"], id="not a number"),
        pytest.param("minimum_cohort: 0", 1, ["number 0", "at least 1"], id="a cohort of nobody"),
        pytest.param("minimum_cohort: true", 1, ["true", "a whole number"], id="true is no number"),
        pytest.param("users: []\nusers: []", 2, ["a second `users`"], id="a key twice"),
        pytest.param("- users", 1, ['the list ["users"]', "a section with: users"], id="a list"),
        pytest.param("users: [alice", 1, ["YAML"], id="no YAML"),
        pytest.param("3: x", 1, ["the number 3 as a key", "text as a key"], id="a number as a key"),
        pytest.param("users: !!python/object:os.system x", 1, ["the tag"], id="a tag"),
        pytest.param("users: 2024-01-01", 1, ['the text "2024-01-01"'], id="a date is text"),
        pytest.param(
            "datasets:\n  ../x: {users: [a]}", 2, ["'../x'", "letters, digits"], id="a path"
        ),
        pytest.param("datasets:\n  x: {}", 2, ["datasets.x.users", "it is missing"], id="nobody"),
        pytest.param("a: " * 3 + "[" * 50 + "]" * 50, 1, [], id="nested deeply"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, said: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadFile) as refused:
        read_policy(path)
    message = str(refused.value)
    assert f"{path}:{line}: " in message
    for each in said:
        assert each in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param("file: ids.txt", "column: id", "`column` with `arise: id_list`", id="other"),
        pytest.param(", file: ids.txt", "", "`arise: id_list` without `file`", id="none"),
        pytest.param("[1, 28, 28]", "[1, 0]", "input_shape[1]", id="a shape of nothing"),
        pytest.param("dtype: float32", "dtype: float8", "float8", id="a type that there is not"),
        pytest.param("ids: exact", "ids: rounded", "disclose.ids", id="ids cannot be rounded"),
        pytest.param("movable", "moveable", "nearest: movable", id="a word"),
        pytest.param(
            "    schema: {input_shape: [1, 28, 28], dtype: float32, num_classes: 10}\n",
            "",
            "datasets.scans.schema",
            id="no schema",
        ),
        pytest.param(
            "    path: data/scans\n    ", "    ", "", id="a path may be left out of an id list"
        ),
    ],
)
def test_a_declaration_that_makes_no_sense(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = write(tmp_path, SITE.replace(old, new))
    if not said:
        assert read_site_file(path)["scans"].path is None
        return
    with pytest.raises(BadFile, match=r"file\.yaml:") as refused:
        read_site_file(path)
    assert said in str(refused.value)


def test_an_unknown_key_is_told_before_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadFile) as refused:
        read_site_file(write(tmp_path, SITE.replace("dataset_type", "what_it_is")))
    found = [problem.found for problem in refused.value.problems]
    assert found == ["an unknown key", "it is missing"]


def test_a_misspelt_key_is_not_missing_as_well(tmp_path: Path) -> None:
    with pytest.raises(BadFile) as refused:
        read_site_file(write(tmp_path, SITE.replace("dataset_type", "dataset_typ")))
    assert [problem.found for problem in refused.value.problems] == ["an unknown key"]


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="there is no such file"):
        read_policy(tmp_path / "none.yaml")
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match="UTF-8"):
        read_policy(path)


# -- a policy that cannot be read ------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("users: [anna]\nminimum_cohrt: 5\n", id="a typo"),
        pytest.param("users: [anna\n", id="no YAML"),
        pytest.param(None, id="no file"),
    ],
)
def test_what_is_wrong_stays_in_the_sites_own_log(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.yaml"
    if text is not None:
        path.write_text(text)
    with caplog.at_level(logging.WARNING), pytest.raises(PolicyRefused) as caught:
        policy_of("paris", path)
    assert str(caught.value) == (
        "the policy of site paris refuses it by the rule policy.yaml: found a file that cannot be "
        "read; allowed is one that can: the site's own log says what is wrong with it"
    )
    wire = told(caught.value).SerializeToString()
    assert not any(secret in wire for secret in (bytes(tmp_path), b"anna", b"cohrt"))
    assert str(path) in caplog.text


def test_without_a_file_it_is_the_default() -> None:
    assert policy_of("paris", None) == Policy()


def test_a_site_file_declares_the_link(tmp_path: Path) -> None:
    text = "link: {up: 100 Mbit/s, down: 1 Gbit/s}"
    assert read_link(write(tmp_path, text)) == LinkSpeed(up=12.5e6, down=125e6)
    assert read_link(write(tmp_path, "link: {up: 1 MB/s}")) == LinkSpeed(up=1e6)
    assert read_link(write(tmp_path, SITE)) == read_link(None) == LinkSpeed()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("100", id="a number without its unit"),
        pytest.param("100 Mbit", id="an amount"),
        pytest.param("0 Mbit/s", id="no link"),
    ],
)
def test_a_link_is_declared_as_a_rate(value: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as refused:
        read_link(write(tmp_path, f"link: {{up: {value}}}"))
    (problem,) = refused.value.problems
    assert problem.key == "link.up"
    assert "a speed above 0, such as 100Mbit/s" in str(refused.value)
