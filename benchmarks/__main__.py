"""Measures everything and prints it as tables."""

import os
import platform
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks import claim_one, cycle
from benchmarks.places import Place, postgresql_answers, postgresql_place, sqlite_place

FEW, MANY = 1_000, 1_000_000

Maker = Callable[[], AbstractContextManager[Place]]


def main() -> None:
    """Run all benchmarks."""
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version} (synchronous=FULL)"
    )
    places: dict[str, Maker] = {"SQLite": sqlite_place}
    if postgresql_answers():
        places["PostgreSQL"] = postgresql_place

    print(
        f"\nFull cycles a second: claim, mark published, start, success; {cycle.JOBS} jobs in batches of {cycle.BATCH}"
    )
    print(f"{'database':12} {'store':>10} {'bare':>10} {'store/bare':>11}")
    for name, make in places.items():
        with make() as place, make() as twin:
            rates = cycle.measure(place, twin)
        print(f"{name:12} {rates.store:>10,.0f} {rates.bare:>10,.0f} {rates.ratio:>11.2f}")

    print("\nOne due job among many: time of its claim, and memory of the process")
    print(f"{'database':12} {'jobs':>10} {'us':>8} {'MB':>8}   {MANY:,} / {FEW:,}")
    for name, make in places.items():
        costs = []
        for jobs in (FEW, MANY):
            with make() as place:
                costs.append(claim_one.measure(place, jobs))
            print(f"{name:12} {jobs:>10,} {costs[-1].microseconds:>8.0f} {costs[-1].megabytes:>8.1f}", end="")
            print("" if jobs == FEW else _ratios(*costs))


def _ratios(few: claim_one.Cost, many: claim_one.Cost) -> str:
    return f"   time {many.microseconds / few.microseconds:.2f}, memory {many.megabytes / few.megabytes:.2f}"


if __name__ == "__main__":
    main()
