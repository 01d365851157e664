"""One row of the table of symbols: its place and signature, and what is lost without it.

Compares a row with what is installed.
"""

import importlib
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Literal, NamedTuple

Part = Literal["worker", "beat"]

# Fast paths: what is done another way where a symbol is missing.
ACKNOWLEDGING = "acknowledging in batches on Redis"
RETURNING = "messages on Redis that go back, or whose connection is lost"
CONNECTIONS = "telling beats which connection to Redis is this worker's"
KINDS = "making messages after the first of their kind"
CONFIRMING = "confirmations of a whole batch at once on AMQP"
BATCHES = "sending a whole batch at once to Redis"
FAR_CALLS = "one-offs of ordinary tasks that are far ahead"


class Symbol(NamedTuple):
    """A symbol that another library does not document, and that this package needs."""

    path: str
    """`module:Class.name`; with ` > name`, an attribute that this function's code names."""
    kind: Literal["attribute", "called", "replaced", "named"]
    """`called`: parameters with defaults may be added; `replaced`: none may."""
    takes: tuple[str, ...]
    """The signatures that exist, by the names of their parameters; none where it is not called."""
    since: str
    """The oldest version that is known to have it."""
    lost: str
    """What does not work without it."""
    part: Part
    feature: str | None
    """The fast path that is off without it; None where nothing goes without it."""
    only: str
    """It counts only in processes that have loaded this module; all, where it is empty."""

    @property
    def library(self) -> str:
        """The library that has it, by its name on PyPI."""
        return self.path.partition(":")[0].partition(".")[0]

    @property
    def name(self) -> str:
        """The symbol as messages show it."""
        return self.path.rpartition(" > ")[2] if self.kind == "named" else self.path.partition(":")[2]


def rows(
    part: Part, since: str, lost: str, *lines: str, feature: str | None = None, only: str = ""
) -> tuple[Symbol, ...]:
    """Read lines: `path`, `path (parameters)` where it is called, `path = (...)` where replaced."""
    return tuple(_read(line)._replace(part=part, since=since, lost=lost, feature=feature, only=only) for line in lines)


def _read(line: str) -> Symbol:
    before, parenthesis, inside = line.partition("(")
    path = before.rstrip(" =")
    takes = tuple(one.strip(" ()") for one in inside.split("|")) if parenthesis else ()
    kind: Literal["attribute", "called", "replaced", "named"] = "attribute"
    if parenthesis:
        kind = "replaced" if "=" in before else "called"
    elif " > " in path:
        kind = "named"
    return Symbol(path, kind, takes, "", "", "worker", None, "")


_NOTHING = object()


class Missing(Exception):
    """The symbol, or what it belongs to, is not there."""


def difference(row: Symbol) -> str | None:
    """Return what is wrong with a symbol, in words; None where it is as expected."""
    try:
        thing = found_at(row.path.partition(" > ")[0])
    except Missing as missing:
        return f"has no {missing}"
    function = _function(thing) if row.kind != "attribute" else None
    if function is None:
        return None if row.kind == "attribute" or row.kind == "named" else _not_called(row, thing)
    if not _is_upstream(function, row):
        return None  # a tool's wrapper, which hands on what it is given
    if row.kind == "named":
        return None if row.name in _names_in(function.__code__) else f"has no {row.name} in {_of(row)}"
    if _fits(row, function):
        return None
    return f"has {row.name}({signature(function)}), and ({' | '.join(row.takes)}) was expected"


def signature(function: FunctionType) -> str:
    """Return the names of the parameters of a function, as the table has them."""
    return ", ".join(_parameters(function))


def found_at(path: str) -> Any:
    """Return the object at a path; raises Missing."""
    module, _, names = path.partition(":")
    try:
        thing: Any = importlib.import_module(module)
    except ImportError as error:
        raise Missing(error.name if isinstance(error, ModuleNotFoundError) and error.name else module) from error
    for name in names.split("."):
        owner, thing = thing, _static(thing, name)
        if thing is _NOTHING:
            where = getattr(owner, "__qualname__", None)
            raise Missing(f"{where}.{name}" if where else f"{module}.{name}")
    return thing


def _static(owner: Any, name: str) -> Any:
    """Return an attribute without calling its descriptor: no property is evaluated."""
    if isinstance(owner, type):
        return next((vars(kind)[name] for kind in owner.__mro__ if name in vars(kind)), _NOTHING)
    return getattr(owner, name, _NOTHING)


def _function(thing: Any) -> FunctionType | None:
    """Return the function below what tools and decorators have put around it."""
    for _ in range(20):
        if isinstance(thing, type):
            thing = _static(thing, "__init__")
        elif type(thing) in (staticmethod, classmethod, MethodType):
            thing = thing.__func__
        elif type(thing) is partial:
            thing = thing.func
        elif isinstance(thing, property):
            thing = thing.fget
        elif (below := getattr(thing, "__wrapped__", None)) is not None:
            thing = below
        else:
            break
    return thing if isinstance(thing, FunctionType) else None


def _is_upstream(function: FunctionType, row: Symbol) -> bool:
    library = row.path.partition(":")[0].partition(".")[0]
    return str(function.__globals__.get("__name__")).partition(".")[0] == library


def _not_called(row: Symbol, thing: Any) -> str | None:
    return None if callable(thing) else f"has {row.name} as {type(thing).__name__}, and a function was expected"


def _of(row: Symbol) -> str:
    return row.path.partition(":")[2].partition(" > ")[0]


def _names_in(code: CodeType) -> set[str]:
    return set(_every_name(code))


def _every_name(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _every_name(constant)


def _parameters(function: FunctionType) -> list[str]:
    code = function.__code__
    places, named = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    rest = places + named
    parameters = list(names[:places])
    if code.co_flags & 0x04:
        parameters.append(f"*{names[rest]}")
        rest += 1
    parameters += names[places : places + named]
    if code.co_flags & 0x08:
        parameters.append(f"**{names[rest]}")
    return parameters


def _fits(row: Symbol, function: FunctionType) -> bool:
    parameters = _parameters(function)
    known = [[one.strip() for one in each.split(",")] if each else [] for each in row.takes]
    if parameters in known:
        return True
    if row.kind == "replaced":
        return False
    code = function.__code__
    optional = set(code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) : code.co_argcount])
    optional |= set(function.__kwdefaults__ or {})
    return any(_only_adds(each, parameters, optional) for each in known)


def _only_adds(known: list[str], parameters: list[str], optional: set[str]) -> bool:
    """Return whether a newer version takes the same in the same order, and more with defaults."""
    added = [name for name in parameters if name not in known]
    return [name for name in parameters if name in known] == known and all(
        name in optional or name.startswith("*") for name in added
    )
