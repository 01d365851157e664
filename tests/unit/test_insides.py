"""Only the bridge, what publishes, the scheduler and our transports know Celery's insides."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_sqlbeat
from celery_sqlbeat.celery_bridge.symbols import SYMBOLS

PACKAGE = Path(celery_sqlbeat.__file__).parent
INSIDERS = ("celery_bridge/", "publish/", "brokers/", "beat/scheduler.py")
LIBRARIES = {"celery", "kombu", "billiard", "amqp", "vine"}
PUBLIC: dict[str, set[str] | None] = {
    "celery": {"Celery", "Signature", "bootsteps", "schedules", "signals", "states"},
    "celery.exceptions": None,
    "celery.schedules": None,
    "celery.signals": None,
    "kombu.exceptions": None,
}
"""What these libraries document, and may be imported where it is used; None: all of a module."""

DOCUMENTED = {
    # of Celery's classes, in its guides: tasks and routing, custom schedules, extensions of workers
    "request_dict",
    "connection_errors",
    "on_invalid_task",
    "on_decode_error",
    "install_default_entries",
    "is_due",
    "maybe_make_aware",
    "get_transport_cls",
    "send_event",
    # words of this package, too
    "call_after",
    "call_later",
    "call_soon",
    "default_now",
    "use_eventloop",
}

NAMES = {last for each in SYMBOLS if "_" in (last := each.name.rpartition(".")[2]) and last not in DOCUMENTED}
"""Names that are no words of ours: those without an underscore cannot be told from others."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Find what is imported of these libraries and is not public."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.partition(".")[0] in LIBRARIES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            public = PUBLIC.get(node.module or "", set())
            names = (each.name for each in node.names if public is not None and each.name not in public)
            yield from (f"{node.module}.{name}" for name in names)


def named(tree: ast.AST) -> Iterator[str]:
    """Find names of the table, as attributes of other objects or in strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in NAMES and getattr(node.value, "id", "") != "self":
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES:
            yield node.value


def outside() -> dict[str, ast.AST]:
    """Parse the modules that may know nothing but what is public."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    return {path: ast.parse(text) for path, text in texts.items() if not path.startswith(INSIDERS)}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from celery import _state", ["celery._state"]),
        ("from celery.worker import state", ["celery.worker.state"]),
        ("import kombu.common", ["kombu.common"]),
        ("import celery", ["celery"]),
        ("from billiard.exceptions import Terminated", ["billiard.exceptions.Terminated"]),
        ("from celery import signals\nfrom kombu.exceptions import DecodeError", []),
    ],
)
def test_the_search_finds_each_import_of_insides(source: str, found: list[str]) -> None:
    assert list(imported(ast.parse(source))) == found


@pytest.mark.parametrize(
    "source", ["worker._process_task", "getattr(req, '_apply_result')", "state.should_stop", "pool._pool._cache"]
)
def test_the_search_finds_each_name_of_the_table(source: str) -> None:
    assert list(named(ast.parse(source)))


def test_the_search_lets_our_own_attributes_pass() -> None:
    assert not list(named(ast.parse("self._pool._run(self._cache)\nrun.state\nmessage.headers")))


def test_nobody_else_imports_insides() -> None:
    assert {path: found for path, tree in outside().items() if (found := sorted(set(imported(tree))))} == {}


def test_nobody_else_names_a_private_symbol() -> None:
    assert {path: found for path, tree in outside().items() if (found := set(named(tree)))} == {}
