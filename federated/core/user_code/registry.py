"""Decides what a name in a config stands for, and which options it takes.

A name is a registered key, or a dotted path `module:attribute`. Built-in keys are dotted paths that
the registry imports on first use, so listing them costs nothing. A signature declares the options.

A dotted path reaches what its module defines: not modules that it imports, nor what it imports from
installed packages. So a module shows all that a path can name. Python's modules are excluded.

    RegistryError
    +-- UnknownName     no such key
    +-- BadPath         a dotted path that leads nowhere
    +-- BadOption       an option that does not exist, is missing, or has a value of the wrong type
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Generic, TypeVar

import pydantic

from fedpilot.federated.errors import FederatedError

from .code_archive import INSTALLED, RESERVED

INSTALLERS = frozenset({"_distutils_hack", "pip", "pkg_resources", "setuptools", "wheel"})
"""Packages in most environments that run commands."""

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class RegistryError(FederatedError):
    """A name in a config, or one of its options, cannot be used."""


class UnknownName(RegistryError):
    """No such key is registered."""

    def __init__(self, what: str, name: str, available: tuple[str, ...]) -> None:
        super().__init__(what, name, available)
        self.what, self.name, self.available = what, name, available

    def __str__(self) -> str:
        return (
            f"no {self.what} is called {self.name!r}{did_you_mean(self.name, self.available)}; "
            f"there are {', '.join(self.available) or 'none'}, and any 'module:name' of your own"
        )


class BadPath(RegistryError):
    """A dotted path leads nowhere."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"cannot load {self.path!r}: {self.problem}"


class BadOption(RegistryError):
    """An option does not exist, is missing, or has a value of the wrong type."""

    def __init__(self, subject: str, option: str, problem: str, allowed: tuple[str, ...]) -> None:
        super().__init__(subject, option, problem, allowed)
        self.subject, self.option = subject, option
        self.problem, self.allowed = problem, allowed

    def __str__(self) -> str:
        allowed = f"it takes {', '.join(self.allowed)}" if self.allowed else "it takes none"
        return f"{self.subject}: option {self.option!r} {self.problem}; {allowed}"


class Registry(Generic[T]):
    """Names of one kind of thing; `T` is what a registered function returns."""

    def __init__(
        self,
        what: str,
        builtin: Mapping[str, str],
        *,
        supplied: Iterable[str] = (),
        problem_of: Callable[[object], str] = lambda found: "",
    ) -> None:
        """Keep built-in keys as dotted paths.

        `what` names the kind in errors. `supplied` are parameters that the caller fills in, so a
        config may not set them. `problem_of` says why an object cannot be of this kind, if so.
        """
        self.what = what
        self._problem_of = problem_of
        self._paths = dict(builtin)
        self._functions: dict[str, Callable[..., T]] = {}
        self._supplied = frozenset(supplied)

    def register(self, name: str) -> Callable[[F], F]:
        """Register the decorated function or class under `name`; a name is taken only once."""

        def keep(function: F) -> F:
            if problem := self._problem_of(function):
                raise RegistryError(f"{name!r} cannot be a {self.what}: {problem}")
            known = self._functions.get(name)
            if name in self._paths or (known is not None and not _is_reload(known, function)):
                raise RegistryError(f"a {self.what} called {name!r} is registered already")
            if ":" in name or not name:
                raise RegistryError(f"{name!r} cannot name a {self.what}: ':' is for dotted paths")
            self._functions[name] = function
            return function

        return keep

    def bring(self, name: str, function: Callable[..., T]) -> None:
        """Bind a name, dotted or not, to a function that came from another process."""
        self._functions[name] = function

    def registered(self, name: str) -> Callable[..., T] | None:
        """The function registered under `name` in this process, if any."""
        return self._functions.get(name)

    def available(self) -> tuple[str, ...]:
        """Keys in order, without any import."""
        return tuple(sorted(self._paths.keys() | self._functions.keys()))

    def resolve(self, name: str) -> Callable[..., T]:
        """The function or class that `name` stands for; raises `UnknownName` or `BadPath`."""
        if name in self._functions:
            return self._functions[name]
        if name not in self._paths and not {":", "."} & set(name):
            raise UnknownName(self.what, name, self.available())
        found = load_dotted(self._paths.get(name, name))
        if not callable(found):
            raise BadPath(name, f"a {self.what} is a function or a class, this is {found!r:.80}")
        if problem := self._problem_of(found):
            raise BadPath(name, problem)
        return typing.cast("Callable[..., T]", found)

    def options(self, name: str) -> tuple[str, ...]:
        """The options that `name` takes, in the order of its signature."""
        return tuple(self._declared(self.resolve(name)))

    def call(
        self, name: str, options: Mapping[str, Any], supplied: Mapping[str, Any] | None = None
    ) -> T:
        """Call what `name` stands for with the options, checked against its signature.

        Passes the part of `supplied` that the signature names. Raises `BadOption` before any call.
        """
        function = self.resolve(name)
        checked = self._checked(f"{self.what} {name!r}", function, options)
        named = _parameters(function)
        return function(**checked, **{k: v for k, v in (supplied or {}).items() if k in named})

    def check(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise what `call` would raise for this name and these options; call nothing."""
        self._checked(f"{self.what} {name!r}", self.resolve(name), options)

    def _declared(self, function: Callable[..., T]) -> dict[str, inspect.Parameter]:
        keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = _parameters(function)
        return {
            name: parameter
            for name, parameter in parameters.items()
            if parameter.kind in keyword and name not in self._supplied
        }

    def _checked(
        self, subject: str, function: Callable[..., T], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        parameters = _parameters(function)
        open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        declared = self._declared(function)
        allowed = tuple(declared)
        for option in options:
            if option in self._supplied and option in parameters:
                raise BadOption(subject, option, "is filled in from the data", allowed)
            if option not in declared and not open_ended:
                problem = f"does not exist{did_you_mean(option, allowed)}"
                raise BadOption(subject, option, problem, allowed)
        for option, parameter in declared.items():
            if parameter.default is inspect.Parameter.empty and option not in options:
                raise BadOption(subject, option, "is required", allowed)
        hints = _type_hints(function)
        checked = dict(options)
        for option in options.keys() & hints.keys():
            try:
                checked[option] = _converted(options[option], hints[option])
            except pydantic.ValidationError as error:
                text = error.errors(include_url=False)[0]["msg"]
                problem = f"cannot be {options[option]!r:.80}: {text[:1].lower()}{text[1:]}"
                raise BadOption(subject, option, problem, allowed) from None
        return checked


def load_dotted(path: str) -> Any:
    """Import `module:attribute` (the attribute may have dots) and return what it names.

    It must be defined in the module's package or in another module of the user's own. Raises
    `BadPath`, which names the wrong part and the nearest right name.
    """
    module_name, colon, attribute = path.partition(":")
    if not (colon and module_name and attribute):
        head, _, tail = path.replace(":", ".").strip(".").rpartition(".")
        example = f"{head}:{tail}" if head and tail else "package.module:name"
        raise BadPath(path, f"write 'module:attribute', such as {example!r}")
    if module_name.endswith(".py"):
        example = f"{module_name.removesuffix('.py').strip('./').replace('/', '.')}:{attribute}"
        raise BadPath(path, f"a module is named without `.py`: write {example!r}")
    if any(not part.isidentifier() for part in module_name.split(".")):
        raise BadPath(path, f"{module_name!r} is not the name of a module")
    package = module_name.partition(".")[0]
    if _is_pythons(package):
        raise BadPath(path, f"{package!r} {_PYTHONS}")
    found: Any = _import(path, module_name)
    where, parts = f"module {module_name!r}", attribute.split(".")
    for place, part in enumerate(parts):
        if part.startswith("__") and part.endswith("__"):
            raise BadPath(path, f"{part!r} is a name of Python's own")
        try:
            found = getattr(found, part)
        except AttributeError:
            near = did_you_mean(part, sorted(n for n in dir(found) if not n.startswith("_")))
            raise BadPath(path, f"{where} has no {part!r}{near}") from None
        where = f"{part!r}"
        if problem := _astray(package, found, where, ".".join(parts[place + 1 :])):
            raise BadPath(path, problem)
    return found


_PYTHONS = (
    "came with Python or installs packages, and holds no model or data; "
    "write a function of your own that calls it"
)


def _is_pythons(package: str) -> bool:
    return package in INSTALLERS or package in RESERVED - {"fedpilot"}


def _astray(package: str, found: Any, where: str, rest: str) -> str:
    """Why a step of a dotted path leaves the package that it names; empty if it does not."""
    if inspect.ismodule(found):
        home = found.__name__
        if _is_pythons(home.partition(".")[0]):
            return f"{where} is a module, and {_PYTHONS}"
        return f"{where} is a module; what is in it is called '{home}:{rest or 'name'}'"
    home = _home(found)
    owner = home.partition(".")[0]
    if not owner or owner == package:
        return ""
    if _is_pythons(owner):
        return f"{where} is of {home!r}, which {_PYTHONS}"
    if owner == "fedpilot" or _is_installed(owner):
        return (
            f"{where} is defined in {home!r}; name it there, or write a function of your own "
            "that calls it"
        )
    return ""


def _home(found: Any) -> str:
    """The module that defines a function, a method or a class.

    Empty for any other object and for the result of a call (a decorator, `functools.partial`),
    which belongs to the module that holds it.
    """
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return ""
    if "<locals>" in str(getattr(found, "__qualname__", "")):
        return ""
    module = getattr(found, "__module__", None)
    if module is None:  # a function written in C: use the object that it is bound to
        holder = getattr(found, "__self__", None)
        module = holder.__name__ if inspect.ismodule(holder) else type(holder).__module__
    return str(module)


def _is_installed(package: str) -> bool:
    """Whether a package is no folder or file of the user's own."""
    module = sys.modules.get(package)
    if module is None:
        return True
    spec = getattr(module, "__spec__", None)
    if spec is None:  # in a notebook, or made by hand
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(INSTALLED & set(PurePath(place).parts) for place in places)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the nearest known name, or nothing if none is near."""
    lowered = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def _import(path: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            problem = f"there is no module {missing!r} on the import path"
        else:
            problem = f"module {module_name!r} needs {missing!r}, which is not installed"
        raise BadPath(path, problem) from error
    except Exception as error:
        problem = f"importing {module_name!r} failed with {type(error).__name__}: {error}"
        raise BadPath(path, problem) from error


def _is_reload(known: Any, function: Any) -> bool:
    return bool(
        getattr(known, "__module__", None) == getattr(function, "__module__", "")
        and getattr(known, "__qualname__", None) == getattr(function, "__qualname__", "")
    )


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables written in C have none: they check themselves
        anything = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)
        return {"options": anything}


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    annotated = function.__init__ if inspect.isclass(function) else function
    try:
        return typing.get_type_hints(annotated)
    except (NameError, TypeError):  # names for the type checker only: nothing to check against
        return {}


def _converted(value: Any, hint: Any) -> Any:
    try:
        adapter = pydantic.TypeAdapter(hint)
    except (pydantic.PydanticSchemaGenerationError, pydantic.PydanticUserError):
        return value  # a type that a config cannot write
    return adapter.validate_python(value)
