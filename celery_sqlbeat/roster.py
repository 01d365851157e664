"""Which workers answer a call, what they consume, and whether they have this extension.

Asked of the workers themselves: the register in the database knows only those with the extension.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

RECALL = "sqlbeat_recall"  # the remote control that makes workers look whether they still hold runs
STATS = "sqlbeat"  # under this name the extension shows in `inspect stats`


class Answer(NamedTuple):
    """A worker that answered."""

    name: str
    queues: frozenset[str]
    extension: Mapping[str, Any] | None
    """What the extension says of itself; None where the worker does not have it."""


def call_the_roll(app: Any, seconds: float, connection: Any = None) -> list[Answer]:
    """Ask all workers, and give each question so many seconds. Raises what the transport raises."""
    inspect = app.control.inspect(timeout=seconds, connection=connection)
    queues = inspect.active_queues() or {}
    stats = inspect.stats() or {} if queues else {}
    return [
        Answer(name, frozenset(str(queue["name"]) for queue in consumed), stats[name].get(STATS))
        for name, consumed in sorted(queues.items())
        if name in stats
    ]
