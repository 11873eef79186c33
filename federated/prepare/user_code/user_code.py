"""UserCode: a run's code from outside fedpilot, and its digest.

Users have it in folders; a mediator, a coordinator and sites have it as an archive that came with
the run. `fedpilot check`, the run's identity and a site's policy all use the archive's digest.
Installed modules do not travel; those that a run names have a digest of their own, over their
source on the machine that computes it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpilot.mediator import Payload

from ...config.schema import RunConfig
from ...core.user_code.code_archive import LARGEST_ARCHIVE, check, packed, unpacked
from ...core.user_code.registry import load_dotted
from ...errors import CodeRefused, ConfigError, Problem
from .user_sources import digest_of, is_there, named, not_among, own_code, sources

IN_A_SPEC = "code"
"""The archive's tensor in a spec, and the header key of its digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The code from outside fedpilot that a config names."""

    archive: bytes = b""
    """Empty where all of it is installed, or none is named."""
    files: tuple[str, ...] = ()
    """Files of the archive, in order."""
    installed: tuple[str, ...] = ()
    """Modules that the config names and the archive lacks."""
    missing: tuple[str, ...] = ()
    """Those of them that do not exist here."""
    installed_digest: str = ""
    """SHA-256 of their source; empty where there are none."""
    digest: str
    """SHA-256 over both; without any code, that of nothing."""

    @property
    def archive_digest(self) -> str:
        """SHA-256 of the archive; empty where there is none."""
        return hashlib.sha256(self.archive).hexdigest() if self.archive else ""

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests that a site's policy must list: of the archive, of the installed modules."""
        return tuple(filter(None, (self.archive_digest, self.installed_digest)))


def code_here(config: RunConfig, search: Sequence[str] | None = None) -> UserCode:
    """The code that the config names, from folders, unexecuted; it need not be able to travel."""
    return _code(config, sources(own_code(config), search).files, search)


def code_sent(config: RunConfig, archive: bytes, search: Sequence[str] | None = None) -> UserCode:
    """The code that the config names, from its archive, unexecuted; raises CodeRefused."""
    return _code(config, unpacked(archive), search)


def _code(config: RunConfig, files: Mapping[str, bytes], search: Sequence[str] | None) -> UserCode:
    archive = packed(files) if files else b""
    installed = not_among(files, own_code(config))
    beside = digest_of(installed, search)
    digest = hashlib.sha256(archive).hexdigest() if archive else beside
    if archive and installed:
        digest = hashlib.sha256(f"{digest}\0{beside}".encode()).hexdigest()
    folders = sys.path if search is None else search
    return UserCode(
        archive=archive,
        files=tuple(sorted(files)),
        installed=installed,
        installed_digest=beside if installed else "",
        missing=tuple(module for module in installed if not is_there(module, folders)),
        digest=digest,
    )


# -- to a mediator --------------------------------------------------------------------------------


def code_to_send(config: RunConfig, folders: Iterable[str] = ()) -> UserCode:
    """The code that the config names, fit to travel; searches folders beside Python's own.

    Raises ConfigError for code that only exists here, is compiled, or is too large.
    """
    search = [*sys.path, *folders]
    if problems := list(_only_here(config)):
        raise ConfigError(problems)
    found = sources(own_code(config), search)
    key = _first_naming(config)
    if found.unsendable:
        raise ConfigError(
            [
                Problem(
                    key=key,
                    found=f"code that needs {place}, which {why}",
                    allowed="source files; install the rest where the coordinator runs and at "
                    "every site, outside of the folders of the code that is sent",
                )
                for place, why in sorted(found.unsendable.items())
            ]
        )
    if found.files:
        try:
            check(found.files)
        except CodeRefused as error:
            raise ConfigError.about(
                key,
                found=f"code that does not travel: {error.problem}",
                allowed=f"source files of at most {LARGEST_ARCHIVE >> 20} MiB in all; larger "
                "packages are installed at the coordinator and at every site",
            ) from error
    return _code(config, found.files, search)


def _only_here(config: RunConfig) -> Iterator[Problem]:
    """Problems of code that other processes cannot import: registered here, or without a file."""
    from ... import data

    known = {key: registered for key, (registered, _) in _registries().items()}
    known["data.dataset_type"] = data.registered
    for key in ("federation.topology", "graph.adapt", "federation.assignment"):
        known[key] = lambda name: None
    for key, name in named(config).items():
        module, colon, _ = name.partition(":")
        if not colon:
            if known[key](name) is None:
                continue
            found = f"`{name}`, which is registered in this process alone"
        elif module == "__main__" or _has_no_file(module):
            found = f"`{name}`, which is defined in this script or notebook"
        else:
            continue
        yield Problem(
            key=key,
            found=found,
            allowed="at a mediator `module:name`, of a file beside the config or in the working "
            "folder, which is sent along; local runs take it as it is",
        )


def _registries() -> dict[str, tuple[Callable[[str], Any], Callable[[str, Any], None]]]:
    """By config key: functions to look up and to register a name."""
    from ... import models
    from ...engine.training import training_code as code

    return {
        "model.model_type": (models.registered, models.bring),
        "training.loss_function": (code.registered_loss, code.bring_loss),
        "training.client_update": (code.registered_client_update, code.bring_client_update),
    }


def carried(config: RunConfig) -> dict[str, Any]:
    """By config key: code that workers cannot import, from this script or notebook."""
    found: dict[str, Any] = {}
    for key, (known, _) in _registries().items():
        name = named(config).get(key, "")
        module, colon, _ = name.partition(":")
        if (function := known(name)) is not None:
            found[key] = function
        elif colon and (module == "__main__" or _has_no_file(module)):
            found[key] = load_dotted(name)
    return found


def bring(config_names: Mapping[str, str], carried: Mapping[str, Any]) -> None:
    """Register another process's code here, under the names of a config."""
    registries = _registries()
    for key, function in carried.items():
        _, register = registries[key]
        register(config_names[key], function)


def _has_no_file(module: str) -> bool:
    """Whether a module exists in this process alone."""
    loaded = sys.modules.get(module)
    return loaded is not None and getattr(loaded, "__spec__", None) is None


def _first_naming(config: RunConfig) -> str:
    return next((key for key, path in named(config).items() if ":" in path), "")


# -- to a site ------------------------------------------------------------------------------------


def attached(spec: Payload, code: UserCode) -> Payload:
    if not code.archive:
        return spec
    tensors = {**spec.tensors, IN_A_SPEC: np.frombuffer(code.archive, dtype=np.uint8)}
    return replace(spec, header={**spec.header, IN_A_SPEC: code.archive_digest}, tensors=tensors)


def archive_of(spec: Payload) -> bytes:
    """Return a spec's archive, checked; empty if there is none. Raises CodeRefused."""
    said, found = spec.header.get(IN_A_SPEC, ""), spec.tensors.get(IN_A_SPEC)
    if found is None and not said:
        return b""
    if found is None:
        raise CodeRefused(f"an archive with the digest {said!s:.80} was announced, and none came")
    if found.dtype != np.uint8 or found.ndim != 1 or found.size > LARGEST_ARCHIVE:
        raise CodeRefused(
            f"{found.dtype} of shape {list(found.shape)}; an archive has bytes, at most "
            f"{LARGEST_ARCHIVE}"
        )
    archive = found.tobytes()
    digest = hashlib.sha256(archive).hexdigest()
    if digest != said:
        raise CodeRefused(f"an archive with the digest {digest}; {said!s:.80} was announced")
    return archive


def code_of(spec: Payload, config: RunConfig, search: Sequence[str] | None = None) -> UserCode:
    """The code that a spec's config names: from its archive, or from folders here."""
    archive = archive_of(spec)
    return code_sent(config, archive, search) if archive else code_here(config, search)
