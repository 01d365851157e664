"""The tasks that a worker knows, as its row tells them: their names, and a mark of them among its details.

The names of a large shop are many kilobytes and change with deployments only, so they are read once for each mark.
Another release may have written either: whatever is not as expected says nothing.
"""

import hashlib
import json
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

KEY = "tasks"


def tell(names: Iterable[str]) -> str:
    """The text for the row."""
    return json.dumps(sorted(names))


def mark_of(text: str) -> str:
    """What tells one text from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_mark(details: str | None, text: str) -> str:
    """The details of a worker, with the mark of what it knows."""
    return json.dumps({**_object(details), KEY: mark_of(text)})


@lru_cache(maxsize=1000)  # the rows of a fleet, which say the same over and over
def mark_in(details: str | None) -> str | None:
    """The mark that a worker tells; None where it tells none."""
    mark = _object(details).get(KEY)
    return mark if isinstance(mark, str) else None


def names_in(text: str | None, mark: str) -> frozenset[str] | None:
    """The names that a text tells; None where it is not the one of this mark, or cannot be read."""
    if text is None or mark_of(text) != mark:
        return None
    try:
        names = json.loads(text)
    except ValueError:
        return None
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else None


def nobody_has(task_name: str, known: Collection[frozenset[str] | None]) -> bool:
    """Whether there is somebody, and each of them is known not to know this task."""
    return bool(known) and all(names is not None and task_name not in names for names in known)


def _object(details: str | None) -> dict[str, Any]:
    try:
        found = json.loads(details or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
