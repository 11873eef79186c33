"""Picture: an image of the documentation, and whether the one on disk still shows the facts.

The digest of what a picture shows lies in its file. So a picture is out of date when its facts have
changed, and not when another version of matplotlib would color a pixel otherwise.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from .pages import DOCS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTS = "facts"
"""The text in a file that holds the digest."""
COLOURS = 128
"""Of a picture's palette, which makes its file small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image below `docs/images`."""

    name: str
    """With its folder, without the ending."""
    facts: Any
    """What it shows, as JSON."""
    figure: Callable[[], Figure]
    dots_per_inch: int

    @property
    def path(self) -> Path:
        return DOCS / "images" / f"{self.name}.png"

    @property
    def digest(self) -> str:
        """Of the facts."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()

    @property
    def is_current(self) -> bool:
        """Whether the file shows these facts."""
        if not self.path.exists():
            return False
        with Image.open(self.path) as image:
            return bool(image.info.get(FACTS) == self.digest)

    def draw(self, path: Path | None = None) -> None:
        """Write the file, or another one."""
        drawn = io.BytesIO()
        self.figure().savefig(drawn, format="png", dpi=self.dots_per_inch)
        few = Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        info = PngInfo()
        info.add_text(FACTS, self.digest)
        few.save(path or self.path, optimize=True, pnginfo=info)
