"""Imports the modules that a worker will need, before anybody asks it for anything.

A process of a private Ray imports this module first; `ray_start` names the others in MODULES. They
make a million objects that stay: looking through them for garbage would take a fifth of the time.
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
    except Exception:  # whoever needs it will import it again, and say what is wrong
        return
    finally:
        gc.freeze()
        gc.enable()


_preload()
