"""The file of a user's profiles, `profiles.yaml` in the folder of the user's settings.

It holds no secrets: it names the folders of credentials. It is read strictly, and written whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import click
from pydantic import Field

from fedpilot.fabric.strict_yaml.records import Strict, load
from fedpilot.fabric.strict_yaml.writing import written

from ..errors import ProfileError
from .profiles import Profile, Profiles

FORMAT: Literal[1] = 1
FILE = "profiles.yaml"


class _Entry(Strict):
    address: str
    credentials: str


class _File(Strict):
    format: Literal[1]
    default: str = ""
    profiles: dict[str, _Entry] = Field(default_factory=dict)


def config_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's settings are: FEDPILOT_CONFIG_DIR, or as the system has it."""
    return Path(environment.get("FEDPILOT_CONFIG_DIR") or click.get_app_dir("fedpilot"))


def read(folder: Path) -> Profiles:
    """The profiles of a folder, none without a file. BadFile or ProfileError if it is wrong."""
    path = folder / FILE
    if not path.exists():
        return Profiles()
    content = load(path, _File)
    found = Profiles()
    try:
        for name, entry in content.profiles.items():
            where = Path(entry.credentials)
            profile = Profile(name=name, address=entry.address, credentials=where)
            found = found.with_profile(profile)
        if not content.default:
            return Profiles(by_name=found.by_name)
        return found.with_default(content.default)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def write(folder: Path, profiles: Profiles) -> Path:
    """Write the file in the place of the one before. ProfileError if it cannot be."""
    document = {
        "format": FORMAT,
        "default": profiles.default,
        "profiles": {
            name: {"address": each.address, "credentials": str(each.credentials)}
            for name, each in sorted(profiles.by_name.items())
        },
    }
    path, aside = folder / FILE, folder / f".{FILE}.{secrets.token_hex(4)}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            aside.write_text(written(document))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise ProfileError(f"{path} cannot be written: {error.strerror or error}") from error
    return path
