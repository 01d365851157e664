"""Measures everything, or the sections that are named, and prints it as tables."""

import os
import platform
import sqlite3
import sys

from benchmarks import beat, claim_one, cycle, publish, worker
from benchmarks.places import available_places

SECTIONS = {
    "cycle": cycle.main,
    "claim": claim_one.main,
    "publish": publish.main,
    **beat.SECTIONS,
    "worker": worker.main,
}
EXTRAS = beat.EXTRAS
GROUPS = {"beat": list(beat.SECTIONS)}


def main(names: list[str]) -> None:
    """Run these sections, or all of them."""
    wanted = [section for name in names for section in GROUPS.get(name, [name])]
    if unknown := [name for name in wanted if name not in {**SECTIONS, **EXTRAS}]:
        known = ", ".join([*SECTIONS, *EXTRAS, *GROUPS])
        raise SystemExit(f"no such section: {', '.join(unknown)}; there are {known}")
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    print(f"SQLite {sqlite3.sqlite_version} in WAL mode, synchronous = FULL; PostgreSQL with synchronous_commit = on")
    available_places()
    for name in wanted or SECTIONS:
        {**SECTIONS, **EXTRAS}[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
