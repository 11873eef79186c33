"""The data that clients hold: what a data set is, and how one is loaded."""

from .dataset import Dataset, Split, split
from .errors import DataError
from .registry import available, check, load, options, register_dataset, registered, resolve

__all__ = [
    "DataError",
    "Dataset",
    "Split",
    "available",
    "check",
    "load",
    "options",
    "register_dataset",
    "registered",
    "resolve",
    "split",
]
