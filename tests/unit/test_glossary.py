"""One word, one meaning.

Names are made of the words of docs/glossary.md, and not of those that they replaced.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

import pytest

from celery_sqlbeat.events import KINDS
from tests.support.package_source import sources, tree_of

STATEMENTS = Path(__file__).parents[2] / "sql"

REPLACED = {
    "look": "poll, read, check",
    "sight": "deadlines",
    "lull": "outage",
    "gate": "admission",
    "office": "runtime",
    "window": "the span in which something may happen, by its name",
    "threshold": "check",
    "likeness": "template",
    "tending": "housekeeping",
    "bystander": "a worker without the extension",
    "untouched": "unpatched",
    "written": "canonical, or a state",
    "plight": "the state of a job",
    "stories": "history",
    "lender": "pool",
    "foresight": "estimate",
    "turns": "backoff",
    "trouble": "error, log throttle",
    "alarm": "wakeup",
    "keeper": "manager",
    "roster": "workers",
    "brokerage": "the identity of a broker",
    "holding": "lease",
    "secrecy": "redaction",
    "outlet": "transport",
    "verdict": "result, answer",
    "sitting": "cache",
    "hurry": "flush soon",
    "mend": "repair",
    "stray": "orphan lock",
    "loose": "in need of repair",
    "settle": "resolve a commit, drain, await confirms",
    "likely": "estimated",
}
"""A word that is no name any more, and what to say instead."""

ALLOWED = {
    "errors.py: MigrationChanged.found",  # a public attribute of an error
    "errors.py: MigrationChanged.__init__().found",
}
"""Names that still stand, each with its reason; the list only shrinks."""

SLOT_IN_A_POOL = re.compile(r"(free|pool|taken|task|begun|open)_?slots?|slots?_(of_pool|free|taken)")
"""`slot` is the scheduled instant; a place in a pool is capacity."""

VAGUE = {"found", "one", "each"}
"""Names of variables that do not say what they hold."""


def names_in(where: str) -> Iterator[str]:
    """Yield the classes, functions, parameters, fields and attributes that a module defines."""
    yield from (f"{where}: {name}" for name in _defined(tree_of(where).body, ""))


def _defined(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
            inside = f"{prefix}{node.name}()."
            arguments = node.args
            yield from (inside + argument.arg for argument in _all_arguments(arguments))
            yield from (f"{prefix}{name}" for name in _attributes_set_in(node))
            yield from _defined(node.body, inside)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id
        elif isinstance(node, ast.Assign):
            yield from (prefix + target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            yield from _defined(node.body, prefix)


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def _attributes_set_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def replaced_words_of(name: str) -> set[str]:
    """Tell which words of a name were replaced.

    `looking` and `OutletKind` count, `lookup` and `gather` do not.
    """
    last = name.rpartition(" ")[2].rpartition(".")[2]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last).lower().split("_")
    return {stem for stem in REPLACED for word in words if re.fullmatch(f"{stem}(s|ed|ing|er)?", word)}


@lru_cache
def all_names() -> set[str]:
    """Return every name of the package, with its modules, SQL statements and events."""
    names = {f"events: {kind.name}.{field}" for kind in KINDS.values() for field in kind.fields}
    names |= {f"events: {kind.name}" for kind in KINDS.values()}
    for where in sources():
        path = PurePosixPath(where)
        module = path.parent.name if path.stem == "__init__" else path.stem
        names |= {f"{where}: {module}", *names_in(where)}
    for file in STATEMENTS.rglob("statements/*.sql"):
        where = file.relative_to(STATEMENTS).as_posix()
        blocks = re.findall(r"^-- name: (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        names |= {f"{where}: {block}" for block in blocks}
    return names


def is_judged(name: str) -> bool:
    """Tell whether a name must be made of the words of the glossary."""
    return name not in ALLOWED


def test_names_are_made_of_the_words_of_the_glossary() -> None:
    judged = filter(is_judged, all_names())
    assert {name: REPLACED[word] for name in judged for word in replaced_words_of(name)} == {}


def test_a_slot_is_the_scheduled_instant_and_no_place_in_a_pool() -> None:
    assert [name for name in filter(is_judged, all_names()) if SLOT_IN_A_POOL.search(name.rpartition(".")[2])] == []


def test_a_variable_says_what_it_holds() -> None:
    assert [
        name for name in filter(is_judged, all_names()) if name.rpartition(" ")[2].rpartition(".")[2] in VAGUE
    ] == []


def test_a_name_that_is_gone_is_no_longer_allowed() -> None:
    assert ALLOWED - all_names() == set()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("beat/x.py: looking", {"look"}),
        ("beat/x.py: Tick.look_at", {"look"}),
        ("publish/x.py: AmqpOutlet", {"outlet"}),
        ("model/x.py: lookup", set()),
        ("worker/x.py: gather_gates", {"gate"}),
        ("beat/turns.py: turns", {"turns"}),
        ("beat/x.py: returns", set()),
    ],
)
def test_a_replaced_word_is_found_in_a_name(name: str, words: set[str]) -> None:
    assert replaced_words_of(name) == words
