"""Writes down what users import, call and type, so that no change of it goes unseen.

`make api` writes tests/public_api.txt; tests/unit/test_public_api.py compares. Starts from the
public names and follows the types of what they return, wherever in the package these live.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import click
from celery import Celery

import celery_sqlbeat
from celery_sqlbeat import errors, testing
from celery_sqlbeat.cli import sqlbeat
from celery_sqlbeat.config.settings import NAMES, PREFIX, Settings
from celery_sqlbeat.worker.current import CurrentRun

ROOT = Path(__file__).parents[1]
SNAPSHOT = ROOT / "tests" / "public_api.txt"
HEAD = """\
The public names of celery-sqlbeat. Written by `make api`; do not edit.
A line that goes or changes breaks somebody's program: deprecate first, and tell it in CHANGELOG.md.
"""
PROTOCOLS = {"__iter__", "__len__", "__getitem__", "__contains__", "__enter__", "__exit__", "__call__"}
# Of the handle, but nothing that users are promised: how it reaches the database, and what it
# knows.
INSIDE = {"app", "one_offs", "ready", "rules", "settings", "store"}


def public_api() -> str:
    """Return the whole text."""
    sections = {
        "celery_sqlbeat": names_of(celery_sqlbeat),
        "celery_sqlbeat.testing": names_of(testing),
        "errors, celery_sqlbeat.errors": [*names_of_the_errors()],
        "the handle, and what it returns": [*names_of_the_handle()],
        "settings": [*names_of_the_settings()],
        "celery sqlbeat": [*names_of_the_commands(sqlbeat, "")],
        "entry points": [*names_of_the_entry_points()],
        "extras": sorted(keys_of("project.optional-dependencies")),
    }
    return HEAD + "".join(
        f"\n[{title}]\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections.items()
    )


def names_of(module: types.ModuleType) -> list[str]:
    return [_described(name, getattr(module, name)) for name in sorted(module.__all__)]


def _described(name: str, thing: Any) -> str:
    if isinstance(thing, type):
        return f"class {name}"
    return f"{name}{signature(thing)}" if callable(thing) else name


def names_of_the_errors() -> Iterator[str]:
    for name, thing in sorted(vars(errors).items()):
        if isinstance(thing, type) and issubclass(thing, errors.SqlbeatError):
            bases = ", ".join(base.__name__ for base in thing.__bases__)
            own = "__init__" in vars(thing)
            yield f"{name}({bases})" + (f" {signature(thing.__init__, skip=1)}" if own else "")


def names_of_the_handle() -> Iterator[str]:
    """Yield the members of the handle, of a task's current run, and of the records they return."""
    handle = celery_sqlbeat.setup(Celery("shop", broker="memory://", set_as_current=False))
    todo: list[type] = [type(handle), CurrentRun]
    seen: set[type] = set()
    found: dict[str, list[str]] = {}
    while todo:
        each = todo.pop()
        if each in seen or each.__name__.startswith("_") or issubclass(each, errors.SqlbeatError):
            continue
        seen.add(each)
        found[each.__name__] = sorted(members(each))
        todo += [one for one in mentioned(each) if one.__module__.split(".")[0] == "celery_sqlbeat"]
    for name, lines in sorted(found.items()):
        yield f"class {name}"
        yield from (f"  {line}" for line in lines)


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what our own classes define; what they inherit from others is not ours to promise."""
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        if owner.__module__.split(".")[0] == "celery_sqlbeat" and (name in PROTOCOLS or not name.startswith("_")):
            yield name, vars(owner)[name]


def fields_of(cls: type) -> dict[str, Any]:
    """Return the attributes that a class annotates, or the slots of one that has only these."""
    hints = {**hints_of(vars(cls).get("__init__", cls)), **hints_of(cls)}
    slots = [name for base in cls.__mro__ for name in vars(base).get("__slots__", ())]
    return {name: hints.get(name) for name in [*hints_of(cls), *slots] if not name.startswith("_")}


def members(cls: type) -> Iterator[str]:
    attributes = fields_of(cls)
    for name, kind in attributes.items():
        if name not in INSIDE:
            yield f"{name}: {shown(kind)}" if kind is not None else name
    for name, member in public_members(cls):
        if name in INSIDE or name in attributes:
            continue
        if isinstance(member, property):
            yield f"{name}: {shown(hints_of(member.fget).get('return'))}"
        elif isinstance(member, (staticmethod, classmethod)):
            continue  # other ways to make one, for this package
        elif callable(member):
            yield f"{name}{signature(member, skip=1)}"


def mentioned(cls: type) -> Iterator[type]:
    """Yield the classes in what the members of a class are, or return."""
    kinds = [kind for name, kind in fields_of(cls).items() if name not in INSIDE]
    for name, member in public_members(cls):
        function = member.fget if isinstance(member, property) else member
        if name not in INSIDE and inspect.isfunction(function):
            kinds.append(hints_of(function).get("return"))
    for kind in kinds:
        yield from _classes(kind)


def _classes(kind: Any) -> Iterator[type]:
    if isinstance(kind, type) and not typing.get_args(kind):
        yield kind
    for one in typing.get_args(kind):
        yield from _classes(one)


def hints_of(thing: Any) -> dict[str, Any]:
    """Return the types, or where a name cannot be found at run time, the text of them."""
    try:
        return typing.get_type_hints(thing)
    except NameError:
        return dict(getattr(thing, "__annotations__", {}))


def signature(function: Callable[..., Any], skip: int = 0) -> str:
    """Return the parameters with types and defaults, but no module names: the same on every Python.

    The same on every Python.
    """
    hints = hints_of(function)
    shown_ones: list[str] = []
    kinds = inspect.Parameter
    last = None
    for each in [*inspect.signature(function).parameters.values()][skip:]:
        if each.kind is kinds.KEYWORD_ONLY and last not in (kinds.VAR_POSITIONAL, kinds.KEYWORD_ONLY):
            shown_ones.append("*")
        stars = "*" if each.kind is kinds.VAR_POSITIONAL else "**" if each.kind is kinds.VAR_KEYWORD else ""
        text = f"{stars}{each.name}: {shown(hints.get(each.name))}"
        if each.default is not kinds.empty:
            text += f" = {plain(each.default)}"
        shown_ones.append(text)
        last = each.kind
    returned = f" -> {shown(hints['return'])}" if "return" in hints else ""
    return f"({', '.join(shown_ones)}){returned}"


def shown(kind: Any) -> str:
    """Return a type as people write it."""
    if kind is None or kind is type(None):
        return "None"
    if isinstance(kind, str):
        return re.sub(r"[\w.]+\.(?=\w)|[\"']", "", kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(shown(one) for one in arguments)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is None:
        return "..." if kind is ... else str(getattr(kind, "__name__", kind))
    inner = [f"[{', '.join(map(shown, one))}]" if isinstance(one, list) else shown(one) for one in arguments]
    return f"{getattr(origin, '__name__', origin)}[{', '.join(inner)}]"


def plain(value: Any) -> str:
    """Return a default, without the name of its class.

    A function or a marker has no text of its own.
    """
    text = re.sub(r"^[A-Z]\w+\((?:\w+=)?(.*)\)$", r"\1", repr(value))
    return "..." if text.startswith("<") else text


def names_of_the_settings() -> Iterator[str]:
    assert is_dataclass(Settings)
    by_name = {PREFIX + each.name: each for each in fields(Settings)}
    yield from (f"{name} = {_default(by_name[name])}" for name in sorted(NAMES))


def _default(each: "Field[Any]") -> str:
    if each.default_factory is not MISSING:
        return plain(each.default_factory())
    return "required" if each.default is MISSING else plain(each.default)


def names_of_the_commands(command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(click.Context(command))):
            found = command.get_command(click.Context(command), name)
            assert found is not None, name
            yield from names_of_the_commands(found, f"{path} {name}".strip())
        return
    yield path
    yield from sorted(f"  {_parameter(each)}" for each in command.params)


def _parameter(each: click.Parameter) -> str:
    if isinstance(each, click.Argument):
        names = str(each.name).upper()
    else:
        names = ", ".join(sorted([*each.opts, *each.secondary_opts], key=lambda name: (len(name) == 2, name)))
    if getattr(each, "is_flag", False):
        return names
    several = " ..." if getattr(each, "multiple", False) or each.nargs != 1 else ""
    choices = getattr(each.type, "choices", None)
    kind = "|".join(map(str, choices)) if choices else each.type.name.upper()
    return f"{names} {kind}{several}" + (" (required)" if each.required else "")


def names_of_the_entry_points() -> Iterator[str]:
    titles = re.findall(r'^\[project\.entry-points\."(.+)"\]$', _project(), re.MULTILINE)
    for group in sorted(titles):
        yield from (f"{group}: {name}" for name in sorted(keys_of(f'project.entry-points."{group}"')))


def keys_of(table: str) -> Iterable[str]:
    """Return the keys of a table of pyproject.toml.

    What is installed here may be older than the file.
    """
    _, _, rest = _project().partition(f"\n[{table}]\n")
    return re.findall(r"^([\w-]+) = ", re.split(r"^\[", rest, maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE)


def _project() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


if __name__ == "__main__":
    SNAPSHOT.write_text(public_api(), encoding="utf-8")
