"""Reads and writes a user's profiles: `profiles.yaml` in the user's settings folder.

The file holds no secrets, only the folders of credentials.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import click
from pydantic import Field

from fedpilot.common.strict_yaml.records import Strict, load
from fedpilot.common.strict_yaml.writing import written

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
    """The user's settings folder: FEDPILOT_CONFIG_DIR, or the system's default."""
    return Path(environment.get("FEDPILOT_CONFIG_DIR") or click.get_app_dir("fedpilot"))


def read(folder: Path) -> Profiles:
    """Read the profiles in a folder; none without a file. BadFile, ProfileError."""
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
        found = Profiles(by_name=found.by_name)
        return found.with_default(content.default) if content.default else found
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def write(folder: Path, profiles: Profiles) -> Path:
    """Replace the file. ProfileError."""
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
