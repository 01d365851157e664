"""Which verbs of the store a beat and a worker use: all have one store, and each has its part."""

import ast
from collections.abc import Iterator
from pathlib import Path

import celery_sqlbeat

PACKAGE = Path(celery_sqlbeat.__file__).parent
CLAIMING = {"due", "claim", "mark_published", "expired", "release_orphan_locks"}
RUNNING = {"start", "extend"}


def asked_of_the_store(room: str) -> Iterator[ast.Call]:
    """Yield the calls of verbs by the modules of a room."""
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if ast.unparse(node.func.value) in ("self._store", "store"):
                yield node


def verbs(room: str) -> set[str]:
    return {call.func.attr for call in asked_of_the_store(room) if isinstance(call.func, ast.Attribute)}


def test_a_worker_claims_nothing() -> None:
    used = verbs("worker")
    assert {"start", "extend", "finish", "postpone"} <= used, "else the test finds nothing any more"
    assert not used & CLAIMING


def test_a_beat_starts_and_extends_no_run() -> None:
    used = verbs("beat")
    assert {"due", "claim", "mark_published", "expired", "finish"} <= used, "else the test finds nothing any more"
    assert not used & RUNNING


def test_a_beat_ends_a_run_only_where_a_guard_says_that_no_worker_has_it() -> None:
    ends = [ast.unparse(call) for call in asked_of_the_store("beat") if ast.unparse(call.func).endswith(".finish")]
    assert ends
    assert [text for text in ends if "Guard." not in text or "Guard.HELD" in text] == []
