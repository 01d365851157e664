"""One thing that a check found."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")  # the worst first

MOST_NAMES = 5  # of jobs or workers in one sentence


class Finding(NamedTuple):
    """What was found, and what to do about it.

    An error keeps jobs from running as they should. A warning may be meant so. A note is worth knowing.
    """

    level: Level
    name: str
    """The family and the fact, for programs: `extension`, `visibility-timeout`."""
    says: str
    remedy: str


def listed(names: list[str]) -> str:
    """Names in a sentence: a few of them, and how many more there are."""
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"
