"""What task bodies write while they run, in a file that neither database nor broker knows."""

import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

STEP = 0.1  # seconds between two signs of life of a body
_WITHHELD = re.compile(
    r"run (\S+) of job .+ is not sent again: "
    r"(?:somebody consumes it who is not known to keep leases|nobody can say who consumes it)"
)


def write(path: str, line: dict[str, Any]) -> None:
    """Append one line: one small write in append mode is neither torn nor mixed with another."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


class Body(NamedTuple):
    """One execution of a task's body, by its own account."""

    job: str
    slot: str
    run: str
    attempt: int
    fence: int
    retries: int
    process: int
    """The main process of its worker."""
    began: float
    last_seen: float
    """On the clock that all processes of a machine share; later than this nobody saw it run."""
    ended: str | None
    """How, by its own account; None where it was cut off."""
    leased: bool = True
    """Whether its worker keeps leases."""
    child: int = 0
    """The process that ran it."""
    redelivered: bool = False
    """Whether the broker says that its message was with a consumer before."""
    checked: float | None = None
    """When its worker had last found that its lease holds; None of a plain worker."""


def read(lines: Iterable[str]) -> list[Body]:
    """Return the bodies, in the order in which they began."""
    bodies: dict[str, Body] = {}
    for line in lines:
        facts = json.loads(line)
        body, at, what = facts.pop("body"), facts.pop("at"), facts.pop("what")
        if what == "begins":
            bodies[body] = Body(**facts, began=at, last_seen=at, ended=None)
        else:
            bodies[body] = bodies[body]._replace(last_seen=at, ended=what if what != "lives" else None)
    return sorted(bodies.values(), key=lambda body: body.began)


def withheld(lines: Iterable[str]) -> list[str]:
    """Return the runs of which a beat says that no copy is sent, since somebody may have it.

    Not those whose message waits in the queue.
    """
    return [run for line in lines for run in _WITHHELD.findall(line)]
