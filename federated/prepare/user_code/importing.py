"""Imports an archive's modules into this process from memory, without a file.

They precede all other modules of their names. A process has the code of one run: a new archive
replaces the one before. An archive is refused if one of its modules is already loaded from another
place, so that the approved code is the code that runs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, spec_from_loader
from types import ModuleType

from ...core.user_code.code_archive import ENDING, unpacked
from ...errors import CodeRefused

CALLED = "<code of the run>"
"""Stands for the folder in tracebacks."""
_one_at_a_time = threading.Lock()


def make_importable(archive: bytes) -> None:
    """Make this process import the archive's modules; nothing changes if it does already.

    Raises CodeRefused for an invalid archive, or if other modules of its names are loaded.
    """
    with _one_at_a_time:
        finders = [each for each in sys.meta_path if isinstance(each, ArchiveFinder)]
        if any(each.archive == archive for each in finders):
            return
        finder = ArchiveFinder(archive, unpacked(archive))
        for before in finders:
            before.withdraw()
        if loaded := sorted(finder.names & sys.modules.keys()):
            raise CodeRefused(
                f"its module {loaded[0]} has the name of one that is already loaded here; rename it"
            )
        sys.meta_path.insert(0, finder)


class ArchiveFinder(MetaPathFinder, ExecutionLoader):
    """Finds and loads the modules of one archive."""

    def __init__(self, archive: bytes, files: Mapping[str, bytes]) -> None:
        self.archive = archive
        self.names = {name.partition("/")[0].removesuffix(ENDING) for name in files}
        """Top-level modules and packages."""
        self._files = files
        self._folders = {name[:at] for name in files for at, sign in enumerate(name) if sign == "/"}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an archive's module, or of a folder in it that is no package."""
        if self._place(fullname) is not None:
            return spec_from_loader(fullname, self)
        if fullname.replace(".", "/") not in self._folders:
            return None
        return ModuleSpec(fullname, None, is_package=True)

    def is_package(self, fullname: str) -> bool:
        """Whether a module is a package."""
        return self._file_of(fullname).endswith(f"/__init__{ENDING}")

    def get_filename(self, fullname: str) -> str:
        """The path of a module, as tracebacks show it."""
        return f"{CALLED}/{self._file_of(fullname)}"

    def get_source(self, fullname: str) -> str:
        """The text of a module."""
        return decode_source(self._files[self._file_of(fullname)])

    def withdraw(self) -> None:
        """Stop importing from this archive, and unload its modules."""
        sys.meta_path.remove(self)
        for name in [each for each in sys.modules if each.partition(".")[0] in self.names]:
            del sys.modules[name]

    def _file_of(self, fullname: str) -> str:
        place = self._place(fullname)
        if place is None:
            raise ImportError(f"the code of the run has no module {fullname}", name=fullname)
        return place

    def _place(self, fullname: str) -> str | None:
        folder = fullname.replace(".", "/")
        for place in (f"{folder}/__init__{ENDING}", f"{folder}{ENDING}"):
            if place in self._files:
                return place
        return None
