"""What is not the YAML of a config is told by place; the rest is read by YAML 1.2."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files import GOOD, changed, check_one_problem, write
from fedpilot.federated.config import load_config

ONE_PROBLEM = [
    pytest.param(
        changed("random_seed: 7", "random_seed: 7\n  random_seed: 8"),
        ("x.yaml:3", "run.random_seed", "a second `random_seed`", "the first is in line 2", ""),
        id="a key given twice is refused with the line of the first",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: 7\n  3: 8"),
        ("x.yaml:3", "run", "the number 3 as a key", "text as a key", ""),
        id="a number is not a key",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: 7\n  ? [a]\n  : 8"),
        ("x.yaml:3", "run", 'the list ["a"] as a key', "text as a key", ""),
        id="a list is not a key",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: &seed 7"),
        ("x.yaml:2", "run.random_seed", "the anchor `&seed`", "a value without an anchor", ""),
        id="anchors are refused",
    ),
    pytest.param(
        changed("random_seed: 7", "random_seed: *seed"),
        ("x.yaml:2", "run.random_seed", "the alias `*seed`", "the value itself", ""),
        id="aliases are refused",
    ),
    pytest.param(
        changed("random_seed: 7", "name: !!python/object:os.system x"),
        ("x.yaml:2", "run.name", "the tag `!!python/object", "a value without a tag", ""),
        id="tags are refused",
    ),
    pytest.param(
        changed("  random_seed: 7", "\trandom_seed: 7"),
        ("x.yaml:2", "run.random_seed", "not YAML: a tab", "spaces to indent with", ""),
        id="a tab is named",
    ),
    pytest.param(
        changed("model_type: mlp", "model_type: mlp: 3"),
        (
            "x.yaml:7",
            "model.model_type",
            "an unexpected `:`",
            "`key: value` on one line",
            "",
        ),
        id="a second colon is named",
    ),
    pytest.param(
        changed("model_type: mlp", "options: {hidden: [128}"),
        ("x.yaml:7", "model.options", "not YAML: ", "", ""),
        id="mismatched brackets are a syntax error at the key",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "loss_function: 'cross"),
        ("x.yaml:11", "training.loss_function", "an unclosed quote", "a closing", ""),
        id="an open quote is reported where it opens",
    ),
    pytest.param(
        changed("learning_rate: 1e-3", "options: [1, 2"),
        ("x.yaml:11", "training.options", "an unclosed bracket", "a closing", ""),
        id="an open bracket is reported where it opens",
    ),
    pytest.param(
        changed("  learning_rate: 1e-3", "  learning_rate: 1e-3\n momentum: 0"),
        ("x.yaml:12", "training.momentum", "whose indentation differs", "the same", ""),
        id="a wrong indentation is named",
    ),
    pytest.param(
        changed("model_type: mlp", "options: [is it?]"),
        ("x.yaml:7", "model.options", "a `?` in brackets", "text with a `?` in quotes", ""),
        id="a question mark in brackets needs quotes",
    ),
    pytest.param(
        GOOD + "---\nrun: {}\n",
        ("x.yaml:13", "the file", "a second document", "one document", ""),
        id="two documents are refused",
    ),
    pytest.param(
        GOOD + "outputs: " + "[" * 500,
        ("x.yaml:12", "outputs[0]", "more than 50 levels", "less nesting", ""),
        id="deep nesting is refused",
    ),
    pytest.param(
        "", ("x.yaml", "the file", "an empty file", "at least: model, data", ""), id="an empty file"
    ),
    pytest.param(
        "# nothing\n",
        ("x.yaml", "the file", "an empty file", "at least: model, data", ""),
        id="a file of comments is empty",
    ),
    pytest.param(
        "# list\n- 1\n",
        ("x.yaml:2", "the file", "the list [1]", "at least: model, data", ""),
        id="a list at top level",
    ),
    pytest.param(
        "hello",
        ("x.yaml:1", "the file", 'the text "hello"', "at least: model, data", ""),
        id="a text at top level",
    ),
    pytest.param(
        b"run:\n  name: \xff\xfe",
        ("x.yaml:2", "the file", "the byte 0xFF", "UTF-8", ""),
        id="a binary file",
    ),
    pytest.param(
        b"run:\n  name: \x00",
        ("x.yaml:2", "run.name", "the control character U+0000", "printable text", ""),
        id="a file with control characters",
    ),
    pytest.param(
        'run:\n  name: "\\UFFFFFFFF"',
        ("x.yaml:1", "the file", "an escape", "YAML 1.2", ""),
        id="an escape beyond Unicode",
    ),
]


@pytest.mark.parametrize(("text", "expected"), ONE_PROBLEM)
def test_a_mistake_is_one_problem(
    tmp_path: Path, text: str | bytes, expected: tuple[str, str, str, str, str]
) -> None:
    check_one_problem(tmp_path, text, expected)


def test_numbers_are_read_by_yaml_1_2(tmp_path: Path) -> None:
    text = changed(
        "mlp", "mlp\n  options: {a: 1e-3, b: no, c: 010, d: 0x1F, e: 0o17, f: 2024-01-01, g: ~}"
    )
    assert load_config(write(tmp_path, text)).model.options == {
        "a": 0.001,
        "b": "no",
        "c": 10,
        "d": 31,
        "e": 15,
        "f": "2024-01-01",
        "g": None,
    }


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    windows = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert load_config(write(tmp_path, windows)) == load_config(write(tmp_path, GOOD))
