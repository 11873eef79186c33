"""Imports the modules that a worker will need, before its first call.

A process of a private Ray imports this module first; `start` names the others in MODULES. They
create a million lasting objects, on which the garbage collector would spend a fifth of the time.
"""

from __future__ import annotations

import gc
import importlib
import os

MODULES = "FEDPILOT_PRELOAD"
"""The variable with the modules' names, separated by commas."""


def _preload() -> None:
    gc.disable()
    try:
        for name in filter(None, os.environ.get(MODULES, "").split(",")):
            importlib.import_module(name)
    except Exception:  # the code that needs the module imports it again, and raises
        return
    finally:
        gc.freeze()
        gc.enable()


_preload()
