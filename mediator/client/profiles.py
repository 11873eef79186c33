"""Profiles: a mediator's address and a user's credentials for it.

A command takes the first that is given: `--mediator` with `--credentials`, `--profile`,
FEDPILOT_PROFILE, the default profile. `profile_file` stores profiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from ..errors import ProfileError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How a user reaches one mediator."""

    name: str
    """Empty if the profile comes from the command line."""
    address: str
    credentials: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """All profiles of a user; immutable."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    default: str = ""
    """The name of one of them, or empty."""

    def named(self, name: str) -> Profile:
        """The profile of that name; ProfileError names those that exist."""
        if name not in self.by_name:
            near = get_close_matches(name, self.by_name, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            there = ", ".join(sorted(self.by_name)) or "none; `fedpilot profile add` makes one"
            raise ProfileError(f"there is no profile {name!r}{hint} (there are: {there})")
        return self.by_name[name]

    def with_profile(self, profile: Profile, *, default: bool = False) -> Profiles:
        """Add or replace a profile; the first one becomes the default."""
        check_name(profile.name)
        check_address(profile.address)
        chosen = profile.name if default or not self.by_name else self.default
        return Profiles(by_name={**self.by_name, profile.name: profile}, default=chosen)

    def without(self, name: str) -> Profiles:
        """Remove a profile; if it was the default, none remains."""
        self.named(name)
        kept = {each: profile for each, profile in self.by_name.items() if each != name}
        return Profiles(by_name=kept, default="" if self.default == name else self.default)

    def with_default(self, name: str) -> Profiles:
        """Set the default."""
        return replace(self, default=self.named(name).name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of a command line and the environment; empty if not given."""

    mediator: str = ""
    credentials: str = ""
    profile: str = ""
    variable: str = ""
    """FEDPILOT_PROFILE."""

    @property
    def on_purpose(self) -> bool:
        """Whether the user names a mediator or profile."""
        return bool(self.mediator or self.profile or self.variable)


def choose(profiles: Profiles, asked: ConnectionOptions) -> Profile | None:
    """Choose the profile to use; None if none was named and there is no default.

    ProfileError for contradictory options, an unknown profile, or an address without credentials.
    """
    if asked.mediator:
        if asked.profile:
            raise ProfileError("give --mediator or --profile, not both")
        check_address(asked.mediator)
        if asked.credentials:
            folder = Path(asked.credentials)
            return Profile(name="", address=asked.mediator, credentials=folder)
        return _at(profiles, asked.mediator)
    name = asked.profile or asked.variable or profiles.default
    if not name:
        if asked.credentials:
            raise ProfileError("--credentials names no mediator: give --mediator too")
        return None
    found = profiles.named(name)
    folder = Path(asked.credentials) if asked.credentials else found.credentials
    return replace(found, credentials=folder)


def _at(profiles: Profiles, address: str) -> Profile:
    """Find the profile with credentials for an address."""
    found = sorted(name for name, each in profiles.by_name.items() if each.address == address)
    if len(found) == 1:
        return profiles.by_name[found[0]]
    if profiles.default in found:
        return profiles.by_name[profiles.default]
    why = f"the profiles {', '.join(found)} differ in them" if found else "no profile has any"
    raise ProfileError(
        f"credentials for {address} are wanted, and {why}: say --credentials DIR, "
        f"or `fedpilot profile add NAME --mediator {address} --credentials DIR` once"
    )


def check_name(name: str) -> str:
    """Return a valid profile name; ProfileError for any other."""
    if not _NAME.fullmatch(name):
        raise ProfileError(
            "a profile's name is 1 to 63 letters, digits, dots, dashes or underscores, and "
            f"begins with a letter or digit; found {name[:80]!r}"
        )
    return name


def check_address(address: str) -> str:
    """Return a valid HOST:PORT; ProfileError for any other."""
    found = _ADDRESS.fullmatch(address)
    if not found or not 0 < int(found["port"]) < 65536:
        raise ProfileError(
            f"a mediator's address is HOST:PORT, such as mediator.example.org:7461; "
            f"found {address[:200]!r}"
        )
    return address
