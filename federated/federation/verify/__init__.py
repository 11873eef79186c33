"""`fedpilot runs verify`: is a run what it says, and where do two runs part?"""

from __future__ import annotations

from .one_run import Replay
from .report import ProgressLine, TextReport, document
from .stage import Tools
from .verifying import Verification, verify

__all__ = ["ProgressLine", "Replay", "TextReport", "Tools", "Verification", "document", "verify"]
