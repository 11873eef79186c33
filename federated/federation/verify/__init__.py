"""`fedpilot runs verify`: checks a run against itself, or finds where two runs part."""

from __future__ import annotations

from .one_run import Replay
from .report import ProgressLine, TextReport, document
from .stage import Tools
from .verifying import Verification, verify

__all__ = ["ProgressLine", "Replay", "TextReport", "Tools", "Verification", "document", "verify"]
