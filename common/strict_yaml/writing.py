"""Writes YAML that `reading` reads back unchanged, with quotes around text where needed."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from .reading import DECIMAL, is_plain, read

Dumper: type[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Writer(Dumper):  # type: ignore[misc]
    """Writes numbers as Python does, `null` for None, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(writer: Any, text: str) -> yaml.Node:
    style = None if is_plain(text) else '"'
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _float(writer: Any, number: float) -> yaml.Node:
    spelled = {math.inf: ".inf", -math.inf: "-.inf"}.get(number, repr(number))
    spelled = ".nan" if math.isnan(number) else spelled
    return writer.represent_scalar("tag:yaml.org,2002:float", spelled)


def _list(writer: Any, items: list[Any]) -> yaml.Node:
    return writer.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_Writer.add_representer(str, _text)
_Writer.add_representer(float, _float)
_Writer.add_representer(list, _list)
_Writer.add_implicit_resolver("tag:yaml.org,2002:float", DECIMAL, list("-+.0123456789"))


def written(values: Mapping[str, Any]) -> str:
    """The YAML of a section: keys in their order, long text unfolded."""
    text: str = yaml.dump(
        dict(values),
        Dumper=_Writer,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=1 << 30,
    )
    return text


def with_keys(text: str, section: str, values: Mapping[str, Any], without: Sequence[str]) -> str:
    """Set and remove scalar keys in a YAML section; comments stay, and braces become a block."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode) and root.flow_style:
        root = yaml.compose(text := written(read(text, str).value), Loader=yaml.SafeLoader)
    body = next((v for k, v in root.value if k.value == section), None) if root else None
    if body is None:
        return f"{text.rstrip()}\n\n{written({section: dict(values)})}".lstrip()
    if not isinstance(body, yaml.MappingNode) or body.flow_style:
        present = read(text, str).value[section] or {}
        kept = {key: value for key, value in present.items() if key not in without}
        block = textwrap.indent(written(kept | dict(values)), "  ").rstrip()
        return f"{text[: body.start_mark.index].rstrip()}\n{block}{text[body.end_mark.index :]}"
    places = {key.value: (key.start_mark, value.end_mark) for key, value in body.value}
    first = body.start_mark
    changes = []
    for name in places.keys() & set(without):
        begin = places[name][0].index - places[name][0].column
        last = begin + len(text[begin : places[name][1].index].rstrip())
        changes.append((begin, len(text) if (end := text.find("\n", last)) < 0 else end + 1, ""))
    for name, value in values.items():
        line = written({name: value}).rstrip()
        if name in places:
            changes.append((places[name][0].index, places[name][1].index, line))
        else:
            begin = first.index - first.column
            changes.append((begin, begin, f"{' ' * first.column}{line}\n"))
    for begin, end, instead in sorted(changes, reverse=True):
        text = text[:begin] + instead + text[end:]
    return text
