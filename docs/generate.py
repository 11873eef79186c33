"""Writes the reference pages that follow from the code: every config key, every command.

`python docs/generate.py` writes them; `pages()` returns them, so that a test can tell when what is
on disk is out of date. The page on exit codes is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click

from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.config.words import Key, keys_of

REFERENCE = Path(__file__).parent / "reference"

CONFIG_HEAD = """\
# The config of a run

One YAML 1.2 file says what a run does. `fedpilot init` writes one with every key explained,
`fedpilot check` reads one without starting anything, and `--set section.key=value` changes single
keys on the command line.

Nothing is guessed: a key that does not exist, a value of another type (`"5"` is not a number,
`yes` is not `true`), a key that is given twice, are all refused before anything is started, each
with its line, what was found, what is allowed, and the nearest key that exists. Only a whole
number where a number is asked for is taken as one. A section with nothing in it means its
defaults. Tags, anchors, aliases, environment variables and templates are not read.
"""

CLI_HEAD = """\
# The commands

What `--help` says, for every command. What a command's exit code means is told in
[exit codes](exit-codes.md).
"""


def pages() -> dict[Path, str]:
    """The generated pages, by the file that each belongs in."""
    return {REFERENCE / "config.md": config_page(), REFERENCE / "cli.md": cli_page()}


def config_page() -> str:
    """Every key of the config, a table per section."""
    parts = [CONFIG_HEAD]
    for section in keys_of(RunConfig):
        parts += _section(section)
    return "\n".join(parts)


def _section(section: Key) -> Iterator[str]:
    assert section.section is not None
    yield f"## `{section.path}`\n"
    required = " Required." if section.field.is_required() else ""
    yield f"{section.meaning}{required}\n"
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    keys = keys_of(section.section, section.path)
    for key in keys:
        takes = f"a section, [`{key.path}`](#{_anchor(key)})" if key.section else key.allowed
        cells = (f"`{key.name}`", takes, _default(key), key.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
    for key in keys:
        if key.section:
            yield from _section(key)


def _anchor(key: Key) -> str:
    return key.path.replace(".", "")


def _default(key: Key) -> str:
    if key.field.is_required():
        return "required"
    if key.section:
        return "not given" if key.field.get_default() is None else "its defaults"
    default = key.field.get_default()
    if default is None:
        return "not given"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def cli_page() -> str:
    """The help of every command, as the command line prints it."""
    from fedpilot.cli import main  # here, so that the config page needs no command line

    context = click.Context(
        main,
        info_name="fedpilot",
        terminal_width=90,
        max_content_width=90,
        help_option_names=["-h", "--help"],
    )
    return "\n".join([CLI_HEAD, *_command(main, context)])


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## `{context.command_path}`\n"
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                below = click.Context(
                    inner,
                    parent=context,
                    info_name=name,
                    terminal_width=90,
                    max_content_width=90,
                )
                yield from _command(inner, below)


def write() -> None:
    """Write every page whose text has changed."""
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    write()
