"""`python -m fedpilot.mediator.agent.runner FOLDER LOCK`: started by `RunnerProcess.start` only."""

from __future__ import annotations

import sys
from pathlib import Path

from .main_loop import serve

if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
