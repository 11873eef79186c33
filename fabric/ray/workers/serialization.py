"""How a call travels to an actor and its answer back: as bytes that Ray does not pickle again."""

from __future__ import annotations

import gc
import itertools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SMALL_ANSWER = 95_000
"""The largest answer, in bytes, that bypasses the object store; Ray's own limit is 100 KB."""


def as_actor(cls: type[Any]) -> Any:
    """Make the class a Ray actor class that answers packed calls."""
    import ray

    return ray.remote(_hosted(cls))


@dataclass(frozen=True, slots=True)
class _Referred:
    number: int


def packed(method: str, args: Sequence[Any]) -> tuple[Any, ...]:
    """A call as one argument, followed by its references: Ray is slow to pickle each argument."""
    from ray import ObjectRef

    references = [arg for arg in args if isinstance(arg, ObjectRef)]
    numbers = itertools.count()
    placed = [_Referred(next(numbers)) if isinstance(arg, ObjectRef) else arg for arg in args]
    return (_pickled((method, placed)), *references)


def _pickled(value: Any) -> bytes:
    """Pickle quickly, or by value what the other side could not import."""
    from ray import cloudpickle

    try:
        quick = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if b"__main__" not in quick:
            return quick
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    thorough: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return thorough


@dataclass(frozen=True, slots=True)
class _Whole:
    """An answer that Ray pickles: it is large, or plain pickle refuses it."""

    answer: Any


def _packed_answer(answer: Any) -> bytes | _Whole:
    """A small answer as bytes, which Ray sends unchanged."""
    arrays: list[pickle.PickleBuffer] = []
    try:
        rest = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append)
    except (pickle.PicklingError, AttributeError, TypeError):
        return _Whole(answer)
    contents = [array.raw() for array in arrays]
    if len(rest) + sum(content.nbytes for content in contents) > SMALL_ANSWER:
        return _Whole(answer)
    return pickle.dumps((rest, [bytes(content) for content in contents]))


def unpacked(answer: bytes | _Whole) -> Any:
    """The answer as the method returned it."""
    if isinstance(answer, _Whole):
        return answer.answer
    rest, contents = pickle.loads(answer)
    return pickle.loads(rest, buffers=contents)


def _hosted(cls: type[Any]) -> type[Any]:
    """The class with an extra method that makes a packed call.

    `freeze` hides a worker's lasting objects from the garbage collector: Ray's collections would
    stop a worker with PyTorch for 0.1 s. A worker that is made anew lets go of what it was.
    """

    def __init__(self: Any, *args: Any) -> None:
        if self.__dict__:
            gc.unfreeze()
            self.__dict__.clear()
            gc.collect()
        cls.__init__(self, *args)
        gc.freeze()

    def packed_call(self: Any, packed: bytes, *fetched: Any) -> Any:
        method, args = pickle.loads(packed)
        return _packed_answer(
            getattr(self, method)(
                *(fetched[arg.number] if isinstance(arg, _Referred) else arg for arg in args)
            )
        )

    added = {"__init__": __init__, "packed_call": packed_call, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), added)
