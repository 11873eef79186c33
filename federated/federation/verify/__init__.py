"""`fedpilot runs verify`: is a run what it says, and where do two runs part?"""

from __future__ import annotations

from .one import Replay
from .report import TextReport, document
from .stage import Tools
from .telling import Telling
from .verifying import Outcome, verify

__all__ = ["Outcome", "Replay", "Telling", "TextReport", "Tools", "document", "verify"]
