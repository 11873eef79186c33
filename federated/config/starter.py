"""Writes the config that `fedpilot init` creates: every key with its description.

Keys of the example are set; all others are commented out (`#key: default`), so that removing the
`#` enables them. The descriptions are those of the schema.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from fedpilot.common.strict_yaml.wording import Key, keys_of
from fedpilot.common.strict_yaml.writing import written

from .schema import RunConfig

DIGITS: Mapping[str, Mapping[str, Any]] = {
    "run": {"random_seed": 7},
    "federation": {"number_of_clients": 50, "rounds": 40, "clients_per_round": 25},
    "model": {"model_type": "mlp", "options": {"hidden": [128]}},
    "data": {
        "dataset_type": "digits",
        "data_distribution_kind": "dirichlet",
        "dirichlet_beta": 1.0,
    },
    "training": {
        "number_of_epochs": 3,
        "batch_size": 10,
        "learning_rate": 0.1,
        "momentum": 0.9,
    },
}
"""50 clients with handwritten digits, unevenly divided: runs in a minute, offline."""

HEAD = """\
# A federated run. Check this file with `fedpilot check`, start it with `fedpilot run`, and
# change single keys on the command line with `--set section.key=value`.
# Keys behind a `#` are not given: the value beside them is the default, or an example where
# there is no default."""

WIDTH = 100


def starter(example: Mapping[str, Mapping[str, Any]] = DIGITS) -> str:
    """A commented config that sets the keys of `example`."""
    blocks = [HEAD]
    for section in keys_of(RunConfig):
        given = example.get(section.name, {})
        lines = [*_comment(section.meaning, ""), f"{section.name}:", *_keys(section, given, "  ")]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _keys(section: Key, given: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key in keys_of(section.section, section.path) if section.section else ():
        yield from _comment(key.meaning, indent)
        if key.name in given:
            yield _block(key.name, given[key.name], indent)
        elif key.section:
            yield f"{indent}#{key.name}:"
            yield from _keys(key, {}, f"{indent}  ")
        else:
            default = key.default
            shown = key.field.examples[0] if default is None and key.field.examples else default
            yield _block(key.name, shown, f"{indent}#")


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _block(name: str, value: Any, indent: str) -> str:
    return textwrap.indent(written({name: value}).rstrip(), indent)
