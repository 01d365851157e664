"""Durations for people."""

from __future__ import annotations


def span(seconds: float | None) -> str:
    """A duration for people: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if abs(seconds) >= 10 else f"{seconds:.1f} s"
